"""Which events of a path one composite event can stand for, and what a run has to do for it.

Knows neither runs nor graphs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.trees import leaves_of_kind
from torchjanus.graph.ir.program import Ref
from torchjanus.runtime.coexecution.graphs.matching import undisturbed
from torchjanus.runtime.coexecution.graphs.path import Path, Plan
from torchjanus.runtime.coexecution.recording.composites import Section, given
from torchjanus.runtime.coexecution.recording.events import Event, External, Kind, Meta, Provenance, exact

__all__ = ["Composite", "composites_of"]

_MOST = 0.5  # of the events: if more have to be walked through, nothing is gained


@dataclass(frozen=True, slots=True)
class Composite:
    """A composite event. ``made``: the tensors made within; ``wanted``: those that Python may ask for later on.
    Gradients that live on are written when the graph is committed, and nothing else holds what was made within. Where
    there is a ``following``, torch's own code is run for the parameters in ``chosen``: it gives the event that comes
    after each that matches, ``first`` is the first one. ``numbers``: pairs of slots, of which the first gets the number
    of the second; ``equal``: pairs of tensors that have to hold the same number."""

    section: Section
    made: tuple[int, ...]
    wanted: tuple[tuple[int, Meta], ...] = ()
    first: int = -1
    following: Mapping[int, int] | None = None
    chosen: frozenset[int] = frozenset()
    numbers: tuple[tuple[int, int], ...] = ()
    equal: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()

    def holds(self, func: Any, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is this one, with the optimizer and torch as they were."""
        section = self.section
        with torch._C.DisableTorchFunction():
            return (
                section.is_call(func, first, given(args, kwargs))
                and torch.is_grad_enabled() is section.grad
                and undisturbed()
                and section.form.holds(first, settings=self.following is None)
                and all(one.item() == other.item() for one, other in self.equal)
            )


def composites_of(path: Path, plan: Plan) -> dict[int, Composite]:
    """Return the composite events of a path by the event that they begin at."""
    planned = (_Planner(path, plan, section).composite() for section in path.sections)
    found = [one for one in planned if one is not None]
    walked = set(range(len(path.events))).difference(*(range(one.section.begin, one.section.end) for one in found))
    walked.update(k for one in found for k in one.following or ())
    return {one.section.begin: replace(one, wanted=_wanted(path, one, walked)) for one in found}


def _wanted(path: Path, one: Composite, walked: Set[int]) -> tuple[tuple[int, Meta], ...]:
    """Return the tensors made within that events ask for which are ``walked`` through later on."""
    section = one.section
    later = {ref.index for k in range(section.end, len(path.events)) if k in walked for ref in _refs(path.events[k])}
    made = {n: meta for k in range(section.begin, section.end) for n, meta in path.events[k].made.items()}
    return tuple((n, meta) for n, meta in made.items() if n in later or n == section.result)


class _Planner:
    def __init__(self, path: Path, plan: Plan, section: Section) -> None:
        self.path, self.plan, self.section = path, plan, section
        self.span = range(section.begin, section.end)
        self.events: Sequence[Event] = path.events
        self.externals: Mapping[int, External] = path.externals

    def composite(self) -> Composite | None:
        events = [self.events[k] for k in self.span]
        if not events or any(event.kind is Kind.HOST or event.draws or event.shown is not None for event in events):
            return None
        asks = [k for k in self.span if self.events[k].kind is Kind.FETCH]
        if any(k not in self.plan.hosted for k in asks) or not all(map(self._is_known, events)):
            return None
        plain = Composite(self.section, tuple(n for event in events for n in event.made))
        varies = any((k, place) in self.plan.slots for k in self.span for place in range(len(self.events[k].numbers)))
        return self._by_kinds(plain) if varies or asks else plain

    def _is_known(self, event: Event) -> bool:
        """Whether all that the event takes from outside is known without it."""
        met = [self.externals[ref.index] for ref in _refs(event) if ref.index in self.externals]
        return not any(
            one.shared
            or (
                one.provenance is not Provenance.GRADIENT
                and one.number not in self.path.fixed
                and one.first >= self.section.begin
            )
            for one in met
        )

    # -- one parameter of each kind --------------------------------------------------------------------------------

    def _by_kinds(self, plain: Composite) -> Composite | None:
        """Return a composite event for which torch's code runs for one parameter of each kind: parameters of one group
        are of one kind if the same is done with them, by the same numbers."""
        families = self._families()
        if families is None:
            return None
        kinds: dict[Any, list[tuple[int, list[int]]]] = defaultdict(list)
        for group, parameter, events in families:
            kinds[group, self._form(events)].append((parameter, events))
        route = {k for k in self.span if not _refs(self.events[k])}
        numbers: list[tuple[int, int]] = []
        equal: list[tuple[torch.Tensor, torch.Tensor]] = []
        fixed, slots = self.path.fixed, self.plan.slots
        for (_, mine), *others in kinds.values():
            route.update(mine)
            for _, theirs in others:
                for k, other in zip(mine, theirs, strict=True):
                    places = range(len(self.events[k].numbers))
                    numbers += ((slots[other, at], slots[k, at]) for at in places if (k, at) in slots)
                    if self.events[k].kind is Kind.FETCH:
                        one, same = (fixed.get(self.plan.hosted[at].number) for at in (other, k))
                        if one is None or same is None:
                            return None
                        equal.append((one, same))
        if len(route) > _MOST * len(self.span):
            return None
        order = sorted(route)
        chosen = frozenset(id(fixed[members[0][0]]) for members in kinds.values())
        following = dict(zip(order, [*order[1:], self.section.end], strict=True))
        return Composite(plain.section, plain.made, (), order[0], following, chosen, tuple(numbers), tuple(equal))

    def _families(self) -> list[tuple[int, int, list[int]]] | None:
        """Return for each parameter its group, its number, and the events with it or what is computed from it; None if
        an event has to do with several parameters."""
        by_id = {id(tensor): n for n, tensor in self.path.fixed.items()}
        owner: dict[int, int] = {}
        groups: dict[int, int] = {}
        for group, parameters in enumerate(self.section.form.groups):
            for parameter in parameters:
                n = by_id.get(id(parameter))
                if n is None or n in owner:
                    return None
                owner[n], groups[n] = n, group
        records = dict(zip(map(id, self.section.form.keys), self.section.form.records, strict=True))
        for n in groups:
            for value in records.get(id(self.path.fixed[n]), {}).values():
                if id(value) in by_id and owner.setdefault(by_id[id(value)], n) != n:
                    return None
        events: dict[int, list[int]] = {n: [] for n in groups}
        for k in self.span:
            met = {ref.index for ref in _refs(self.events[k])}
            owners = {owner[n] for n in met if n in owner}
            if len(owners) > 1 or (met and not owners):
                return None
            for one in owners:
                owner.update(dict.fromkeys(met, one))
                events[one].append(k)
        return [(groups[n], n, found) for n, found in events.items()]

    def _form(self, events: list[int]) -> tuple[Any, ...]:
        """Return what is equal for parameters with which the same is done."""
        local: dict[int, int] = {}

        def number_of(ref: Ref) -> int:
            return local.setdefault(ref.index, len(local))

        form: list[Any] = []
        for k in events:
            event = self.events[k]
            seen = tuple(
                (tuple(map(exact, values)), (k, place) in self.plan.slots)
                for place, values in enumerate(self.path.seen[k])
            )
            kept = (event.kind, event.func, event.modes, len(event.made), len(event.outs), event.container, seen)
            given = event.form((event.args, event.kwargs, event.result), number_of)
            hosted = self.plan.hosted.get(k)
            form.append((kept, given, None if hosted is None else hosted.chain))
        return tuple(form)


def _refs(event: Event) -> list[Ref]:
    return [*leaves_of_kind((event.args, event.kwargs, event.result), Ref), *event.outs]

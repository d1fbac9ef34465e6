"""One path of a step: the traces of calls that made the same calls of torch, merged.

What agreed in all of them is held; numbers that differed are slots, tensors that were other objects are fed. Makes the
tensor program of the whole path. Knows neither skeletons nor executors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.core.trees import map_leaves
from torchjanus.graph.ir.program import Cut, Input, Node, Program, Ref, Slot, SlotKind
from torchjanus.runtime.coexecution.recording.composites import Section
from torchjanus.runtime.coexecution.recording.events import Event, External, Kind, Provenance, Trace, exact
from torchjanus.runtime.coexecution.recording.kinds import DIFFERENTIATING, GIVING, called

__all__ = ["HostFetch", "Path", "Plan"]

_CHAIN = 3  # operations on a tensor of one element that the host repeats in order to answer a fetch
_IN_PLACE = frozenset({"add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__", "fill_"})
_LISTS = frozenset({"_foreach_add_", "_foreach_sub_", "_foreach_mul_"})


@dataclass(frozen=True, slots=True)
class HostFetch:
    """A FETCH of an external that the host answers: the calls ``chain`` have changed it before, each of one number."""

    number: int
    chain: tuple[tuple[Any, tuple[Any, ...], bool], ...]  # function, numbers, whether it takes a list

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the contents at that event; ``tensor``: the external, which the step has not really changed."""
        if not self.chain:
            return tensor
        with torch.no_grad():
            made = tensor.detach().clone()
            for func, numbers, listed in self.chain:
                func([made] if listed else made, *numbers)
        return made


@dataclass(frozen=True, slots=True)
class Plan:
    """The program of a path. ``inputs``: the trace's number of each input. ``cuts``: the cut of an event, and for each
    of its tensors the position among the cut's outputs; ``hosted``: events that the host answers; ``escapes``: by
    output position, the trace's number. ``slots``: of each number that varies, by event and place among its numbers."""

    program: Program
    inputs: tuple[int, ...]
    cuts: dict[int, tuple[int, dict[int, int]]]
    hosted: dict[int, HostFetch]
    escapes: dict[int, int]
    slots: dict[tuple[int, int], int]


class Path:
    """The traces so far. ``events`` and ``externals``: of the latest trace."""

    def __init__(self, trace: Trace) -> None:
        self.traces = 0
        self.escapes: dict[int, None] = {}
        self.fixed: dict[int, torch.Tensor] = {}
        self.nodes: dict[int, str] = {}  # the names of the autograd nodes of tensors that live on
        self.bound: set[int] = set()  # tensors that share memory with arrays, and whose memory lives on
        self.modules: set[str | None] = set()
        self.sections: tuple[Section, ...] = ()  # of the latest trace
        self.seen: list[
            list[list[float | int]]
        ] = []  # for each event and each of its numbers, the values in the traces
        self.add(trace)

    def add(self, trace: Trace) -> bool:
        """Merge another trace of this path. Returns whether more varies than before, so that it needs another graph."""
        before = (len(self.fixed), self.varying if self.traces else {}, len(self.escapes))
        self.events, self.externals = trace.events, trace.externals
        found = {
            n: trace.tensors[n]
            for n, one in trace.externals.items()
            if one.provenance is Provenance.FOUND and not one.argument and not one.shared
        }
        same = found.items() if not self.traces else ((n, t) for n, t in found.items() if self.fixed.get(n) is t)
        self.fixed = dict(same)
        self.escapes.update(dict.fromkeys(trace.escapes))
        self.nodes.update(trace.nodes)
        self.bound.update(trace.bound)
        self.modules |= trace.modules
        self.sections = trace.sections
        rows = [event.numbers for event in trace.events]
        if not self.traces:
            self.seen = [[[value] for value in row] for row in rows]
        else:
            for known, row in zip(self.seen, rows, strict=True):
                for values, value in zip(known, row, strict=True):
                    if all(exact(value) != exact(one) for one in values):
                        values.append(value)
                    del values[:-8]
        self.traces += 1
        return before != (len(self.fixed), self.varying, len(self.escapes))

    @property
    def varying(self) -> dict[tuple[int, int], None]:
        """The numbers that differed: event, and place among its numbers."""
        return {
            (event, place): None
            for event, row in enumerate(self.seen)
            for place, values in enumerate(row)
            if len(values) > 1 and self.events[event].kind is Kind.OPERATOR
        }

    # -- the program ----------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Return the tensor program of the whole path. Raises Refused."""
        events = self.events
        hosted = {k: found for k, event in enumerate(events) if (found := self._hosted(k, event)) is not None}
        cut_at = [k for k, event in enumerate(events) if k not in hosted and self._waits(event)]
        inputs = self._inputs(cut_at)
        number = {n: k for k, n in enumerate(inputs)}
        for event in events:
            for n in event.made:
                number.setdefault(n, len(number))
        stage = self._stages(cut_at)
        slots: dict[tuple[int, int], int] = {}
        kinds: list[SlotKind] = []
        for event_, place in self.varying:
            slots[event_, place] = len(kinds)
            seen = tuple(self.seen[event_][place])
            kinds.append(
                SlotKind(type(seen[0]), seen, f"{events[event_].name} at {events[event_].place}", stage[event_])
            )
        nodes: list[Node] = []
        outputs: list[Ref] = []
        after: list[int] = []
        cuts: list[Cut] = []
        where: dict[int, tuple[int, dict[int, int]]] = {}
        for k, event in enumerate(events):
            if k in cut_at:
                asked = dict.fromkeys(event.inputs)
                places = {n: len(outputs) + offset for offset, n in enumerate(asked)}
                outputs += (Ref(number[n]) for n in asked)
                after += [len(nodes)] * len(asked)
                cuts.append(Cut(len(nodes), tuple(places.values())))
                where[k] = (len(cuts) - 1, {n: offset for offset, n in enumerate(asked)})
            elif event.kind is Kind.OPERATOR:
                nodes.append(self._node(k, event, number, slots))
        fetched = tuple(range(len(outputs)))
        escapes = {}
        for n in self.escapes:
            escapes[len(outputs)] = n
            outputs.append(Ref(number[n]))
        after += [len(nodes)] * (len(outputs) - len(after))
        if not nodes:
            raise refused("coexecution-call", "the step computes nothing", "There is nothing to make a graph of.")
        program = Program(
            inputs=tuple(self._input(n, number, stage) for n in inputs),
            slots=tuple(kinds),
            nodes=tuple(nodes),
            outputs=tuple(outputs),
            output_after=tuple(after),
            assertions=(),
            leaves=self._leaves(inputs),
            cuts=tuple(cuts),
            fetched=fetched,
            escaping=tuple(escapes),
        )
        return Plan(program, inputs, where, hosted, escapes, slots)

    def _waits(self, event: Event) -> bool:
        """Whether the graph has to have run up to this event."""
        if event.kind is Kind.FETCH:
            return event.shown is None or event.shown.owner < 0
        return event.kind is Kind.HOST and (event.draws or bool(event.inputs))

    def _hosted(self, position: int, event: Event) -> HostFetch | None:
        """Return how the host answers a FETCH of one external by itself; None if it cannot."""
        if event.kind is not Kind.FETCH:
            return None
        asked = set(event.inputs)
        if len(asked) != 1 or (number := asked.pop()) not in self.externals:
            return None
        chain = []
        for k, other in enumerate(self.events[:position]):
            if other.kind not in (Kind.OPERATOR, Kind.HOST) or number not in other.inputs:
                continue
            short = called(other.func).short
            rest = other.args[1:]
            plain = not other.kwargs and all(type(part) in (int, float) for part in rest)
            listed = short in _LISTS and type(other.args[0]) in (list, tuple)
            single = short in _IN_PLACE and other.args[0] == Ref(number)
            if not plain or not (listed or single) or self.externals[number].meta.size not in ((), (1,)):
                return None
            if any((k, place) in self.varying for place in range(len(rest))):
                return None
            chain.append((other.func, rest, listed))
        return HostFetch(number, tuple(chain)) if len(chain) <= _CHAIN and event.shown is None else None

    def _inputs(self, cut_at: list[int]) -> tuple[int, ...]:
        """Return the externals that the graph takes, with the gradients that they had."""
        nodes = [event for k, event in enumerate(self.events) if k in cut_at or event.kind is Kind.OPERATOR]
        met = (n for event in nodes for n in (*event.inputs, *(ref.index for ref in event.outs)))
        used = dict.fromkeys(n for n in met if n in self.externals)
        for one in self.externals.values():
            if one.provenance is Provenance.GRADIENT and one.owner in used:
                used.setdefault(one.number)
        return tuple(sorted(used))

    def _stages(self, cut_at: list[int]) -> list[int]:
        """Return for each event how many cuts come before it."""
        stages, passed = [], 0
        cuts = set(cut_at)
        for k in range(len(self.events)):
            stages.append(passed)
            passed += k in cuts
        return [*stages, passed]

    def _input(self, n: int, number: dict[int, int], stage: list[int]) -> Input:
        one = self.externals[n]
        gradient = next((g.number for g in self.externals.values() if g.owner == n), None)
        grad = Ref(number[gradient]) if gradient in number else None
        known = stage[one.first + (one.provenance is Provenance.HOST)]
        return Input(self._like(one), one.meta.requires_grad, one.meta.is_leaf, grad, f"tensor {n}", known)

    def _like(self, one: External) -> torch.Tensor:
        """Return a tensor like the external as it was recorded, with arbitrary contents."""
        meta = one.meta
        with torch.no_grad():
            made = torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device=meta.device)
        made.requires_grad_(meta.requires_grad)
        return torch.nn.Parameter(made, meta.requires_grad) if one.parameter else made

    def _leaves(self, inputs: tuple[int, ...]) -> tuple[Ref, ...]:
        """Return the inputs whose ``.grad`` may differ after the call."""
        names = {called(event.func).short for event in self.events if event.kind is Kind.OPERATOR}
        if not names & DIFFERENTIATING:
            return ()
        given = {event.args[0].index for event in self.events if event.name in GIVING and type(event.args[0]) is Ref}
        chosen = (
            k
            for k, n in enumerate(inputs)
            if self.externals[n].meta.is_leaf and (self.externals[n].meta.requires_grad or n in given)
        )
        return tuple(map(Ref, chosen))

    def _node(self, k: int, event: Event, number: dict[int, int], slots: dict[tuple[int, int], int]) -> Node:
        place = -1

        def leaf(value: Any) -> Any:
            nonlocal place
            if type(value) is Ref:
                return Ref(number[value.index])
            if event.is_number(value):
                place += 1
                return Slot(slots[k, place]) if (k, place) in slots else value
            return value

        args, kwargs = map_leaves((event.args, event.kwargs), leaf)
        outs = tuple(Ref(number[ref.index]) for ref in event.outs)
        return Node(event.func, args, kwargs, outs, event.modes, event.place, event.layouts)

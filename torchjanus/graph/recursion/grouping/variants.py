"""The table of all variants of recursive functions seen so far. Independent of trees and of how cells run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchjanus.core.errors import Place, Refused, refused
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.recursion.cells.buffers import UnequalTerms
from torchjanus.graph.recursion.cells.partition import TracedCells
from torchjanus.graph.recursion.variants.facts import distinguished, part_by_tensor
from torchjanus.graph.recursion.variants.gradients import Used, lists_in
from torchjanus.graph.recursion.variants.if_conversion import converted
from torchjanus.graph.recursion.variants.predicates import MergedVariant, Path, Side
from torchjanus.graph.recursion.variants.reads import given_tensors, undecided
from torchjanus.graph.recursion.variants.reductions import varying
from torchjanus.graph.recursion.variants.variant import Variant
from torchjanus.trace.actions import InvokeEachOp, InvokeOp
from torchjanus.trace.calls import parts_made
from torchjanus.trace.context_facts import disagree
from torchjanus.trace.events import Trace

__all__ = ["VariantTable"]

MAX_VARIANTS = 512
MAX_LENGTHS = 4  # different lengths of returned lists, and different nesting depths of results


def _lengths(made: Any) -> Iterator[int]:
    """Yield the length of each list in the structure of a result."""
    if type(made) is tuple and made and made[0] == "list":
        yield len(made) - 1
    for _, part in parts_made(made):
        yield from _lengths(part)


def _depth(made: Any) -> int:
    """Return the nesting depth of containers and objects in the structure of a result."""
    return max((1 + _depth(part) for _, part in parts_made(made)), default=0)


@dataclass(eq=False, slots=True)
class _WatchedPath:
    """A watched execution path. ``own``: its variant alone; ``event``: one of its calls; ``variant``: the variant that
    represents it now, which may be merged with others by if-conversion."""

    own: Variant
    event: InvokeOp
    variant: Variant


def _sides(seen: Sequence[_WatchedPath], switch: MergedVariant) -> list[Side]:
    """Return the shared tensors that only some of these variants use."""
    used = [one.own.differentiated for one in seen]
    paths: dict[tuple[Path, ...], set[Any]] = {}
    for token in frozenset().union(*used) - frozenset.intersection(*used):
        on = tuple(path for path, own in zip(switch.paths, used, strict=True) if token in own)
        paths.setdefault(on, set()).add(token)
    return [Side(frozenset(tokens), on) for on, tokens in paths.items()]


class VariantTable:
    """All variants seen so far, by callee. ``version`` increases with each new one."""

    def __init__(self) -> None:
        self.variants: dict[Any, list[Variant]] = {}
        self.version = 0
        self._known: dict[Any, list[_WatchedPath]] = {}
        self._merged: dict[int, list[_WatchedPath]] = {}  # merged variant's number -> its members
        self._instead: dict[int, Variant] = {}  # replaced variant's number -> its replacement
        self._made = 0
        self.traced = TracedCells()
        self._uneven: set[Place] = set()  # where the terms of a sum differ in size

    def learn(self, trace: Trace) -> None:
        """Add the variants of all recursive calls of one watched run. Raises Refused."""
        for event in trace.events:
            if isinstance(event, InvokeOp):
                self.take(event)

    def take(self, first: InvokeOp) -> None:
        """Add the variants of one call and of the calls within it. Raises Refused."""
        waiting = [first]
        while waiting:
            event = waiting.pop()
            if isinstance(event, InvokeEachOp):
                waiting.extend(reversed(event.iterations))
                continue
            if event.call.variants is not None:
                continue  # the call was recognised, not watched
            key = (event.callee, event.call.tokens(), given_tensors(event), event.made)
            alike = self._known.setdefault(key, [])
            relied = event.call.context
            known = next((one for one in alike if not any(disagree(other, relied) for other in one.own.relied)), None)
            if known is not None and relied not in known.own.relied:
                known.own.relied.append(relied)  # the same variant, reached by other access paths
                if known.variant is not known.own:
                    known.variant.relied.append({**known.variant.relied[0], **relied})
                self.version += 1
            if known is None:
                if sum(map(len, self._known.values())) >= MAX_VARIANTS:
                    what = f"{MAX_VARIANTS} variants of {event.name} have been seen, and there are more"
                    raise refused(
                        "recursion-too-many-variants",
                        what,
                        "Each is followed for itself.",
                        "Let nodes differ less.",
                        event.place,
                    )
                self._refuse_lengths(event)
                known = self._learn(event)
                alike.append(known)
            event.call.variant, event.call.flows = known.variant, known.own.gradients
            waiting.extend(inner for inner in event.call.events if isinstance(inner, InvokeOp))

    def _learn(self, event: InvokeOp) -> _WatchedPath:
        """Return a new entry for a call on a new execution path. Raises Refused."""
        seen = [one for alike in self._known.values() for one in alike if one.own.callee == event.callee]
        rivals = [one for one in seen if not disagree(one.own.relied[0], event.call.context)]
        rivals = [one for one in rivals if undecided(one.own.trace.events, event.call.events) is not None]
        rivals = [one for one in rivals if not distinguished(one.own.trace, event.call)]
        own = Variant(self._number(), event)
        made = _WatchedPath(own, event, own)
        if rivals:
            self._convert(made, rivals)
        else:
            self.variants.setdefault(event.callee, []).append(own)
        self.version += 1
        self._cut_into_segments(event.callee)
        return made

    def _number(self) -> int:
        self._made += 1
        return self._made - 1

    def _convert(self, new: _WatchedPath, rivals: Sequence[_WatchedPath]) -> None:
        """Merge a variant by if-conversion with those that only a tensor distinguishes from it. Raises Refused."""
        for variant in dict.fromkeys(one.variant for one in rivals):
            members = self._merged.get(variant.number) or [one for one in rivals if one.variant is variant]
            some = [one for one in members if one in rivals]
            try:
                if any(one.own.cuts_gradients for one in (*some, new)):
                    raise NotMergeable("recursion-branch", "an arm cuts gradients off")
                if not all(part_by_tensor(one.own.trace, new.own.trace) for one in some):
                    raise NotMergeable("recursion-branch", "more than the decision tells the arms apart")
                switch = converted([one.event for one in (*some, new)])
            except NotMergeable as error:
                raise self._undecided(new.event, some, error) from None
            made = Variant(self._number(), switch.event, switch, _sides((*some, new), switch))
            own = self.variants.setdefault(new.event.callee, [])
            if len(some) == len(members):
                own.remove(variant)
                self._instead[variant.number] = made
                for one in some:
                    one.variant = made
            own.append(made)
            self._merged[made.number] = [*some, new]
            new.variant = made

    @staticmethod
    def _undecided(event: InvokeOp, seen: Sequence[_WatchedPath], error: NotMergeable) -> Refused:
        """Return the refusal for the first predicate on a tensor that distinguishes the call from a known variant."""
        asked: Any = next(filter(None, (undecided(one.own.trace.events, event.call.events) for one in seen)), None)
        assert asked is not None  # a rival is a variant that a tensor tells from the call
        what = f"a tensor decides which variant {event.name} takes, and both have been seen"
        why = (
            f"Calls are followed before any is computed, and these variants cannot be computed for all: {error.detail}."
        )
        return refused(error.reason, what, why, "Choose with torch.where().", asked.place)

    def _refuse_lengths(self, event: InvokeOp) -> None:
        """Raise Refused if results differ too often in list lengths or nesting depth, as lists of all descendants of a
        node do: each length would be a variant of its own."""
        looks = [*(variant.made for variant in self.variants.get(event.callee, ())), event.made]
        lengths = {tuple(_lengths(made)) for made in looks}
        what = f"{event.name} returns lists of {len(lengths)} different lengths, and more would come"
        if len(lengths) <= MAX_LENGTHS:
            depths = set(map(_depth, looks))
            what = f"{event.name} returns what holds its own results, of different shapes, and more would come"
            if len(depths) <= MAX_LENGTHS:
                return
        remedy = "Pass a list along, and append to it."
        raise refused("recursion-list-lengths", what, "What calls return has to be alike.", remedy, event.place)

    def used(self, events: Iterable[InvokeOp]) -> frozenset[int]:
        """Return the variants that these calls and the calls within them take."""
        waiting, found = list(events), set[int]()
        while waiting:
            event = waiting.pop()
            if isinstance(event, InvokeEachOp):
                waiting.extend(event.iterations)
                continue
            call = event.call
            if call.variants is not None:
                found |= {self._now(number) for number in call.variants}
                continue
            found.add(self._now(call.variant.number))
            waiting.extend(event for event in call.events if isinstance(event, InvokeOp))
        return frozenset(found)

    def _now(self, number: int) -> int:
        """Return the variant that represents this one now."""
        while number in self._instead:
            number = self._instead[number].number
        return number

    def flowing(self, events: Iterable[tuple[InvokeOp, Used]], exact: bool) -> frozenset[Any]:
        """Return the tokens of the shared tensors to which gradients flow from the results and appended values in use.
        ``exact``: see ``tells_apart``."""
        waiting = list(events)
        variants = {variant.number: variant for own in self.variants.values() for variant in own}
        found = set[Any]()
        if not exact:
            numbers = self.used(event for event, _ in waiting) & variants.keys()
            found = {token for number in numbers for token in variants[number].flowing - variants[number].sometimes}
        while waiting:
            event, used = waiting.pop()
            if isinstance(event, InvokeEachOp):
                waiting.extend((one, used) for one in event.iterations)
            elif event.call.variants is None:
                tokens, some = event.call.flows.flow(used)
                found |= tokens
                inner = [one for one in event.call.events if isinstance(one, InvokeOp)]
                waiting.extend(zip(inner, some, strict=True))
            elif exact and used:  # such variants neither cut gradients nor depend on which results are in use
                numbers = frozenset(self._now(number) for number in event.call.variants) & variants.keys()
                found |= {token for number in numbers for token in variants[number].differentiated}
        return frozenset(found)

    def tells_apart(self, callee: Any, world: Mapping[Any, Any], used: Iterable[Used]) -> bool:
        """Whether calls that take the same variant may differ in their gradients, depending on their callers. ``used``:
        the results in use of each of the step's calls."""
        used = set(used)
        lists = frozenset().union(*map(lists_in, used))
        variants = self.reached([callee], world)
        by_callee: dict[Any, list[Variant]] = {}
        for variant in variants:
            by_callee.setdefault(variant.callee, []).append(variant)
        if any(
            variant.cuts_gradients or not variant.gradients.same_for({*range(len(variant.results)), *lists})
            for variant in variants
        ):
            return True
        asked = [(callee, some) for some in used]
        asked += [
            (variant.sites[n].event.callee, some | lists)
            for variant in variants
            for n, some in variant.gradients.partly.items()
        ]
        return not all(
            variant.gradients.same_for(some) for callee, some in asked for variant in by_callee.get(callee, ())
        )

    def shows_always(self, event: InvokeOp) -> bool:
        """Whether each variant with such a result returns an alias of a tensor that all calls share."""
        own = {variant.number for variant in self.variants.get(event.callee, ()) if variant.made == event.made}
        return bool(own) and own <= self.showing()

    def shows(self, calls: InvokeEachOp) -> bool:
        """Whether one of the calls has appended an alias of a tensor that all calls share."""
        showing = self.showing()
        for one in calls.iterations:
            inner = [event.call for event in one.call.events if isinstance(event, InvokeOp)]
            taken = (inner[site].variant for site in one.call.variant.handing)
            if one.call.variant.shows or not showing.isdisjoint(
                self._now(variant if type(variant) is int else variant.number) for variant in taken
            ):
                return True
        return False

    def showing(self) -> frozenset[int]:
        """Return the variants that may return an alias of a tensor that all calls share."""
        variants = [variant for own in self.variants.values() for variant in own]
        found = {variant.number for variant in variants if variant.shows}
        while True:
            callees = {variant.callee for variant in variants if variant.number in found}
            more = {variant.number for variant in variants if variant.passed_up & callees} - found
            if not more:
                return frozenset(found)
            found |= more

    def holding(self, world: Mapping[Any, Any]) -> dict[Any, list[Variant]]:
        """Return the variants of all functions whose context facts agree with ``world``."""
        found = {callee: [variant for variant in own if variant.fits(world)] for callee, own in self.variants.items()}
        return {callee: own for callee, own in found.items() if own}

    def _cut_into_segments(self, callee: Any) -> None:
        """Cut all variants of a function into segments: at loops whose trip counts differ, and around their sums. Row
        numbers that differ between variants become inputs."""
        counts: dict[Place, set[int]] = {}
        for variant in self.variants[callee]:
            for loop in variant.trace.loops:
                counts.setdefault(loop.place, set()).add(len(loop.starts))
        varying_loops = frozenset(place for place, some in counts.items() if len(some - {0}) > 1)
        sums = varying(variant.sums() for variant in self.variants[callee])
        folded = {place: carried for place, carried in sums.items() if place not in self._uneven}
        rows: dict[Place, set[int | float]] = {}
        for variant in self.variants[callee]:
            for place, value in variant.named_rows():
                rows.setdefault(place, set()).add(value)
        named = frozenset(place for place, some in rows.items() if len(some) > 1)
        for variant in self.variants[callee]:
            variant.cut(varying_loops, folded, named)

    def leave(self, uneven: UnequalTerms) -> None:
        """Compute the sum at this place within cells, not as a reduction of its own."""
        self._uneven.add(uneven.place)
        for callee in self.variants:
            self._cut_into_segments(callee)

    def reached(self, callees: Sequence[Any], world: Mapping[Any, Any]) -> list[Variant]:
        """Return the variants of these functions and of all they call whose context facts agree with ``world``."""
        found: dict[int, Variant] = {}
        waiting = list(callees)
        asked = set(waiting)
        while waiting:
            for variant in self.variants.get(waiting.pop(0), ()):
                if not variant.fits(world):
                    continue
                found[variant.number] = variant
                for site in variant.sites:
                    if site.event.callee not in asked:
                        asked.add(site.event.callee)
                        waiting.append(site.event.callee)
        return list(found.values())

"""Folds nested loops: inner loops first, which are then part of the iterations of the outer loop.

The marks of an inner loop become operations of the outer iteration, with the inner trip count as an operand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.loops.analysis.alignment import AlignedLoop
from torchjanus.graph.loops.analysis.candidates import as_loop, token_of_count
from torchjanus.graph.loops.analysis.hoisting import hoisted
from torchjanus.graph.loops.analysis.row_sizes import with_sizes_of_whole
from torchjanus.graph.loops.analysis.tensor_termination import terminated_loops
from torchjanus.graph.loops.analysis.truncation import TruncatedLoops
from torchjanus.graph.loops.rewrites.sums import sums_from_zero_tensors_within
from torchjanus.trace.events import Effectful, Trace
from torchjanus.trace.loops.records import KEPT, LoopInstance, TensorTermination, UntracedComputation
from torchjanus.trace.loops.untraced_computations import are_same, by_iteration
from torchjanus.trace.recipes import CollectedItems

__all__ = ["FoldedNests", "nested", "prepared"]


_NONE: Mapping[int, Collection[int]] = {}


@dataclass(slots=True)
class FoldedNests:
    """A trace with folded inner loops. ``ends``: end of each loop with folded inner loops -> its end in the original
    trace. ``inner``: that end -> the trip counts of the inner loops of one iteration, those of deeper loops after them.
    ``widths``: that end -> the number of inner loops in one iteration. ``left``: indices of the original loops that are
    still there."""

    trace: Trace
    ends: dict[int, int] = field(default_factory=dict)
    inner: dict[int, tuple[int, ...]] = field(default_factory=dict)
    widths: dict[int, int] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = self.left or list(range(len(self.trace.loop_instances)))


def nested(trace: Trace, flat: Collection[int] = (), held: Mapping[int, Collection[int]] = _NONE) -> FoldedNests:
    """Return the trace with inner loops folded where the outer loop can be rolled. ``flat``: ends of the outer loops
    that are left as they are. ``held``: end of an outer loop -> indices of the inner loops of one iteration whose trip
    counts are specialised."""
    if trace.failures or not any(_innermost(trace)) or any(True for _ in terminated_loops(trace)):
        return FoldedNests(trace)
    found = FoldedNests(trace)
    left = set(flat)
    while True:
        outers = [one for one in _innermost(found.trace) if found.ends.get(one.end, one.end) not in left]
        if not outers:
            return found
        made = _NestFolding(found, outers, held).made()
        if isinstance(made, FoldedNests):
            found = made
        else:
            left |= made


def prepared(trace: Trace) -> Trace:
    """Return the trace in which sums over nested loops begin with tensors, and trip counts depend only on values from
    before the call."""
    counts = [one.count for outer, inner in _nests(trace) for one in (outer, *inner)]
    trace = with_sizes_of_whole(trace, counts)
    return sums_from_zero_tensors_within(trace, [one for outer, inner in _nests(trace) for one in (outer, *inner)])


def _nests(trace: Trace) -> list[tuple[LoopInstance, list[LoopInstance]]]:
    """Return the loops with inner loops, each with these."""
    found = [(outer, _within(trace, outer)) for outer in trace.loop_instances if outer.starts]
    return [(outer, inner) for outer, inner in found if inner]


def _within(trace: Trace, outer: LoopInstance) -> list[LoopInstance]:
    """Return the loops in the iterations of this one."""
    known = (one for one in trace.loop_instances if one.starts)
    return [one for one in known if outer.starts[0] <= one.starts[0] and one.end < outer.end]


def _innermost(trace: Trace) -> Iterator[LoopInstance]:
    """Yield the loops with inner loops that have none themselves."""
    for outer in trace.loop_instances:
        if isinstance(outer.count, TensorTermination) or len(outer.starts) < KEPT or outer.recurrences is not None:
            continue
        inner = _within(trace, outer)
        if inner and not any(_within(trace, one) for one in inner):
            yield outer


class _NestFolding:
    """Folds the inner loops of one level."""

    def __init__(self, known: FoldedNests, outers: Sequence[LoopInstance], held: Mapping[int, Collection[int]]) -> None:
        self.known, self.held = known, held
        self.trace, self.ends = hoisted(known.trace, [(one, _within(known.trace, one)) for one in outers])
        by_end = {one.end: one for one in self.trace.loop_instances}
        self.outers = [by_end[self.ends[one.end]] for one in outers]

    def made(self) -> FoldedNests | set[int]:
        """Return the trace with the inner loops of these loops folded; or the original ends of the outer loops for
        which that is not possible."""
        every = {self._original_end(one) for one in self.outers}
        loops = self._loops()
        if not loops:
            return every
        fit = sorted((loop for inner in loops.values() for loop in inner), key=lambda loop: loop.end)
        cut = TruncatedLoops(self.trace, fit, spared=frozenset(self._spared(loops)))
        try:
            trace = cut.trace()
        except NotMergeable as error:
            for loop in fit:
                self.trace.remarks.note(loop.place, error.reason, error.detail)
            return every
        if cut.merged.numbers() or (_has_rows(trace) and not _has_rows(self.trace)):
            return every
        self._carry_over(cut, trace, fit)
        after = {cut.places[one.end]: one for one in self.outers}
        unsuited = {
            self._original_end(after[one.end])
            for one in trace.loop_instances
            if one.end in after and as_loop(trace, one) is None and as_loop(trace, one.without_first()) is None
        }
        unsuited |= {self._original_end(one) for one in self.outers if one.end not in loops}
        if unsuited:
            return unsuited
        cut_down = {loop.end for loop in fit}
        left = [k for k, one in zip(self.known.left, self.trace.loop_instances, strict=True) if one.end not in cut_down]
        made = FoldedNests(trace, left=left)
        for end, one in after.items():
            made.ends[end], made.widths[end] = self._original_end(one), self._width(one, loops)
            within = loops[one.end][-self._width(one, loops) :]
            below = (self.known.inner.get(self._before(loop.end), ()) for loop in within)
            made.inner[end] = (*(loop.count for loop in within), *(count for some in below for count in some))
        return made

    def _loops(self) -> dict[int, list[AlignedLoop]]:
        """Return, by the end of each outer loop, its inner loops that can be folded: equally many per iteration."""
        loops: dict[int, list[AlignedLoop]] = {}
        for outer in self.outers:
            inner = _within(self.trace, outer)
            plain = self._may_know(outer, inner)
            found = [self._loop(one, plain) for one in inner]
            known = [loop for loop in found if loop is not None]
            if len(known) == len(inner) and len(known) % len(outer.starts) == 0 and self._is_apart(outer, inner):
                loops[outer.end] = sorted(known, key=lambda loop: loop.end)
        while bound := {end for end, inner in loops.items() if not self._are_free(inner, loops)}:
            for end in bound:
                del loops[end]
        return loops

    def _width(self, outer: LoopInstance, loops: Mapping[int, Sequence[AlignedLoop]]) -> int:
        """Return the number of inner loops in each iteration."""
        return len(loops[outer.end]) // len(outer.starts)

    def _spared(self, loops: Mapping[int, Sequence[AlignedLoop]]) -> Iterator[Any]:
        """Yield the tokens of trip counts on which conditions stay: those of the outer loops, and those that are
        specialised."""
        for outer in self.outers:
            yield token_of_count(outer)
            held = self.held.get(self._original_end(outer), ())
            if outer.end in loops:
                width = self._width(outer, loops)
                yield from (loop.token for number, loop in enumerate(loops[outer.end]) if number % width in held)

    def _before(self, end: int) -> int:
        """Return where the loop that ends there ended before hoisting."""
        return next(old for old, new in self.ends.items() if new == end)

    def _original_end(self, outer: LoopInstance) -> int:
        """Return where the loop ended in the original trace."""
        end = self._before(outer.end)
        return self.known.ends.get(end, end)

    def _may_know(self, outer: LoopInstance, inner: Sequence[LoopInstance]) -> list[UntracedComputation]:
        """Return the untraced computations that may use a trip count of the inner loops: those after the outer loop,
        and those with an operand that all outer iterations have. Within the inner loops it is their induction
        variable."""
        plain = [one for one in self.trace.plain if not any(i.starts[0] <= one.position < i.end for i in inner)]
        rows = by_iteration(plain, outer.limits)
        operands = [{operand for one in row for operand in one.operands} for row in rows]
        common = set.intersection(*operands[1:])
        return [one for one in plain if one.position >= outer.end or common.intersection(one.operands)]

    def _loop(self, instance: LoopInstance, plain: Sequence[UntracedComputation]) -> AlignedLoop | None:
        """Return the inner loop if it can be folded; else None."""
        if (
            isinstance(instance.count, TensorTermination)
            or len(instance.starts) < KEPT
            or instance.recurrences is not None
        ):
            return None
        if any(isinstance(event, Effectful) for event in self.trace.events[instance.starts[0] : instance.end]):
            return None
        return as_loop(self.trace, instance, plain)

    def _is_apart(self, outer: LoopInstance, inner: Sequence[LoopInstance]) -> bool:
        """Whether no inner loop computes with untraced numbers that depend on the outer iteration."""
        rows = by_iteration(self.trace.plain, outer.limits)
        if len({len(row) for row in rows}) > 1:
            return False
        differing = (
            one for column in zip(*rows, strict=True) if not are_same([[one] for one in column]) for one in column
        )
        return not any(one.starts[0] <= plain.position < one.end for plain in differing for one in inner)

    def _are_free(self, inner: Sequence[AlignedLoop], loops: dict[int, list[AlignedLoop]]) -> bool:
        """Whether the trip counts of the inner loops decide nothing else."""
        every = [loop for some in loops.values() for loop in some]
        for token in {loop.token for loop in inner} - {None}:
            pinned = sum(one.token == token and one.pinned for one in every)
            pinned += sum(token_of_count(outer) == token for outer in self.outers)
            if self.trace.pins.get(token, 0) not in (0, pinned):
                return False
        return True

    def _carry_over(self, cut: TruncatedLoops, trace: Trace, fit: Sequence[AlignedLoop]) -> None:
        """Copy what the old trace records about positions and tensors to the new trace."""
        old, places = self.trace, cut.places
        done = {loop.end for loop in fit}
        del trace.tensors[len(cut.numbers) :]  # no tensor-terminated loop here, so none of these is a trip count
        trace.loop_instances = [
            replace(
                one,
                starts=tuple(places[at] for at in one.starts),
                end=places[one.end],
                count=one.count if isinstance(one.count, TensorTermination) else cut.outside(one.count),
                asked=tuple(map(cut.outside, one.asked)),
            )
            for one in old.loop_instances
            if one.end not in done
        ]
        trace.plain = [replace(one, position=places[one.position]) for one in old.plain]
        trace.measured = places.get(old.measured, old.measured)
        trace.kinds = {new: old.kinds[number] for number, new in cut.numbers.items() if number in old.kinds}
        memory = {new: old.memory[number] for number, new in cut.numbers.items()} if old.memory else {}
        trace.memory = [memory[number] for number in range(len(memory))]
        trace.pins = dict(old.pins)
        for loop in fit:
            if loop.token is not None and loop.pinned and trace.pins.get(loop.token):
                trace.pins[loop.token] -= 1
        trace.alive = [*old.alive, old]


def _has_rows(trace: Trace) -> bool:
    """Whether a value that leaves the call has a part for each iteration."""
    return any(isinstance(part, CollectedItems) for part in trace.recipe_parts())

"""Cuts the loops of a trace down to their first iterations, between marks.

Which loops are cut down is decided by ``analysis.candidates`` and ``rewrites.fold``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.graph.ir.repetition import begin_iterations, end_iterations
from torchjanus.graph.loops.analysis.alignment import AlignedLoop
from torchjanus.graph.loops.analysis.merged_effects import MergedTrace
from torchjanus.graph.loops.analysis.renumbering import RenumberedRef, RenumberedTrace
from torchjanus.graph.loops.roll.reversal import unread, value_of
from torchjanus.trace.actions import Extern, HostLoop, Op
from torchjanus.trace.events import LoopEnd, Trace
from torchjanus.trace.facts import NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.loops.records import KEPT, TensorTermination
from torchjanus.trace.operations import made_by
from torchjanus.trace.values import Apply, Fetch, Size, leaves

__all__ = ["TruncatedLoops"]


@dataclass(slots=True)
class TruncatedLoops(RenumberedTrace):
    """Makes the folded trace. Raises NotMergeable."""

    least: int = KEPT  # kept iterations of a tensor-terminated loop
    spared: frozenset[Any] = frozenset()  # tokens of trip counts on which conditions stay
    whole: tuple[AlignedLoop, ...] = ()  # loops that are not folded: their trip counts stay fixed
    added: set[int] = field(default_factory=set)  # inserted operations, by id
    marks: dict[int, Op] = field(default_factory=dict)  # its own marks: inner loops may have others
    ended: list[int] = field(default_factory=list)  # positions among the new events at which the loops end
    conditions: dict[int, Any] = field(default_factory=dict)  # conditions on trip counts, by the event's id
    places: dict[int, int] = field(default_factory=dict)  # position of an old event among the new ones

    def trace(self) -> Trace:
        old = self.old
        self.merged = MergedTrace(old, self.loops)
        pieces = list(self._pieces())
        self._renumber(pieces)
        pinned = {loop.token for loop in self.loops} - self.spared
        events: list[Any] = []
        loops = iter(self.loops)
        operations = calls = 0  # extern calls of the last iterations
        seen: set[Any] = set()  # tokens of the conditions on trip counts so far
        for event, kept in pieces:
            if isinstance(event, _EventPosition):
                self.places[event.position] = len(events)
                continue
            if id(event) in self.conditions:
                if event.token in seen:
                    continue
                seen.add(event.token)
            if isinstance(event, Op):
                operations += kept
            if id(event) in self.marks and event.func is begin_iterations:
                self.inside = next(loops)
            elif id(event) in self.marks:
                assert self.inside is not None
                event = self._count(event, self.inside, operations)
                self.inside = None
                self.ended.append(len(events))
            if isinstance(event, NumberPredicate | Specialization) and self._is_constant(event):
                continue
            event = self.merged.computed.get(id(event), event)
            if kept and not (isinstance(event, Specialization) and event.expr.token in pinned):
                events.append(self.event(event))
            calls += isinstance(event, Extern) and not kept
            if isinstance(event, HostLoop):
                self.externs, calls = self.externs + calls, 0
        for fetch, values in self.merged.fetched():
            self.fetched[self.expr(fetch).token] = values
        for inside in (*self.loops, None):  # fetches of kept iterations, then those after the loop
            self.inside = inside
            for token, value in old.fetched.items():
                self.fetch(token, value)
        made = Trace(
            events=events,
            tensors=[None] * (len(self.numbers) + len(self.loops)),
            access_paths={self.number(number): access_path for number, access_path in old.access_paths.items()},
            owners=old.owners,
            result=self.recipe(self.merged.result) if old.result is not None else None,
            fetched=self.fetched,
            alive=old.alive,
            ambient=old.ambient,
            failures=old.failures,
        )
        made.recipes = self.recipes
        for number, tensor in enumerate(old.tensors):
            if number in old.access_paths:
                made.tensors[self.number(number)] = tensor
        return made

    def _is_constant(self, event: NumberPredicate | Specialization) -> bool:
        """Whether the condition is computed from the sizes of tensors of the iterations only. They are the same for all
        iterations, or those of the first iteration say so."""
        inside, found = self.inside, list(leaves(event.expr))
        if inside is None or not found or not all(isinstance(leaf, Size) for leaf in found):
            return False
        sizes = [leaf.ref for leaf in found if isinstance(leaf, Size)]
        return all(ref in inside.made or inside.rows.get(ref, (0, 0))[1] > inside.instance.first for ref in sizes)

    def _pieces(self) -> Iterator[tuple[Any, bool]]:
        """Yield the events, the marks and the inserted events, each with whether it is kept."""
        loops = {loop.instance.starts[0]: loop for loop in self.loops}
        ends = {loop.instance.end: loop for loop in self.loops}
        cut: tuple[int, int] = (0, 0)
        answers: dict[int, bool] = {}  # to the predicate that ends the last kept iteration
        operations = 0
        freed = {loop.token for loop in self.loops} - self.spared
        limits = {one.instance.starts[0]: one.limits() for one in self.whole if one.token in freed}
        trips = frozenset(position for loop in self.loops for position in loop.trips)
        for position, event in enumerate(self.old.events):
            yield from self._added(self.merged.inserted.pop(operations, ()))
            operations += isinstance(event, Op)
            if position in ends:
                yield from self._end(ends[position], event)
            yield _EventPosition(position), False
            if position in trips and isinstance(event, LoopEnd):
                event = LoopEnd(KEPT, event.place)
            yield from self._conditions(limits.get(position, ()))
            loop = loops.get(position)
            if loop is not None:
                place, count, kept = loop.place, loop.instance.count, self.kept(loop)
                args: tuple[Any, ...] = (count, kept)
                starts = loop.instance.limits
                if isinstance(count, TensorTermination):
                    args = (None, kept, count.go, count.limit)
                    answers[starts[kept] - 1] = self.old.events[starts[-1] - 1].outcome  # type: ignore[union-attr]
                if (whole := loop.instance.whole) is not None:
                    found = unread(self.old, loop.instance.asked, place)
                    asked = (Apply(operator.ge, (whole, loop.instance.least)), *loop.instance.asked)
                    yield from self._conditions((*found, *(NumberPredicate(expr, True, place) for expr in asked)))
                    if loop.full and loop.token in self.spared:  # sizes that no other condition fixes
                        same = Apply(operator.eq, (whole, loop.count))
                        yield from self._conditions([NumberPredicate(same, True, place)])
                yield self._mark(Op(begin_iterations, "begin_iterations", args, {}, (), loop.modes, place)), True
                cut = (starts[kept], loop.instance.end)
            if position in answers and isinstance(event, TensorPredicate | NumberPredicate):
                event = replace(event, outcome=answers[position])
            yield event, not (cut[0] <= position < cut[1] or id(event) in self.merged.omitted)
        yield from self._added(self.merged.inserted.pop(operations, ()))
        if len(self.old.events) in ends:
            yield from self._end(ends[len(self.old.events)], self.old.events[-1])
        yield _EventPosition(len(self.old.events)), False

    def _conditions(self, events: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
        """Yield conditions on trip counts, and mark them as such: several loops may have the same, and one of them is
        kept."""
        for event in events:
            self.conditions[id(event)] = event
            yield event, True

    def _mark(self, mark: Op) -> Op:
        return self.marks.setdefault(id(mark), mark)

    def _added(self, events: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
        """Yield inserted events, and mark them as such."""
        for event in events:
            self.added.add(id(event))
            yield event, True

    def _count(self, mark: Op, loop: AlignedLoop, operations: int) -> Op:
        """Return the mark for the end of a loop, and record the last values of its induction variables as expressions
        of the trip count. The trip count of a tensor-terminated loop is a tensor, too."""
        count: Any = loop.instance.count
        if isinstance(count, TensorTermination):
            number = len(self.numbers) + self.loops.index(loop)
            count = Fetch(number, operations, int)
            self.fetched[count.token] = loop.count
            mark = replace(mark, outs=(RenumberedRef(number),))
        for (first, step), value in zip(loop.instance.moving, loop.instance.counted(), strict=True):
            iterations = count if step == 1 else Apply(operator.mul, (count, step))
            expr = iterations if first == step else Apply(operator.add, (iterations, first - step))
            whole = loop.instance.whole
            if loop.instance.back and step == -1 and whole is not None and loop.until is not None:
                # It counts down from the limit of the trip count.
                left = Apply(operator.sub, (self.expr(whole), count))
                expr = Apply(operator.add, (left, first + 1 - value_of(self.old, whole)))
            self.counted.setdefault(value, []).append(self.expr(expr) if loop.until is None else expr)
        return mark

    def kept(self, loop: AlignedLoop) -> int:
        """Return how many iterations of the loop are kept."""
        return KEPT if loop.until is None else self.least

    def _end(self, loop: AlignedLoop, event: Any) -> Iterator[tuple[Any, bool]]:
        yield self._mark(Op(end_iterations, "end_iterations", (), {}, (), loop.modes, event.place)), True
        yield from self._added(self.merged.after(loop))

    def _renumber(self, pieces: list[tuple[Any, bool]]) -> None:
        """Compute the new numbers of tensors, and the new numbers of operations before each position. Rows that only
        dropped iterations use are lost; a tensor of the last iteration becomes that of the last kept one."""
        for loop in self.loops:
            by_place = {place: tensor for tensor, place in loop.made.items()}
            for tensor, (number, order) in loop.made.items():
                if number == loop.count - 1:
                    self.last[tensor] = by_place[self.kept(loop) - 1, order]
                else:
                    self.gone.add(tensor)  # only all of them together may be used
        dropped = {t for loop in self.loops for t, (n, _) in loop.made.items() if n >= self.kept(loop)}
        unbound = {loop: loop.unbound() for loop in self.loops}
        rows = {
            tensor
            for loop in self.loops
            for tensor, (source, which) in loop.rows.items()
            if which >= self.kept(loop) + loop.instance.first and source in unbound[loop]
        }
        # The elements of a list that is stacked into one tensor are used nowhere.
        there = {*self.old.access_paths, *made_by(event for event, _ in pieces)}
        left = there - dropped - rows
        kept = [number for number in range(len(self.old.tensors)) if number in left]
        self.numbers = {number: position for position, number in enumerate((*kept, *self.merged.numbers()))}
        self.lost = rows
        operations, loops = 0, iter(self.loops)
        self.after = [0]
        for event, stays in pieces:
            if not isinstance(event, Op):
                continue
            operations += stays
            ends = id(event) in self.marks and event.func is end_iterations
            if ends:
                self.within[id(next(loops)), len(self.after) - 1] = self.after[-1]
            if ends or id(event) in self.added:
                self.after[-1] = operations
            elif id(event) not in self.marks:  # a fetch at the begin of a loop is made before it
                self.after.append(operations)


@dataclass(frozen=True, slots=True)
class _EventPosition:
    """The position of an old event among the pieces."""

    position: int

"""Cuts the loops of a trace down to their first iterations, between marks, and renumbers tensors and events.

Which loops are cut down is decided by ``analysis.candidates`` and ``rewrites.fold``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import map_parts
from torchjanus.graph.ir.repetition import begin_iterations, end_iterations
from torchjanus.graph.loops.analysis.alignment import AlignedLoop
from torchjanus.graph.loops.analysis.merged_effects import MergedTrace
from torchjanus.graph.loops.roll.reversal import unread, value_of
from torchjanus.trace.actions import Extern, HeapWrite, HostLoop, Op
from torchjanus.trace.events import LoopEnd, Trace
from torchjanus.trace.facts import HostComputation, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.loops.records import KEPT, TensorTermination
from torchjanus.trace.recipes import (
    CollectedItems,
    Constant,
    NewObject,
    Number,
    ObjectReference,
    RowOf,
    TensorAt,
    TensorOf,
    map_recipe,
)
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, Size, Traced, leaves, plain, trace_value

__all__ = ["TruncatedLoops"]


@dataclass(slots=True)
class TruncatedLoops:
    """Makes the folded trace. Raises NotMergeable."""

    old: Trace
    loops: list[AlignedLoop]
    least: int = KEPT  # kept iterations of a tensor-terminated loop
    spared: frozenset[Any] = frozenset()  # tokens of trip counts on which conditions stay
    whole: tuple[AlignedLoop, ...] = ()  # loops that are not folded: their trip counts stay fixed
    numbers: dict[int, int] = field(default_factory=dict)  # old tensor -> new
    after: list[int] = field(default_factory=list)  # old number of operations before a position -> new number
    within: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  # the same for the last iteration of a loop, by its id
    recipes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    fetched: dict[Any, Any] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # tensor of the last iteration -> that of the last kept one
    gone: set[int] = field(default_factory=set)  # tensors of the other iterations
    counted: dict[int, list[Any]] = field(
        default_factory=dict
    )  # last value of induction variables -> their expressions
    lost: set[int] = field(default_factory=set)  # rows of a tensor that only dropped iterations use
    inside: AlignedLoop | None = None
    added: set[int] = field(default_factory=set)  # inserted operations, by id
    merged: MergedTrace = field(init=False)
    builds: dict[int, int] = field(default_factory=dict)  # old number of a new object -> new one
    externs: int = 0  # extern calls of dropped iterations so far
    marks: dict[int, Op] = field(default_factory=dict)  # its own marks: inner loops may have others
    ended: list[int] = field(default_factory=list)  # positions among the new events at which the loops end
    said: dict[int, Any] = field(default_factory=dict)  # conditions on trip counts, by the event's id
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
        said: set[Any] = set()  # tokens of the conditions on trip counts so far
        for event, kept in pieces:
            if isinstance(event, _EventPosition):
                self.places[event.position] = len(events)
                continue
            if id(event) in self.said:
                if event.token in said:
                    continue
                said.add(event.token)
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
                events.append(self._event(event))
            calls += isinstance(event, Extern) and not kept
            if isinstance(event, HostLoop):
                self.externs, calls = self.externs + calls, 0
        for fetch, values in self.merged.fetched():
            self.fetched[self._expr(fetch).token] = values
        for inside in (*self.loops, None):  # fetches of kept iterations, then those after the loop
            self.inside = inside
            for token, value in old.fetched.items():
                self._fetched(token, value)
        made = Trace(
            events=events,
            tensors=[None] * (len(self.numbers) + len(self.loops)),
            access_paths={self._number(number): access_path for number, access_path in old.access_paths.items()},
            owners=old.owners,
            result=self._recipe(self.merged.result) if old.result is not None else None,
            fetched=self.fetched,
            alive=old.alive,
            ambient=old.ambient,
            failures=old.failures,
        )
        made.recipes = self.recipes
        for number, tensor in enumerate(old.tensors):
            if number in old.access_paths:
                made.tensors[self._number(number)] = tensor
        return made

    def _is_constant(self, event: NumberPredicate | Specialization) -> bool:
        """Whether the condition is computed from the sizes of tensors of the iterations only. They are the same for all
        iterations, or those of the first iteration say so."""
        inside, found = self.inside, list(leaves(event.expr))
        if inside is None or not found or not all(isinstance(leaf, Size) for leaf in found):
            return False
        sizes = [leaf.ref for leaf in found if isinstance(leaf, Size)]
        return all(ref in inside.made or inside.rows.get(ref, (0, 0))[1] > inside.iterations.first for ref in sizes)

    def _pieces(self) -> Iterator[tuple[Any, bool]]:
        """Yield the events, the marks and the inserted events, each with whether it is kept."""
        loops = {loop.iterations.starts[0]: loop for loop in self.loops}
        ends = {loop.iterations.end: loop for loop in self.loops}
        cut: tuple[int, int] = (0, 0)
        answers: dict[int, bool] = {}  # to the predicate that ends the last kept iteration
        operations = 0
        freed = {loop.token for loop in self.loops} - self.spared
        limits = {one.iterations.starts[0]: one.limits() for one in self.whole if one.token in freed}
        trips = frozenset(position for loop in self.loops for position in loop.trips)
        for position, event in enumerate(self.old.events):
            yield from self._added(self.merged.inserted.pop(operations, ()))
            operations += isinstance(event, Op)
            if position in ends:
                yield from self._end(ends[position], event)
            yield _EventPosition(position), False
            if position in trips and isinstance(event, LoopEnd):
                event = LoopEnd(KEPT, event.place)
            yield from self._said(limits.get(position, ()))
            loop = loops.get(position)
            if loop is not None:
                place, count, kept = loop.place, loop.iterations.count, self.kept(loop)
                args: tuple[Any, ...] = (count, kept)
                starts = (*loop.iterations.starts, loop.iterations.end)
                if isinstance(count, TensorTermination):
                    args = (None, kept, count.go, count.limit)
                    answers[starts[kept] - 1] = self.old.events[starts[-1] - 1].outcome  # type: ignore[union-attr]
                if (whole := loop.iterations.whole) is not None:
                    found = unread(self.old, loop.iterations.asked, place)
                    asked = (Apply(operator.ge, (whole, loop.iterations.least)), *loop.iterations.asked)
                    yield from self._said((*found, *(NumberPredicate(expr, True, place) for expr in asked)))
                    if loop.full and loop.token in self.spared:  # sizes that no other condition fixes
                        yield from self._said([NumberPredicate(Apply(operator.eq, (whole, loop.count)), True, place)])
                yield self._mark(Op(begin_iterations, "begin_iterations", args, {}, (), loop.modes, place)), True
                cut = (starts[kept], loop.iterations.end)
            if position in answers and isinstance(event, TensorPredicate | NumberPredicate):
                event = replace(event, outcome=answers[position])
            yield event, not (cut[0] <= position < cut[1] or id(event) in self.merged.omitted)
        yield from self._added(self.merged.inserted.pop(operations, ()))
        if len(self.old.events) in ends:
            yield from self._end(ends[len(self.old.events)], self.old.events[-1])
        yield _EventPosition(len(self.old.events)), False

    def _said(self, events: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
        """Yield conditions on trip counts, and mark them as such: several loops may have the same, and one of them is
        kept."""
        for event in events:
            self.said[id(event)] = event
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
        count: Any = loop.iterations.count
        if isinstance(count, TensorTermination):
            number = len(self.numbers) + self.loops.index(loop)
            count = Fetch(number, operations, int)
            self.fetched[count.token] = loop.count
            mark = replace(mark, outs=(_RenumberedRef(number),))
        for (first, step), value in zip(loop.iterations.moving, loop.iterations.counted(), strict=True):
            iterations = count if step == 1 else Apply(operator.mul, (count, step))
            expr = iterations if first == step else Apply(operator.add, (iterations, first - step))
            whole = loop.iterations.whole
            if loop.iterations.back and step == -1 and whole is not None and loop.until is not None:
                # It counts down from the limit of the trip count.
                left = Apply(operator.sub, (self._expr(whole), count))
                expr = Apply(operator.add, (left, first + 1 - value_of(self.old, whole)))
            self.counted.setdefault(value, []).append(self._expr(expr) if loop.until is None else expr)
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
            if which >= self.kept(loop) + loop.iterations.first and source in unbound[loop]
        }
        # The elements of a list that is stacked into one tensor are used nowhere.
        there = {ref.number for event, _ in pieces if isinstance(event, Op) for ref in event.outs} | set(
            self.old.access_paths
        )
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

    # renumbering

    def _number(self, tensor: int) -> int:
        if self.inside is None or tensor not in self.inside.made:
            if tensor in self.gone:
                raise NotMergeable("loop-results", "what an iteration before the last has made is used after the loop")
            tensor = self.last.get(tensor, tensor)
        if tensor not in self.numbers:
            raise NotMergeable("loop-results", "a tensor of the loop is used where it is not known")
        return self.numbers[tensor]

    def _event(self, event: Any) -> Any:
        made = event
        if isinstance(event, Op):
            made = replace(
                event, args=self._values(event.args), kwargs=self._values(event.kwargs), outs=self._outs(event)
            )
        elif isinstance(event, TensorPredicate):
            made = replace(event, ref=TensorRef(self._number(event.ref.number)), after=self._position(event.after))
        elif isinstance(event, NumberPredicate | Specialization | HostComputation):
            made = replace(event, expr=self._expr(event.expr))
        elif isinstance(event, Extern):
            made = replace(event, after=self._position(event.after), number=event.number - self.externs)
        elif isinstance(event, HostLoop):
            made = replace(event, count=self._expr(event.count), events=tuple(map(self._event, event.events)))
        elif isinstance(event, HeapWrite) and isinstance(event.key, Traced):
            made = replace(event, key=trace_value(plain(event.key), self._expr(event.key.expr)))
        if id(event) in self.merged.recipes:
            self.recipes[id(made)] = tuple(map(self._recipe, self.merged.recipes[id(event)]))
        return made

    def _outs(self, op: Op) -> tuple[TensorRef, ...]:
        """Return the outputs: an unbinding whose rows the iterations use keeps the rows of the kept iterations."""
        return tuple(
            ref if isinstance(ref, _RenumberedRef) else TensorRef(self._number(ref.number))
            for ref in op.outs
            if isinstance(ref, _RenumberedRef) or ref.number not in self.lost
        )

    def _position(self, after: int) -> int:
        inside = self.within.get((id(self.inside), after))
        return self.after[after] if inside is None else inside

    def _values(self, value: Any) -> Any:
        if isinstance(value, TensorRef):
            return TensorRef(value.number if isinstance(value, _RenumberedRef) else self._number(value.number))
        if isinstance(value, list | tuple) and value and all(isinstance(part, TensorRef) for part in value):
            value = self._all_iterations(value)
        made = map_parts(value, self._values)
        return self._expr(value) if made is value else made

    def _all_iterations(self, value: Any) -> Any:
        """Replace, within a sequence of tensors, the tensors of all iterations (first to last, or last to first) by
        those of the kept iterations. There may be more before and after them (``[y, *rows]``)."""
        found = list(value)
        for loop in self.loops:
            at = 0 if loop.until is None else len(found)
            while at + loop.count <= len(found):
                number, order = loop.made.get(found[at].number, (-1, -1)) if type(found[at]) is TensorRef else (-1, -1)
                numbers = range(loop.count) if not number else range(loop.count - 1, -1, -1)
                refs, whole = found[at : at + loop.count], [(n, order) for n in numbers]
                if [loop.made.get(ref.number) for ref in refs if type(ref) is TensorRef] == whole:
                    rows = refs[-KEPT:] if number else refs[:KEPT]
                    found[at : at + loop.count] = [_RenumberedRef(self.numbers[ref.number]) for ref in rows]
                    at += KEPT
                else:
                    at += 1
        return type(value)(found)

    def _expr(self, expr: Any) -> Any:
        if isinstance(expr, Fetch):
            return replace(expr, ref=self._number(expr.ref), after=self._position(expr.after))
        if isinstance(expr, Size) and self.inside is not None and expr.ref in self.inside.made:
            return self.old.fetched[expr.token]
        if isinstance(expr, Size) and self.inside is not None and expr.ref in self.inside.rows:
            return self._of_row(expr, self.inside)
        if isinstance(expr, Size):
            return replace(expr, ref=self._number(expr.ref), after=self._position(expr.after))
        if isinstance(expr, Apply):
            args = tuple(self._expr(arg) for arg in expr.args)
            known = self.inside is not None and not any(isinstance(arg, Expr) for arg in args)
            return expr.func(*args) if known else Apply(expr.func, args)
        return expr

    def outside(self, expr: Expr) -> Any:
        """Return an expression over values from outside of the loops, renumbered."""
        self.inside = None
        return self._expr(expr)

    def _of_row(self, expr: Size, inside: AlignedLoop) -> Size:
        """Return the size of a row as a size of the tensor that was unbound."""
        source = self.old.events[inside.rows[expr.ref][0]]
        assert isinstance(source, Op)
        along = source.args[1] if len(source.args) > 1 else source.kwargs.get("dim", 0)
        if along != 0 or expr.dim < 0:
            raise NotMergeable("loop-sizes", "the size of a row is asked for that is not one along the first dimension")
        made = Size(self._number(source.args[0].number), expr.dim + 1, self._position(inside.positions[0]))
        self.fetched[made.token] = self.old.fetched[expr.token]
        return made

    def _fetched(self, token: Any, value: Any) -> None:
        try:
            if token[0] == "fetch":
                self.fetched["fetch", self._number(token[1]), self._position(token[2]), *token[3:]] = value
            elif token[0] == "size":
                self.fetched["size", self._number(token[1]), token[2], self._position(token[3])] = value
        except NotMergeable:
            return  # it is unused, or the expression that uses it raises as well

    def _recipe(self, recipe: Any) -> Any:
        if isinstance(recipe, TensorOf) and (row := self.merged.row_of(recipe.ref.number)) is not None:
            recipe = row
        if isinstance(recipe, TensorOf):
            return replace(recipe, ref=TensorRef(self._number(recipe.ref.number)))
        if isinstance(recipe, RowOf):
            return replace(recipe, ref=TensorRef(self._number(recipe.ref.number)))
        if isinstance(recipe, ObjectReference):
            return ObjectReference(self._build(recipe.number))
        if isinstance(recipe, TensorAt):
            return TensorAt(TensorRef(self._number(recipe.ref.number)), self._position(recipe.after))
        if isinstance(recipe, Constant) and type(recipe.value) is int and recipe.value in self.counted:
            found = {expr.token: expr for expr in self.counted[recipe.value]}
            if len(found) > 1:
                raise NotMergeable(
                    "loop-count-used", "it is not known which loop has counted a number that leaves the step"
                )
            return Number(*found.values())
        if isinstance(recipe, Number):
            return Number(self._expr(recipe.expr))
        made = map_recipe(recipe, self._recipe)
        if isinstance(made, NewObject):
            return replace(made, number=self._build(made.number))
        return replace(made, count=self._expr(made.count)) if isinstance(made, CollectedItems) else made

    def _build(self, number: int) -> int:
        """Return the new number of a new object: the number of new objects changes with the trip count."""
        return self.builds.setdefault(number, len(self.builds))


@dataclass(frozen=True, slots=True)
class _EventPosition:
    """The position of an old event among the pieces."""

    position: int


class _RenumberedRef(TensorRef):
    """A tensor that already has its new number."""

"""Lets each iteration pass on values that are used more than one iteration later (``a, b = b, a + b``).

A rolled iteration may use only what the preceding one made. So each iteration also returns a copy of what the preceding
one made; this is repeated for larger distances. A rewriting of traces; what is computed stays the same.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.core.trees import map_leaves
from torchjanus.graph.loops.analysis.alignment import TRAINING
from torchjanus.graph.loops.rewrites.accumulators import changed_memory, used_as_objects
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.records import KEPT, LoopInstance, TensorTermination
from torchjanus.trace.operations import made_by, op_counts, op_positions
from torchjanus.trace.rewriting import AddingRewriter
from torchjanus.trace.terms import TensorRef

__all__ = ["loop_carried"]

# The largest distance, and the minimum trip count: from then on no loop-carried value is still the one from before
# the loop.
DEEPEST = KEPT


@dataclass(frozen=True, slots=True)
class _Value:
    """A value that each iteration makes at the same place and that is used later than in the next iteration. ``made``:
    the tensor of each iteration. ``first``: the one in its place before the first iteration. ``places``: where
    ``first`` is used: (position of the operation, index of the tensor among its operands)."""

    made: tuple[int, ...]
    first: int
    places: frozenset[tuple[int, int]]
    leaves: bool  # it may leave the call: those of earlier iterations do not


@dataclass(slots=True)
class _Loop:
    """A loop, with the operations of its iterations by position, and tensor -> (iteration, index within the
    iteration)."""

    trace: Trace
    instance: LoopInstance
    ops: list[list[int]] = field(default_factory=list)
    made: dict[int, tuple[int, int]] = field(default_factory=dict)
    at: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        events, spans = self.trace.events, self.instance.spans
        known = {*self.trace.access_paths, *made_by(events[: spans[0][0]])}
        self.ops = op_positions(events, spans)
        for number, positions in enumerate(self.ops):
            order = 0
            for at in positions:
                for ref in events[at].outs:  # type: ignore[union-attr]
                    if ref.number not in known:
                        known.add(ref.number)
                        self.made[ref.number] = (number, order)
                        self.at[number, order] = ref.number
                        order += 1

    def taken(self, at: int) -> list[int]:
        """Return the tensors that an operation uses, in order."""
        op = self.trace.events[at]
        assert isinstance(op, Op)
        return [ref.number for ref in op.inputs]


def loop_carried(trace: Trace) -> Trace:
    """Return the trace in which iterations use only values of the preceding iteration; the trace itself if they do
    already, or cannot."""
    for number in range(len(trace.loop_instances)):
        for _ in range(DEEPEST):
            instance = trace.loop_instances[number]
            if isinstance(instance.count, TensorTermination) or len(instance.starts) < DEEPEST:
                break
            loop = _Loop(trace, instance)
            values = list(_values(loop))
            if not values:
                break
            trace = _CarriedDistanceRewriter(loop, values).trace()
    return trace


def _values(loop: _Loop) -> Iterator[_Value]:
    trace, count = loop.trace, len(loop.instance.starts)
    if len({len(ops) for ops in loop.ops}) > 1:
        return
    wanted: dict[int, set[tuple[int, int, int]]] = {}  # index -> (operation of an iteration, operand, distance)
    for number, ops in enumerate(loop.ops):
        for position, at in enumerate(ops):
            for which, tensor in enumerate(loop.taken(at)):
                iteration, order = loop.made.get(tensor, (number, -1))
                if number - iteration > 1:
                    wanted.setdefault(order, set()).add((position, which, number - iteration))
    for tensor in _afterwards(loop):
        if count - DEEPEST <= loop.made[tensor][0] < count - 1:
            wanted.setdefault(loop.made[tensor][1], set())
    if any(far > DEEPEST for places in wanted.values() for _, _, far in places):
        return
    if not wanted or any(trace.events[at].name in TRAINING for ops in loop.ops for at in ops):  # type: ignore[union-attr]
        return
    changed = changed_memory(trace)
    known = used_as_objects(trace.events)
    leaving = trace.leaving()
    for order, places in wanted.items():
        made = tuple(loop.at.get((number, order), -1) for number in range(count))
        first = _first(loop, order, places)
        if -1 in made or first is None or made[0] not in trace.kinds or not known.isdisjoint((first, *made)):
            continue
        memory = [trace.memory[number] for number in (first, *made)]
        if not all(memory) or not changed.isdisjoint(memory):
            continue  # it is modified in place: a copy would differ
        begun = frozenset((loop.ops[far - 1][position], which) for position, which, far in places)
        yield _Value(made, first, begun, leaving.isdisjoint(made[:-2]))


def _afterwards(loop: _Loop) -> Iterator[int]:
    """Yield tensors of iterations that are used after the loop, or leave the call, one at a time."""
    trace, leaving = loop.trace, loop.trace.leaving()
    for event in trace.events[loop.instance.end :]:
        if isinstance(event, Op):
            alone = (value for value in (*event.args, *event.kwargs.values()) if isinstance(value, TensorRef))
            yield from (ref.number for ref in alone if ref.number in loop.made)
    yield from (number for number in leaving if number in loop.made)


def _first(loop: _Loop, order: int, places: set[tuple[int, int, int]]) -> int | None:
    """Return the tensor before the loop in place of what each iteration makes here; None if the uses disagree."""
    found: set[int | None] = set()
    for position, which, far in places:
        if far - 1 >= len(loop.ops):
            return None
        taken = loop.taken(loop.ops[far - 1][position])
        found.add(taken[which] if which < len(taken) else None)
    for position, at in enumerate(loop.ops[1]):
        for which, tensor in enumerate(loop.taken(at)):
            if loop.made.get(tensor) == (0, order):
                taken = loop.taken(loop.ops[0][position])
                found.add(taken[which] if which < len(taken) else None)
    if len(found) != 1:
        return None
    (first,) = found
    return None if first is None or first in loop.made else first


class _CarriedDistanceRewriter(AddingRewriter):
    def __init__(self, loop: _Loop, values: list[_Value]) -> None:
        super().__init__(loop.trace)
        self.loop, self.values_ = loop, values
        self.taking = False  # the arguments of an operation are being rewritten
        past = op_counts(self.old.events)
        self.starts = [past[at] for at in loop.instance.limits]
        self.copies: dict[int, tuple[_Value, int, int]] = {}  # tensor -> (value, iteration, copy)
        self.given: list[list[tuple[int, int]]] = []  # per iteration: (tensor, copy)
        firsts = {value.made: self.new_like(value.made[0]) for value in values}
        self.begun = {place: firsts[value.made] for value in values for place in value.places}
        self.given.append([(value.first, firsts[value.made]) for value in values])
        for number in range(len(loop.instance.starts) - 1):
            row = []
            for value in values:
                copy = self.new_like(value.made[0])
                self.copies[value.made[number]] = value, number, copy
                row.append((value.made[number], copy))
            self.given.append(row)

    def tensor(self, number: int, after: int) -> int:
        if not self.taking or number not in self.copies or after < self.starts[0]:
            return number
        value, made, copy = self.copies[number]
        if after < self.starts[-1]:
            iteration = bisect.bisect_right(self.starts, after) - 1
            return copy if iteration - made > 1 else number
        return copy if len(value.made) - DEEPEST <= made else number

    def operation(self, op: Op, after: int) -> Op:
        self.taking = True
        try:
            return super().operation(op, after)
        finally:
            self.taking = False

    def final(self, number: int) -> int:
        value, made, copy = self.copies.get(number, (None, -1, -1))
        return copy if value is not None and value.leaves and made == len(value.made) - 2 else number

    def position(self, after: int) -> int:
        return after + len(self.values_) * sum(end < after for end in self.starts[1:])

    def expr(self, expr: Any) -> Any:
        """Return the expression; it keeps fetching from the original tensor."""
        taking, self.taking = self.taking, False
        try:
            return super().expr(expr)
        finally:
            self.taking = taking

    def values(self, value: Any, after: int) -> Any:
        taking = self.taking
        if isinstance(value, list | tuple) and after >= self.starts[-1]:
            numbers = [part.number for part in value if isinstance(part, TensorRef)]
            found = [id(self.copies[number][0]) for number in numbers if number in self.copies]
            self.taking &= all(found.count(one) == 1 for one in found)  # else it may be a list of all iterations
        try:
            return super().values(value, after)
        finally:
            self.taking = taking

    def trace(self) -> Trace:
        old, instance = self.old, self.loop.instance
        limits = [*instance.starts[1:], instance.end]
        events, _, begins = self.walk(
            lambda at, event, after: (self._rewritten(event, at, after),),
            lambda at: self._copies(limits.index(at)) if at in limits else (),
        )
        moved = self.moved(begins)
        moved["loop_instances"] = [
            replace(new, least=DEEPEST) if one is instance else new
            for one, new in zip(old.loop_instances, moved["loop_instances"], strict=True)
        ]
        return self.made(events, **moved)

    def _copies(self, iteration: int) -> Iterator[Op]:
        first = self.old.events[self.loop.ops[iteration][0]]
        assert isinstance(first, Op)
        modes = replace(first.modes, grad=True)  # gradients flow through the copy
        for given, copy in self.given[iteration]:
            yield Op(torch.clone, "torch.clone", (TensorRef(given),), {}, (TensorRef(copy),), modes, first.place)

    def _rewritten(self, event: Any, at: int, operations: int) -> Any:
        made = self.event(event, operations)
        if isinstance(event, Op) and any(place == at for place, _ in self.begun):
            numbers = iter(range(len(self.loop.taken(at))))
            made = replace(made, **{
                name: self._begun(getattr(made, name), at, numbers) for name in ("args", "kwargs")
            })  # fmt: skip
        return made

    def _begun(self, value: Any, at: int, numbers: Iterator[int]) -> Any:
        """Return the arguments, with the value from before the loop where the first iterations use it."""

        def leaf(part: Any) -> Any:
            is_ref = isinstance(part, TensorRef)
            return TensorRef(self.begun.get((at, next(numbers)), part.number)) if is_ref else part

        return map_leaves(value, leaf)

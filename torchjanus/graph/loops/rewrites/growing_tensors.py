"""Moves joins to a tensor that grows in each iteration (``ys = torch.cat([ys, word], 1)``) behind the loop, as one
join.

Iterations read only the end of such a tensor, which the preceding iteration has appended: so all iterations have
tensors of the same sizes. A rewriting of traces.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.graph.loops.rewrites.accumulators import changed_memory, knows
from torchjanus.graph.loops.rewrites.filled_tensors import rewritten_loops, uses
from torchjanus.trace.actions import Op
from torchjanus.trace.events import LoopEnd, Trace
from torchjanus.trace.loops.records import LoopInstance
from torchjanus.trace.operands import refs_in
from torchjanus.trace.operations import op_counts, ops_of, used_by
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef

__all__ = ["grown_iterations"]

_JOINING = frozenset({"torch.cat", "torch.concat", "torch.concatenate"})
_LOOKING = "Tensor.__getitem__"


@dataclass(frozen=True, slots=True)
class _GrowingTensor:
    """A tensor that grows. ``first``: the tensor before the loop. ``joins``: per iteration the position of the join.
    ``parts``: what is appended. ``wholes``: the result. ``looks``: positions of reads of its end. ``dim``: the
    dimension."""

    first: int
    joins: tuple[int, ...]
    parts: tuple[int, ...]
    wholes: tuple[int, ...]
    looks: tuple[int, ...]
    dim: int


def grown_iterations(trace: Trace, without: Container[int] = ()) -> tuple[Trace, frozenset[int]]:
    """Return the trace in which joins of loops with a changeable trip count are moved behind them, and the indices of
    these loops; the trace itself if there are none. ``without``: see ``filled_iterations``."""
    return rewritten_loops(trace, without, _grown, _GrowthRewriter)


def _grown(trace: Trace, instance: LoopInstance) -> Iterator[_GrowingTensor]:
    limits = instance.spans
    for at in range(*limits[0]):
        op = trace.events[at]
        if not isinstance(op, Op) or (joined := _joined(trace, op)) is None:
            continue
        first, part, dim = joined
        joins, parts, wholes = [at], [part], [op.outs[0].number]
        for start, end in limits[1:]:
            following = [
                (position, event, found)
                for position in range(start, end)
                if isinstance(event := trace.events[position], Op)
                and (found := _joined(trace, event)) is not None
                and found[0] == wholes[-1]
            ]
            if len(following) != 1 or following[0][1].place != op.place or following[0][2][2] != dim:
                break
            ((position, event, (_, part, _)),) = following
            joins.append(position)
            parts.append(part)
            wholes.append(event.outs[0].number)
        if len(joins) < len(limits) or len(set(parts)) < len(parts):
            continue
        looks = _looks(trace, instance, (first, *wholes[:-1]), dim)
        one = _GrowingTensor(first, tuple(joins), tuple(parts), tuple(wholes), looks, dim)
        if _is_alone(trace, instance, one):
            yield one


def _joined(trace: Trace, op: Op) -> tuple[int, int, int] | None:
    """Return the two tensors that the operation joins, and the dimension; None for other operations."""
    if op.name not in _JOINING or set(op.kwargs) - {"dim"} or not op.args or len(op.outs) != 1:
        return None
    given, dim = op.args[0], op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else 0)
    if type(dim) is not int or not isinstance(given, list | tuple) or len(given) != 2:
        return None
    first, part = given
    if not isinstance(first, TensorRef) or not isinstance(part, TensorRef):
        return None
    kinds = [trace.kinds.get(ref.number) for ref in (first, part, *op.outs)]
    if None in kinds or len({(len(kind[0]), kind[2]) for kind in kinds if kind}) > 1:
        return None
    size = trace.kinds[part.number][0]
    dim += len(size) if dim < 0 else 0
    return (first.number, part.number, dim) if 0 <= dim < len(size) and size[dim] else None


def _looks(trace: Trace, instance: LoopInstance, wholes: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Return the positions at which iterations read the last element of one of these tensors in this dimension."""
    found = []
    for at in range(instance.starts[0], instance.end):
        op = trace.events[at]
        if isinstance(op, Op) and op.name == _LOOKING and isinstance(op.args[0], TensorRef):
            key = op.args[1] if isinstance(op.args[1], tuple) else (op.args[1],)
            plain = all(type(part) in (int, slice) for part in key) and len(key) > dim
            last = plain and (key[dim] == -1 or key[dim] == slice(-1, None))
            # The dimensions before it are read whole, so none of them is dropped.
            if op.args[0].number in wholes and last and all(part == slice(None) for part in key[:dim]):
                found.append(at)
    return tuple(found)


def _is_alone(trace: Trace, instance: LoopInstance, one: _GrowingTensor) -> bool:
    """Whether nothing else reads the tensor before the loop ends, and what is read is not modified."""
    looks: list[Any] = [trace.events[at] for at in one.looks]
    looked = [op.args[0].number for op in looks]
    for whole, added in zip((one.first, *one.wholes[:-1]), (None, *one.parts), strict=False):
        if added is not None or looked:
            least = 0 if added is None else 1  # the event that makes it
            if uses(trace, instance, whole) != least + 1 + looked.count(whole):
                return False
    last = uses(trace, instance, one.wholes[-1])
    later = used_by(trace.events[instance.end :])
    gone = {*one.wholes[:-1], *(op.outs[0].number for op in looks)}
    if last != 1 or gone & (trace.leaving() | later):
        return False
    numbers = {one.first, *one.wholes, *one.parts}
    if any(ref.number in numbers for op in ops_of(trace.events) if knows(op) for ref in refs_in(op.args)):
        return False
    changed = changed_memory(trace)
    memory = [trace.memory[number] for number in (one.first, *one.wholes[:-1], *one.parts)]
    if not all(memory) or not changed.isdisjoint(memory):
        return False
    width = {trace.kinds[number][0][one.dim] for number in one.parts}
    return len(width) == 1 and (not looks or trace.kinds[one.first][0][one.dim] >= max(width))


class _GrowthRewriter(TraceRewriter):
    """Writes the new trace, with one join behind the loop."""

    def __init__(self, old: Trace, instance: LoopInstance, one: _GrowingTensor) -> None:
        super().__init__(old)
        self.one, self.instance, self.new = one, instance, len(old.tensors)
        self.ended = instance.end  # the last of the events for the end of the loop
        while any(isinstance(event, LoopEnd) for event in old.events[self.ended + 1 : self.ended + 2]):
            self.ended += 1
        past = op_counts(old.events)
        self.removed = [past[at] for at in one.joins]
        self.begun, self.whole = past[instance.starts[0]], past[self.ended]
        self.behind = False
        # What the iterations read: what was appended last.
        self.ends = {one.first: self.new, **dict(zip(one.wholes[:-1], one.parts, strict=False))}

    def position(self, after: int) -> int:
        later = after > self.whole or (after == self.whole and self.behind)
        ahead = bool(self.one.looks) and after > self.begun
        return after - sum(one < after for one in self.removed) + later + ahead

    def trace(self) -> Trace:
        old, one, end = self.old, self.one, self.instance.end
        joining = old.events[one.joins[0]]
        assert isinstance(joining, Op)
        modes, place = joining.modes, joining.place

        def ahead(position: int) -> Iterator[Op]:
            if position == self.instance.starts[0] and one.looks:
                width = old.kinds[one.parts[0]][0][one.dim]
                args = (TensorRef(one.first), (*(slice(None),) * one.dim, slice(-width, None)))
                yield Op(torch.Tensor.__getitem__, _LOOKING, args, {}, (TensorRef(self.new),), modes, place)

        def step(position: int, event: Any, after: int) -> Iterator[Any]:
            if position in one.joins:
                return
            made = self.event(event, after)
            if position in one.looks and isinstance(event, Op):
                made = replace(made, args=(TensorRef(self.ends[event.args[0].number]), *event.args[1:]))
            yield made
            if position == self.ended:
                parts = [TensorRef(number) for number in (one.first, *one.parts)]
                joined = (parts, one.dim) if one.dim else (parts,)
                yield Op(torch.cat, "torch.cat", joined, {}, (TensorRef(one.wholes[-1]),), modes, place)
                self.behind = True

        events, _, places = self.walk(step, ahead)
        # The last event of the last iteration stays within it, though the join after it is removed.
        begins = [*(min(at, places[end] - 1) for at in places[:end]), *places[end:]]
        size, *rest = old.kinds[one.parts[0]]
        kinds = {**old.kinds, self.new: (size, *rest)}
        memory = [*old.memory, old.memory[one.first]]
        return self.made(events, tensors=[*old.tensors, None], memory=memory, kinds=kinds, **self.moved(begins, places))

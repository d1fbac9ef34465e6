"""Rewrites loops over the rows of a tensor from last to first as loops from first to last over the reversed tensor.

A rewriting of traces, operation by operation: no event is added, and no position changes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.access_path import Step
from torchjanus.core.errors import Place
from torchjanus.graph.ir.dimensions import geometries, is_size
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.expressions import evaluate
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.loops.records import LoopInstance
from torchjanus.trace.operations import op_counts, op_positions, ops_of
from torchjanus.trace.values import Apply, Expr, Read, Size, leaves

__all__ = ["SELECT_BACK", "UNBINDING", "UNBIND_BACK", "reversed_loops", "select_back", "size_of", "unread", "value_of"]


def unbind_back(tensor: torch.Tensor, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """Return the rows of a tensor, the last one first."""
    return tensor.unbind(dim)[::-1]


def select_back(tensor: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """Return a row, counted from the last one."""
    return tensor.select(dim, tensor.size(dim) - 1 - index)


UNBIND_BACK, SELECT_BACK = unbind_back.__name__, select_back.__name__
UNBINDING = ("Tensor.unbind", "torch.unbind")


def reversed_loops(trace: Trace) -> Trace:
    """Return the trace with its reverse loops rewritten; the trace itself if there are none."""
    loops = [one for one in trace.loop_instances if len(one.starts) > 1 and isinstance(one.count, Expr)]
    events: dict[int, Op] = {}
    iterations = {id(one): one for one in trace.loop_instances}
    consumers = _consumers(trace) if loops else {}
    for loop in loops:
        events.update(_unbindings(trace, loop, consumers))
        if found := dict(_selections(trace, loop)):
            events.update((position, op) for position, (op, _) in found.items())
            asked = {expr.token: expr for _, expr in found.values() if expr is not None}
            iterations[id(loop)] = replace(loop, asked=tuple(asked.values()))
    if not events:
        return trace
    written = [events.get(position, event) for position, event in enumerate(trace.events)]
    made = replace(trace, events=written, loop_instances=[iterations[id(one)] for one in trace.loop_instances])
    made.alive = [*trace.alive, trace]
    made.fetched = {**trace.fetched, **dict(_sizes(made))}
    return made


def _sizes(trace: Trace) -> Iterator[tuple[Any, int]]:
    """Yield the values of the sizes in the predicates of the loops."""
    for leaf in (leaf for loop in trace.loop_instances for expr in loop.asked for leaf in leaves(expr)):
        if isinstance(leaf, Size) and (length := _length(trace, leaf.ref)) is not None:
            yield leaf.token, length[leaf.dim]


def _iterations(loop: LoopInstance, position: int) -> int | None:
    """Return the index of the iteration at this position; None outside of the loop."""
    if not loop.starts or not loop.starts[0] <= position < loop.end:
        return None
    return sum(start <= position for start in loop.starts) - 1


def _consumers(trace: Trace) -> dict[int, list[int]]:
    """Return, for each row of an unbinding, the positions of the operations that use it."""
    unbound = (event for event in ops_of(trace.events) if event.name in UNBINDING)
    consumers: dict[int, list[int]] = {ref.number: [] for event in unbound for ref in event.outs}
    for position, event in enumerate(trace.events if consumers else ()):
        for number in (ref.number for ref in event.inputs) if isinstance(event, Op) else ():
            if number in consumers:
                consumers[number].append(position)
    return consumers


def _unbindings(trace: Trace, loop: LoopInstance, consumers: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, Op]]:
    """Yield the unbindings whose rows this loop uses from last to first, with the rows in that order."""
    made: dict[int, tuple[int, int]] = {}  # row -> which unbinding, index
    for position, event in enumerate(trace.events[: loop.starts[0]]):
        if isinstance(event, Op) and event.name in UNBINDING and len(event.outs) == len(loop.starts):
            made.update((ref.number, (position, which)) for which, ref in enumerate(event.outs))
    taken: dict[int, set[int | None]] = {}
    for number, (unbinding, which) in made.items():
        for position in consumers[number]:
            number_of_iteration = _iterations(loop, position)
            down = number_of_iteration is not None and which == len(loop.starts) - 1 - number_of_iteration
            taken.setdefault(unbinding, set()).add(which if down else None)
    for unbinding, which_ones in taken.items():
        if which_ones == set(range(len(loop.starts))):
            op = trace.events[unbinding]
            assert isinstance(op, Op)
            yield unbinding, replace(op, func=unbind_back, outs=op.outs[::-1])


def _selections(trace: Trace, loop: LoopInstance) -> Iterator[tuple[int, tuple[Op, Expr | None]]]:
    """Yield the selections of rows by a decreasing index, rewritten with an increasing one, and the predicate that must
    hold for that."""
    rows = op_positions(trace.events, loop.spans)
    if len({len(row) for row in rows}) > 1:
        return
    before = op_counts(trace.events)
    assert isinstance(loop.count, Expr)
    for column in zip(*rows, strict=True):
        ops: list[Any] = [trace.events[position] for position in column]
        if any(op.name != "Tensor.__getitem__" or op.args[0] != ops[0].args[0] or len(op.outs) != 1 for op in ops):
            continue
        number = ops[0].args[0].number
        length, found = _length(trace, number), _descent([op.args[1] for op in ops])
        if found is None or length is None or found[0] >= len(length):
            continue
        dim, base, more = found
        if base is None and more >= 0:  # untraced numbers, which decrease to 0 or to ``more``
            if not loop.back:
                continue
            base, more = loop.count, more - len(loop.starts)
        size = length[dim] if base is None else length[dim] - value_of(trace, base)
        first = -1 - more + (0 if base is None else size)  # the first iteration's row, counted from the last
        if first < 0:
            continue
        held = None
        if base is not None:
            of_tensor = size_of(trace, number, dim, before[loop.starts[0]])
            held = Apply(operator.eq, (Apply(operator.sub, (of_tensor, base)), size))
        for iteration, (position, op) in enumerate(zip(column, ops, strict=True)):
            args = (op.args[0], dim, first + iteration)
            yield position, (replace(op, func=select_back, name="torch.select", args=args), held)


def value_of(trace: Trace, expr: Any) -> int:
    """Return the value, in the watched run, of an expression of sizes and of numbers from before the call."""

    def read(leaf: Any) -> Any:
        if isinstance(leaf, Read):
            token = leaf.access_path.token
            return next(e.value for e in trace.events if isinstance(e, HeapRead) and e.access_path.token == token)
        return trace.fetched[leaf.token]

    return int(evaluate(expr, read))


def _descent(keys: Sequence[Any]) -> tuple[int, Expr | None, int] | None:
    """Return (dimension, base, offset) if each key selects one whole row, and the row before the previous one; else
    None. The first key selects the row base + offset; base is None if it is an untraced number."""
    shapes = {(type(key), len(key) if type(key) is tuple else 0) for key in keys}
    if len({width for _, width in shapes}) > 1 or (tuple in {kind for kind, _ in shapes} and len(shapes) > 1):
        return None
    wide = type(keys[0]) is tuple
    rows = [key if wide else (key,) for key in keys]
    numbers = [d for d in range(len(rows[0])) if all(type(row[d]) is int or isinstance(row[d], Apply) for row in rows)]
    if len(numbers) != 1:
        return None
    dim = numbers[0]
    sums = [_sum(row[dim]) for row in rows]
    base, first = sums[0]
    tokens = {None if known is None else known.token for known, _ in sums}
    steps = [more for _, more in sums]
    if (
        len(tokens) > 1
        or steps != list(range(first, first - len(steps), -1))
        or (base is None and first >= 0 > steps[-1])
    ):
        return None
    if base is not None and not all(isinstance(leaf, Read | Size) for leaf in leaves(base)):
        return None
    rest = [part for row in rows for d, part in enumerate(row) if d != dim]
    return (dim, base, first) if all(type(part) is slice and part == slice(None) for part in rest) else None


def _sum(value: Any) -> tuple[Expr | None, int]:
    """Return the number as (expression, offset)."""
    match value:
        case int():
            return None, value
        case Apply(operator.add, (part, int(more))) | Apply(operator.add, (int(more), part)):
            base, first = _sum(part)
            return base, first + more
        case Apply(operator.sub, (part, int(less))):
            base, first = _sum(part)
            return base, first - less
    return value, 0


def _length(trace: Trace, number: int) -> Sequence[int] | None:
    """Return the sizes of a tensor; None if they are unknown."""
    access_path, kind = trace.access_paths.get(number), trace.kinds.get(number)
    if access_path is not None:
        return geometries(trace).get(access_path.token, (None,))[0]
    return None if kind is None else kind[0]


def size_of(trace: Trace, number: int, dim: int, after: int) -> Expr:
    """Return the expression for a size of a tensor."""
    access_path = trace.access_paths.get(number)
    return Size(number, dim, after) if access_path is None else Read(access_path.then(Step.SIZE, dim))


def unread(trace: Trace, asked: Sequence[Expr], place: Place) -> Iterator[HeapRead]:
    """Yield reads of the sizes in these predicates that the trace has not read."""
    found = {event.access_path.token for event in trace.events if isinstance(event, HeapRead)}
    for leaf in (leaf for expr in asked for leaf in leaves(expr)):
        if isinstance(leaf, Read) and is_size(leaf.access_path) and leaf.access_path.token not in found:
            found.add(leaf.access_path.token)
            assert leaf.access_path.base is not None
            yield HeapRead(
                leaf.access_path,
                geometries(trace)[leaf.access_path.base.token][0][leaf.access_path.key],
                "number",
                place=place,
            )

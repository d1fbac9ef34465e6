"""Represents Python numbers that change by iteration as rows of a tensor that is computed before the loop.

``t += h`` with ``h = 1 / n``, ``y * (i * h)``, ``torch.full_like(y, t)``, ``lr / (1 - beta ** step)``: the operand is
another number in each iteration, and one closed form gives all of them. A rewriting of traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.graph.loops.analysis.host_recurrences import expr_token
from torchjanus.graph.loops.analysis.number_forms import form_of
from torchjanus.graph.loops.analysis.tensor_counters import Counters
from torchjanus.graph.loops.analysis.tensor_termination import terminated_loops
from torchjanus.graph.loops.roll.reversal import value_of
from torchjanus.graph.loops.roll.uses import is_counting
from torchjanus.graph.operators.host_column import host_column
from torchjanus.graph.operators.number_operands import is_arithmetic, taking
from torchjanus.graph.operators.tensor_numbers import beside
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.expressions import applications
from torchjanus.trace.facts import HeapRead, HostComputation, is_question
from torchjanus.trace.loops.records import LoopInstance, TensorTermination
from torchjanus.trace.loops.recurrences import LEAST, Form, kind_of
from torchjanus.trace.operations import op_positions, ops_of
from torchjanus.trace.recipes import Constant, parts_of
from torchjanus.trace.rewriting import AddingRewriter
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr, Size, leaves

__all__ = ["as_host_columns", "passes_on"]

MOST = 256  # limit of a loop that has no other; longer loops are a fallback
_INDEXED = ("Tensor.__getitem__", "torch.select", "Tensor.select")


@dataclass(slots=True)
class _Row:
    """One number of an operation of each iteration. ``ops``: the positions of the operations. ``path``: where the
    number is in their arguments. ``form``: its closed form. ``given``: the operands of the form. ``values``: the
    recorded numbers."""

    ops: tuple[int, ...]
    path: tuple[Any, ...]
    form: Form
    given: tuple[Expr | TensorRef, ...]
    values: tuple[Any, ...]


@dataclass(slots=True)
class _Loop:
    instance: LoopInstance
    rows: list[_Row] = field(default_factory=list)


def as_host_columns(trace: Trace) -> Trace:
    """Return the trace with such numbers as rows; the trace itself if there are none."""
    loops: list[_Loop] = []
    read = {e.access_path: e.value for e in trace.events if isinstance(e, HeapRead) and e.kind == "number"}
    for some in _loops(trace):
        inside = any(one.instance.starts[0] < some.end and some.starts[0] < one.instance.end for one in loops)
        if inside or not LEAST <= len(some.starts) <= _most(trace, some):
            continue
        if rows := list(_rows(trace, some, read)):
            loops.append(_Loop(some, rows))
    return _ColumnRewriter(trace, loops).trace() if loops else trace


def _loops(trace: Trace) -> Iterator[LoopInstance]:
    """Yield the loops whose trip count or limit is known before they begin, each with and without its first
    iteration."""
    for instance in trace.loop_instances:
        if instance.starts:
            yield from (instance, instance.without_first())
    yield from terminated_loops(trace)


def passes_on(trace: Trace, instance: LoopInstance) -> bool:
    """Whether an untraced number of an iteration may be used after the loop, since a number of equal value is. Affine
    numbers and those of the first iteration do not count. If a tensor ends the loop, all numbers of the last iteration
    count."""
    if instance.recurrences is None:
        return False
    passing = {(type(value), value) for value in instance.recurrences.passing()}
    if isinstance(instance.count, TensorTermination):
        passing |= {(type(made[-1]), made[-1]) for _, made, _ in instance.recurrences.columns}
    if not passing:
        return False
    used: list[Any] = []
    for event in trace.events[instance.end :]:
        if isinstance(event, Op):
            used += (value for _, value in _leaves((event.args, event.kwargs)))
    used += (value for one in trace.plain if one.position >= instance.end for value in (*one.operands, *one.reals))
    used += (value for some in trace.recipes.values() for recipe in some for value in _constants(recipe))
    used += () if trace.result is None else _constants(trace.result)
    return any((type(value), value) in passing for value in used if type(value) in (int, float))


def _constants(recipe: Any) -> Iterator[Any]:
    return (part.value for part in parts_of(recipe) if isinstance(part, Constant))


def _most(trace: Trace, instance: LoopInstance) -> int:
    """Return the most iterations that the loop may have."""
    if not isinstance(instance.count, TensorTermination):
        return len(instance.starts)
    limit = instance.count.limit
    most: int = value_of(trace, limit) if isinstance(limit, Expr) else MOST if limit is None else limit
    return most


def _ahead(trace: Trace, instance: LoopInstance) -> int:
    """Return the position of the event before which the numbers of all iterations are computed: for a tensor-terminated
    loop before the predicate."""
    start = instance.starts[0]
    return (
        start - 1
        if isinstance(instance.count, TensorTermination) and start and is_question(trace.events[start - 1])
        else start
    )


def _rows(trace: Trace, instance: LoopInstance, read: Mapping[AccessPath, Any]) -> Iterator[_Row]:
    """Yield the numbers that can be rows. ``read``: the numbers from before the call."""
    counters = Counters(trace, instance)
    ops = op_positions(trace.events, instance.spans)
    if len({len(row) for row in ops}) > 1:
        return
    for column in zip(*ops, strict=True):
        events: list[Any] = [trace.events[at] for at in column]
        if len({event.name for event in events}) > 1:
            continue
        found = [dict(_leaves((event.args, event.kwargs))) for event in events]
        for path, first in found[0].items():
            values = [row.get(path) for row in found]
            if not _is_number(first) or not all(map(_is_number, values)):
                continue
            if not _may_be_row(events[0], path, values):
                continue
            form = form_of(counters, instance, column, values, read)
            if form is not None:
                yield _Row(column, path, *form, tuple(values))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or isinstance(value, Expr)


def _may_be_row(op: Op, path: tuple[Any, ...], values: Sequence[Any]) -> bool:
    """Whether a tensor may replace the number with a bitwise equal result, and no other pass makes the numbers rows."""
    if op.name in _INDEXED or len(path) != 2 or len({expr_token(value) for value in values}) == 1:
        return False
    if any(isinstance(leaf, Size) for value in values if isinstance(value, Expr) for leaf in leaves(value)):
        return False
    if taking(op.name, path) is not None:
        return True
    return is_arithmetic(op.name) and path[0] == 0 and not op.kwargs and not is_counting(values)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, value) of the arguments; slices are leaves."""
    if isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _leaves(part, (*path, number))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, (*path, key))
    else:
        yield path, value


class _ColumnRewriter(AddingRewriter):
    """Writes the new trace, with the numbers as rows."""

    def __init__(self, old: Trace, loops: Sequence[_Loop]) -> None:
        super().__init__(old)
        self.modes = replace(ops_of(old.events)[0].modes, grad=False)
        self.ahead = {_ahead(old, one.instance): one for one in loops}
        self.changed: dict[
            int, list[tuple[_Row, int]]
        ] = {}  # position of an operation -> its numbers, each with the iteration
        for loop in loops:
            for row in loop.rows:
                for iteration, at in enumerate(row.ops):
                    self.changed.setdefault(at, []).append((row, iteration))
        self.computed = {
            part.token for loop in loops for row in loop.rows for value in row.values for part in applications(value)
        } - {part.token for loop in loops for row in loop.rows for value in row.given for part in applications(value)}
        self.rows: dict[int, list[TensorRef]] = {}  # id of a row -> its tensors, per iteration
        self.after = self._positions()

    def _positions(self) -> list[int]:
        """Return how many new operations come before each of the old ones, and after the last."""
        found, made = [], 0
        for at, event in enumerate(self.old.events):
            made += 2 * len(self.ahead[at].rows) if at in self.ahead else 0
            if isinstance(event, Op):
                found.append(made)
                made += 1 + sum(_is_beside(event, row) for row, _ in self.changed.get(at, ()))
        return [*found, made]

    def _is_within(self, at: int) -> bool:
        return any(one.instance.starts[0] <= at < one.instance.end for one in self.ahead.values())

    def position(self, after: int) -> int:
        return self.after[after] if after else 0

    def trace(self) -> Trace:
        def step(at: int, event: Any, after: int) -> Iterable[Any]:
            if isinstance(event, HostComputation) and event.expr.token in self.computed and self._is_within(at):
                return ()  # the computation of the column may raise as well
            if isinstance(event, Op) and at in self.changed:
                return self._taking(event, self.changed[at], after)
            return (self.event(event, after),)

        events, _, begins = self.walk(step, lambda at: self._columns(self.ahead[at]) if at in self.ahead else ())
        return self.made(events, **self.moved(begins))

    def _columns(self, loop: _Loop) -> Iterator[Op]:
        """Yield the operations that compute the numbers of all iterations."""
        instance, place = loop.instance, self.old.events[loop.rows[0].ops[0]].place
        for row in loop.rows:
            dtype = torch.float64 if kind_of(row.form) is float else torch.int64
            length = instance.first + _most(self.old, instance)
            whole = TensorRef(self.new((length,), dtype))
            count: Any = instance.count
            if isinstance(count, TensorTermination):
                count = MOST if count.limit is None else count.limit
            args = (repr(row.form), count, instance.first, *row.given)
            yield Op(host_column, "host_column", args, {}, (whole,), self.modes, place)
            parts = tuple(TensorRef(self.new((), dtype)) for _ in range(length))
            yield Op(torch.Tensor.unbind, "Tensor.unbind", (whole, 0), {}, parts, self.modes, place)
            self.rows[id(row)] = list(parts[instance.first :])

    def _taking(self, op: Op, numbers: Sequence[tuple[_Row, int]], after: int) -> Iterator[Op]:
        """Yield the operation with tensors in place of its numbers."""
        others = [
            TensorRef(self.tensor(value.number, after)) for _, value in _leaves(op.args) if isinstance(value, TensorRef)
        ]
        made = self.operation(op, after)
        for row, iteration in numbers:
            number = self.rows[id(row)][iteration]
            if _is_beside(op, row):
                kind = self.kinds[number.number]
                operand = TensorRef(self.new((), kind[2]))
                args = (number, kind[2] is torch.float64, *others)
                yield Op(beside, "beside", args, {}, (operand,), self.modes, op.place)
                number = operand
            elif (func := taking(op.name, row.path)) is not None:
                made = replace(made, func=func, name=func.__name__)
            where, key = row.path
            if where:
                made = replace(made, kwargs={**made.kwargs, key: number})
            else:
                made = replace(made, args=(*made.args[:key], number, *made.args[key + 1 :]))
        yield made


def _is_beside(op: Op, row: _Row) -> bool:
    """Whether the number is an operand of arithmetic: its tensor must then not promote the type of the other
    operands."""
    return taking(op.name, row.path) is None

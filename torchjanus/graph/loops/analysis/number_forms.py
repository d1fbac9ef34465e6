"""Finds closed forms of the numbers that the iterations of a loop use: untraced numbers, numbers from before the call,
and numbers fetched from tensors that count.

``recurrences`` and ``effects`` use the forms.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.graph.loops.analysis.host_recurrences import expr_token
from torchjanus.graph.loops.analysis.tensor_counters import Counters
from torchjanus.trace.events import Trace
from torchjanus.trace.expressions import evaluate, map_expr, parts_of_expr
from torchjanus.trace.loops.records import LoopInstance, TensorTermination
from torchjanus.trace.loops.recurrences import HOLE, Form, counting_down, kind_of, name_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, InductionVariable, Read, leaves

__all__ = ["form_of", "plain_form"]


def form_of(
    counters: Counters,
    instance: LoopInstance,
    ops: Sequence[int],
    values: Sequence[Any],
    read: Mapping[AccessPath, Any],
) -> tuple[Form, tuple[Expr | TensorRef, ...]] | None:
    """Return the form of the numbers, and its operands: expressions over numbers from before the call, and tensors;
    None if there is no form. ``ops``: the positions of the operations that use the numbers."""
    if any(isinstance(value, Expr) for value in values):
        made = _NumberForms(instance, read, counters, ops)
        form = made.form(values)
        given = tuple(made.given.values())
    else:
        form, given = plain_form(counters.trace, instance, ops, values), ()
    return None if form is None or kind_of(form) is None else (form, given)


def plain_form(trace: Trace, instance: LoopInstance, ops: Sequence[int], values: Sequence[Any]) -> Form | None:
    """Return the form of untraced numbers that the iterations use at these events; None if there is none."""
    if instance.recurrences is None:
        return _counted(instance, values)
    known = instance.recurrences
    before = {
        sum(plain.position <= at for plain in trace.plain[first : first + known.width])
        for first, at in zip(itertools.count(known.first, known.width), ops)  # an infinite count
    }
    found: Form | None = known.form(values, before.pop()) if len(before) == 1 else None
    return None if found is None or found[0] == "const" else found


def _counted(instance: LoopInstance, values: Sequence[Any]) -> Form | None:
    """Return the form of integers that are an induction variable; None if they are not."""
    if any(type(value) is not int for value in values):
        return None
    count = len(values)
    more = values[-1] if values else 0
    if (
        instance.back
        and not isinstance(instance.count, TensorTermination)
        and list(values) == list(range(count - 1 + more, more - 1, -1))
    ):
        return counting_down(more)
    for first, step in instance.counters:
        if list(values) == [first + step * iteration for iteration in range(count)]:
            return ("index", first, step)
    return None


class _NumberForms:
    """Finds the form of traced numbers."""

    def __init__(
        self, instance: LoopInstance, read: Mapping[AccessPath, Any], counters: Counters, ops: Sequence[int]
    ) -> None:
        self.instance, self.read, self.counters, self.ops = instance, read, counters, ops
        self.given: dict[Any, Expr | TensorRef] = {}  # token -> operand of the form

    def form(self, row: Sequence[Any]) -> Form | None:
        if _holds(row[0]):
            return self._each(row)
        if len({expr_token(value) for value in row}) == 1:
            return self._same(row[0])
        return self._scan(row) or self._each(row)

    def _same(self, value: Any) -> Form | None:
        if not isinstance(value, Expr):
            return ("const", value) if type(value) in (int, float) else None
        if not all(isinstance(leaf, Read) for leaf in leaves(value)):
            return None  # not known before the loop
        kind = type(_value_of(value, self.read)).__name__
        return self._given(value.token, value, kind) if kind in ("int", "float") else None

    def _given(self, token: Any, value: Expr | TensorRef, kind: str) -> Form:
        number = list(self.given).index(token) if token in self.given else len(self.given)
        self.given.setdefault(token, value)
        return ("given", number, kind)

    def _fetched(self, row: Sequence[Any]) -> Form | None:
        """Return the form of numbers fetched from a tensor that counts."""
        tensor = self.counters.tensor(row)
        if tensor is None:
            return None
        return self.counters.form(row, self._given(("tensor", tensor.number), tensor, row[0].type.__name__))

    def _scan(self, row: Sequence[Any]) -> Form | None:
        """Return the form of a number that each iteration computes from the preceding one."""
        bodies = [_holed(later, expr_token(earlier)) for earlier, later in itertools.pairwise(row[1:])]
        if not bodies or any(not _holds(body) for body in bodies):
            return None
        first = _like(bodies[0], row[1], expr_token(row[0]))  # the start may occur elsewhere, too
        start = self.form([row[0]] * len(row))
        body = None if first is None or start is None else self.form([first, *bodies])
        return None if body is None or start is None else ("entering", start, body)

    def _each(self, row: Sequence[Any]) -> Form | None:
        if any(value is _HOLE for value in row):
            return HOLE if all(value is _HOLE for value in row) else None
        loop_record = [value.first if isinstance(value, InductionVariable) else value for value in row]
        if all(type(value) is int for value in loop_record):
            return _counted(self.instance, loop_record)
        if isinstance(row[0], Fetch):
            return self._fetched(row)
        if all(type(value) is float for value in row):
            return plain_form(self.counters.trace, self.instance, self.ops, row)
        if any(not isinstance(value, Apply) for value in row):
            return None
        names = {name_of(value.func) for value in row}
        if len(names) > 1 or None in names or len({len(value.args) for value in row}) > 1:
            return None
        parts = [self.form(column) for column in zip(*(value.args for value in row), strict=True)]
        return None if None in parts else (names.pop(), *parts)


def _value_of(value: Any, read: Mapping[AccessPath, Any]) -> Any:
    """Return the value that an expression over numbers from before the call had."""
    return evaluate(value, lambda leaf: read.get(leaf.access_path) if isinstance(leaf, Read) else leaf)


class _Hole:
    token = ("hole",)


_HOLE: Any = _Hole()


def _holed(value: Any, token: Any) -> Any:
    """Return the expression with holes in place of this number."""
    return map_expr(value, lambda part: _HOLE if expr_token(part) == token else part)


def _like(body: Any, expr: Any, token: Any) -> Any:
    """Return the first iteration's expression, with holes where the body has them and this number is; None if it
    differs."""
    if body is _HOLE:
        return _HOLE if expr_token(expr) == token else None
    if not _holds(body):
        return expr
    if not isinstance(expr, Apply) or len(expr.args) != len(body.args):
        return None
    args = tuple(_like(inner, arg, token) for inner, arg in zip(body.args, expr.args, strict=True))
    return None if any(arg is None for arg in args) else Apply(expr.func, args)


def _holds(value: Any) -> bool:
    return any(part is _HOLE for part in parts_of_expr(value))

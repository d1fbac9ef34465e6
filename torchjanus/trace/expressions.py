"""Walks over expressions: their parts, and expressions like them with other parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.trace.values import Apply, Expr

__all__ = ["applications", "evaluate", "map_expr", "parts_of_expr", "with_args"]


def parts_of_expr(expr: Any) -> Iterator[Any]:
    """Yield the expression and all its parts, constants included: each operation before its arguments."""
    yield expr
    if isinstance(expr, Apply):
        for part in expr.args:
            yield from parts_of_expr(part)


def applications(expr: Any) -> Iterator[Apply]:
    """Yield an expression's operations, the outer ones first."""
    return (part for part in parts_of_expr(expr) if isinstance(part, Apply))


def evaluate(expr: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return the value of an expression, given the value of each of its leaves that is no constant."""
    if isinstance(expr, Apply):
        return expr.func(*(evaluate(part, leaf) for part in expr.args))
    return leaf(expr) if isinstance(expr, Expr) else expr


def map_expr(expr: Any, change: Callable[[Any], Any]) -> Any:
    """Return the expression with ``change(part)`` in place of each part, the outer ones first: in place of an operation
    that it returns as it is, the operation on changed arguments."""
    made = change(expr)
    return with_args(expr, lambda part: map_expr(part, change)) if made is expr and isinstance(expr, Apply) else made


def with_args(expr: Apply, change: Callable[[Any], Any]) -> Apply:
    """Return the operation on ``change(argument)`` for each argument; itself where none changes."""
    args = tuple(map(change, expr.args))
    same = all(new is old for new, old in zip(args, expr.args, strict=True))
    return expr if same else Apply(expr.func, args)

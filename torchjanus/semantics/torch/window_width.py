"""The width of a window ``x[start:stop]`` between tensors of one integer, as an expression of numbers of the program.

``text[i : i + length]`` is ``length`` wide whatever tensor ``i`` holds. Both ends are taken apart into a base and
offsets, and if the bases are the same, the width is the difference of the offsets. Knows nothing of how calls are
recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.trace.actions import Op
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, depends_on

__all__ = ["width_of"]

_PLUS = {"add": 1, "__add__": 1, "__radd__": 1, "sub": -1, "__sub__": -1}  # name of a call -> sign of its operand


@dataclass(slots=True)
class _Linear:
    """``base`` + ``constant`` + the sum of ``terms``, each an expression by its token with its factor."""

    base: Any
    constant: int
    terms: dict[Any, tuple[Expr, int]]

    def add(self, number: Any, factor: int) -> None:
        if isinstance(number, Apply) and number.func in (operator.add, operator.sub) and len(number.args) == 2:
            self.add(number.args[0], factor)
            self.add(number.args[1], factor if number.func is operator.add else -factor)
        elif isinstance(number, Expr):
            before = self.terms.get(number.token, (number, 0))[1]
            self.terms[number.token] = number, before + factor
        else:
            self.constant += factor * number


def width_of(start: int, stop: int, makers: Mapping[int, Op]) -> Expr | None:
    """Return the width of a window between two tensors, given by their numbers; None if it is not known as an
    expression that reads no tensor. ``makers``: the operations by the numbers of what they return."""
    low, high = _of_tensor(start, makers), _of_tensor(stop, makers)
    if low.base != high.base:
        return None
    for expr, factor in low.terms.values():
        high.add(expr, -factor)
    terms = [(expr, factor) for expr, factor in high.terms.values() if factor]
    if not terms or any(depends_on(expr, Fetch) for expr, _ in terms):
        return None
    terms.sort(key=lambda term: -term[1])  # a sum that begins with a difference would need a zero
    found: Any = high.constant - low.constant
    for expr, factor in terms:
        part = expr if abs(factor) == 1 else Apply(operator.mul, (expr, abs(factor)))
        if factor > 0:
            found = part if found == 0 else Apply(operator.add, (part, found))
        else:
            found = Apply(operator.sub, (found, part))
    assert isinstance(found, Expr)
    return found


def _of_tensor(number: int, makers: Mapping[int, Op]) -> _Linear:
    found = _Linear(None, 0, {})
    while (op := makers.get(number)) is not None and not op.kwargs and len(op.args) == 2:
        sign = _PLUS.get(op.name.rpartition(".")[2])
        first, second = op.args
        if sign == 1 and isinstance(second, TensorRef):
            first, second = second, first
        if sign is None or not isinstance(first, TensorRef) or not _is_whole(second):
            break
        found.add(second, sign)
        number = first.number
    if op is not None and op.func is torch.tensor and isinstance(op.args[0], Expr):
        return _of_fetched(op.args[0], found)
    found.base = number
    return found


def _is_whole(number: Any) -> bool:
    return type(number) is int or (isinstance(number, Expr) and not isinstance(number, Fetch))


def _of_fetched(expr: Expr, found: _Linear) -> _Linear:
    """Take apart a number that was fetched from a tensor, and what Python has added to it."""
    while isinstance(expr, Apply) and expr.func in (operator.add, operator.sub):
        first, second = expr.args
        if expr.func is operator.add and depends_on(second, Fetch):
            first, second = second, first
        if not depends_on(first, Fetch) or depends_on(second, Fetch):
            break
        found.add(second, 1 if expr.func is operator.add else -1)
        expr = first
    found.base = expr.token
    return found

"""Which Python arithmetic on numbers may raise, and what must hold of its arguments for it not to. Knows no graph."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.trace.values import Apply

__all__ = ["hazard", "is_hazardous", "may_raise"]

_LARGEST_EXPONENT = 709.0  # math.exp overflows a little above

_INTEGER_FORMAT = re.compile(r"%[^a-zA-Z%]*[diouxXc]")
_COMPUTING = ("_operator", "builtins", "math")

_OF_FINITE = (int, round, math.floor, math.ceil, math.trunc, math.sin, math.cos, math.tan)

# Raise on no int that fits a tensor's element, and on no float.
_TOTAL: frozenset[Callable[..., Any]] = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, operator.lt, operator.le,
    operator.gt, operator.ge, operator.eq, operator.ne, operator.not_, operator.truth, abs, bool, float, str, repr,
    ascii, format, min, max, math.fabs, math.isnan, math.isinf, math.isfinite, math.tanh, math.atan, math.copysign,
    math.hypot
})  # fmt: skip


def hazard(part: Apply) -> Apply | None:
    """Return what must hold of the arguments for this operation not to raise, where that is simple to say."""
    if part.func in (operator.truediv, operator.floordiv, operator.mod) and not isinstance(part.args[0], str):
        return Apply(operator.ne, (part.args[1], 0))
    if part.func is math.exp:
        return Apply(operator.le, (part.args[0], _LARGEST_EXPONENT))
    if part.func in (math.log, math.log2, math.log10) and len(part.args) == 1:
        return Apply(operator.gt, (part.args[0], 0))
    if part.func is math.sqrt:
        return Apply(operator.ge, (part.args[0], 0))
    if part.func in _OF_FINITE and len(part.args) == 1:
        return Apply(math.isfinite, (part.args[0],))
    return None


def is_hazardous(part: Apply) -> bool:
    """Whether an operation may raise on some numbers."""
    condition = hazard(part)
    if condition is None:
        return may_raise(part)
    divisor = condition.args[0]
    return not (condition.func is operator.ne and isinstance(divisor, int | float) and divisor != 0)


def may_raise(part: Apply) -> bool:
    """Whether an operation without a ``hazard`` may raise on some numbers."""
    if part.func is operator.pow and part.args[1] in (0, 1):
        return False
    if part.func is round and len(part.args) == 2 and isinstance(part.args[1], int) and part.args[1] >= 0:
        return False
    template = next((argument for argument in part.args if isinstance(argument, str)), None)
    if template is not None:  # text of numbers: what was formatted once can be again, but no "%d" takes a NaN
        return _INTEGER_FORMAT.search(template) is not None
    return part.func not in _TOTAL and getattr(part.func, "__module__", "") in _COMPUTING

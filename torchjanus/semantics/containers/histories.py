"""Trace functions of whole number sequences that grow from call to call (``sum(losses)``) as one expression.

Element by element, each length of the sequence would be a path of its own.
"""

from __future__ import annotations

import builtins
import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

from torchjanus.core.access_path import numbers_of
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.containers.shadows import Shadows
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.values import Traced, plain

__all__ = ["summary"]

LONG = 8  # shorter sequences are read element by element, so that each number is an input


def summary(recording: Recording, shadows: Shadows, fn: Any, values: Any) -> Any:
    """Return ``fn(values)``, traced, for a known function of a long number sequence from before the call to which the
    call has done nothing but append; else None."""
    function = _FUNCTIONS.get(fn) if isinstance(fn, type(builtins.sum)) else None
    access_path = recording.owner(values)
    if function is None or access_path is None or not isinstance(values, list | tuple | collections.deque):
        return None
    if access_path.waits_for or recording.lost:
        return None
    shadow = shadows.of(values)
    new = [] if shadow is None else shadow.appended
    before = values if shadow is None else shadow.contents
    if new is None or len(before) < LONG or not all(isinstance(part, int | float | Traced) for part in new):
        return None
    try:
        numbers = numbers_of(before)
    except TypeError:
        return None
    if is_one_of(fn, (min, max)) and any(type(plain(part)) is not type(numbers[0]) for part in new):
        return None  # the class of the result would depend on which is picked
    symbols = (part.expr if isinstance(part, Traced) else part for part in new)
    expr = recording.numbers(access_path, numbers)
    maxlen = None if shadow is None else shadow.maxlen
    result = function(numbers, maxlen, *map(plain, new))
    return recording.computed(result, function, expr, maxlen, *symbols, risky=fn is math.fsum)


def _row(before: Sequence[Any], maxlen: int | None, new: tuple[Any, ...]) -> Sequence[Any]:
    row = [*before, *new]
    return row if maxlen is None else row[max(0, len(row) - maxlen) :]


def _over(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    def made(before: Sequence[Any], maxlen: int | None, *new: Any) -> Any:
        return fn(_row(before, maxlen, new))

    made.__name__ = name
    return made


_FUNCTIONS: dict[Any, Callable[..., Any]] = {fn: _over(fn, fn.__name__) for fn in (sum, min, max, math.fsum)}

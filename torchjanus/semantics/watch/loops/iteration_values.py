"""Questions about the values and native calls of an iteration: which of them may depend on the iteration index.

In: arguments, ranges, slices as the program has them. Out: the untraced numbers among them, the containers that a call
cuts, whether a range counts down. Knows values, not loops.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torchjanus.core.kinds import getattr, is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.trace.values import Traced

__all__ = [
    "by_iteration", "cut_by", "integers", "is_added", "is_all_but_few", "is_back", "is_from", "is_statement", "reals",
    "total_of", "where",
]  # fmt: skip

_DEEP = 4
_TAKING_SOME = frozenset({"heapq", "_heapq", "random"})


def is_statement(at: Site | None) -> bool:
    """Whether the result of the call is discarded."""
    return at is not None and at.kind == "procedure"


def integers(values: Any, depth: int = _DEEP) -> Iterator[int]:
    """Yield the untraced integers among the values and in containers among them, ``depth`` levels down."""
    for value in values:
        if type(value) is int:
            yield value
        elif is_one_of(type(value), (list, tuple)) and depth:
            yield from integers(value, depth - 1)
        elif type(value) is slice:
            yield from integers((value.start, value.stop, value.step))


def by_iteration(name: Any, done: set[int | None]) -> Any:
    """Return a changed name. For an element whose index is in ``done`` (iteration numbers), return that its container
    has grown."""
    for end in range(4, len(name) + 1, 2):
        if name[end - 2] in ("list", "dict") and type(name[end - 1]) is int and name[end - 1] in done:
            return (*name[: end - 1], "more")
    return name


def cut_by(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the containers of which a native call takes or keeps a limited number of elements."""
    if fn is itertools.islice or getattr(fn, "__module__", None) in _TAKING_SOME:
        yield from args[:2]
    elif fn is collections.deque and kwargs.get("maxlen", args[1] if len(args) > 1 else None) is not None:
        yield from args[:1]
    holder = getattr(fn, "__self__", None)
    if type(holder) is collections.deque and holder.maxlen is not None:
        yield holder


def is_all_but_few(part: slice) -> bool:
    """Whether a slice drops only a constant number of elements at the begin and the end."""
    if part.step not in (None, 1):
        return False
    first = part.start is None or (type(part.start) is int and part.start >= 0)
    return first and (part.stop is None or (type(part.stop) is int and part.stop < 0))


def reals(values: Any) -> Iterator[float]:
    """Yield the untraced floats among the values."""
    return (value for value in values if type(value) is float)


def where(at: Site | None) -> tuple[int, int]:
    return (0, 0) if at is None else (at.line, at.column)


def is_from(first: tuple[Any, ...]) -> bool:
    """Whether a range has no start or a constant one. ``first``: the arguments before the bound."""
    return not first or (len(first) == 1 and type(first[0]) is int and first[0] >= 0)


def is_by_steps(bounds: tuple[Any, ...]) -> bool:
    """Whether a range goes from 0 to a traced bound with a constant step above one."""
    by_steps = len(bounds) == 3 and type(bounds[0]) is int and type(bounds[2]) is int
    return by_steps and bounds[0] == 0 and isinstance(bounds[1], Traced) and bounds[2] > 1


def is_added(fn: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call adds one element at an end of a container, independent of its content."""
    return fn.__name__ == "append" or (fn.__name__ == "insert" and type(args[0]) is int and args[0] == 0)


def is_back(span: range | None) -> bool:
    """Whether a range counts down to 0 or 1."""
    return span is not None and span.step == -1 and span.stop in (-1, 0)


def total_of(op: str, a: Any, b: Any) -> int | None:
    """Return the result of adding or subtracting two untraced integers, None for anything else."""
    if type(a) is not int or type(b) is not int:
        return None
    return a + b if op in ("+", "+=") else a - b if op in ("-", "-=") else None

"""What of plain values may say which iteration of a loop it is. Knows values, not loops."""

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
    """Whether nobody gets what the call gives."""
    return at is not None and at.kind == "procedure"


def integers(values: Any, depth: int = _DEEP) -> Iterator[int]:
    """The plain integers among the values, and in containers among them, which may hold themselves."""
    for value in values:
        if type(value) is int:
            yield value
        elif is_one_of(type(value), (list, tuple)) and depth:
            yield from integers(value, depth - 1)
        elif type(value) is slice:
            yield from integers((value.start, value.stop, value.step))


def by_iteration(name: Any, done: set[int | None]) -> Any:
    """The name of what an iteration has changed; of an element with the number of that iteration, that there is
    more."""
    for end in range(4, len(name) + 1, 2):
        if name[end - 2] in ("list", "dict") and type(name[end - 1]) is int and name[end - 1] in done:
            return (*name[: end - 1], "more")
    return name


def cut_by(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """The containers of which native code takes, or keeps, so many elements at most."""
    if fn is itertools.islice or getattr(fn, "__module__", None) in _TAKING_SOME:
        yield from args[:2]
    elif fn is collections.deque and kwargs.get("maxlen", args[1] if len(args) > 1 else None) is not None:
        yield from args[:1]
    holder = getattr(fn, "__self__", None)
    if type(holder) is collections.deque and holder.maxlen is not None:
        yield holder


def is_all_but_few(part: slice) -> bool:
    """Whether it is all of a sequence, but for a few of the first and a few of the last."""
    if part.step not in (None, 1):
        return False
    first = part.start is None or (type(part.start) is int and part.start >= 0)
    return first and (part.stop is None or (type(part.stop) is int and part.stop < 0))


def reals(values: Any) -> Iterator[float]:
    """The plain floats among the values."""
    return (value for value in values if type(value) is float)


def where(at: Site | None) -> tuple[int, int]:
    return (0, 0) if at is None else (at.line, at.column)


def is_from(first: tuple[Any, ...]) -> bool:
    """Whether a range begins with a number that is known, or with none."""
    return not first or (len(first) == 1 and type(first[0]) is int and first[0] >= 0)


def is_by_steps(bounds: tuple[Any, ...]) -> bool:
    """Whether a range goes from 0 to a number that may change, by more than one in each step."""
    by_steps = len(bounds) == 3 and type(bounds[0]) is int and type(bounds[2]) is int
    return by_steps and bounds[0] == 0 and isinstance(bounds[1], Traced) and bounds[2] > 1


def is_added(fn: Any, args: tuple[Any, ...]) -> bool:
    """Whether a container is given one more element, at an end of it, whatever else it holds."""
    return fn.__name__ == "append" or (fn.__name__ == "insert" and type(args[0]) is int and args[0] == 0)


def is_back(span: range | None) -> bool:
    """Whether it goes down to 0, or to 1."""
    return span is not None and span.step == -1 and span.stop in (-1, 0)


def total_of(op: str, a: Any, b: Any) -> int | None:
    """What adding or taking away gives."""
    if type(a) is not int or type(b) is not int:
        return None
    return a + b if op in ("+", "+=") else a - b if op in ("-", "-=") else None

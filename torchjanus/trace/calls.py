"""The names that traces of recursive calls use for arguments and results. Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchjanus.core.access_path import AccessPath, Step

__all__ = ["TENSOR", "count_of", "entered_at", "parts_made"]

_COUNT = "count "  # begins the name of the parameter by which a call knows what is there when it begins


class _Tensor:
    def __repr__(self) -> str:
        return "<a tensor of the graph>"


TENSOR: Any = _Tensor()  # stands for a tensor among what a call is given: the host does not have it


def parts_made(made: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a result that looks like this holds: the key or name of each part, and what that looks like."""
    match made:
        case ("tuple" | "list", *parts):
            yield from enumerate(parts)
        case ("dict", *parts) | ("object", _, *parts):
            yield from parts


def entered_at(number: Any) -> AccessPath:
    """Return where a call finds what calls have counted before it. ``number``: by which they know the count."""
    return AccessPath.parameter(f"{_COUNT}{number}")


def count_of(access_path: AccessPath) -> int | None:
    """Return which count it is, if what is found there is one of those."""
    known = access_path.step is Step.PARAMETER and access_path.key.startswith(_COUNT)
    return int(access_path.key.removeprefix(_COUNT)) if known else None

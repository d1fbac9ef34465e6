"""The names that traces of recursive calls use for arguments and results. Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchjanus.core.access_path import AccessPath, Step

__all__ = ["TENSOR", "count_of", "entered_at", "parts_made"]

_COUNT = "count "  # prefix of the parameter that holds the value of a count when a call begins


class _Tensor:
    def __repr__(self) -> str:
        return "<a tensor of the graph>"


TENSOR: Any = _Tensor()  # stands for a tensor among the arguments of a call, which the host does not have


def parts_made(made: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a result with this structure: the key or name of each, and its structure."""
    match made:
        case ("tuple" | "list", *parts):
            yield from enumerate(parts)
        case ("dict", *parts) | ("object", _, *parts):
            yield from parts


def entered_at(number: Any) -> AccessPath:
    """Return the access path of a count's value when a call begins. ``number``: the count's number."""
    return AccessPath.parameter(f"{_COUNT}{number}")


def count_of(access_path: AccessPath) -> int | None:
    """Return the number of the count whose value is at this access path; None if it is none."""
    known = access_path.step is Step.PARAMETER and access_path.key.startswith(_COUNT)
    return int(access_path.key.removeprefix(_COUNT)) if known else None

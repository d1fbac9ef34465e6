"""Represent lists of numbers that loops index by iteration (``actions[t]``, ``if flags[t]``) as the rows of one tensor.

The host makes the tensor of the list at each call. A list qualifies once runs have seen other lengths or flags in its
place: otherwise each element would be an input or a constant, and each length would need a graph of its own.
``torch.tensor(words)`` of a list of varying length is treated alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.default_device import default_device
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.core.trees import leaves_of
from torchjanus.ops.calls import NUMBERS_ALIKE
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Specialization
from torchjanus.trace.values import Expr, Fetch, depends_on

__all__ = ["MAKING", "Columns", "column_of", "made_as"]

MOST_PLACES = 1000
MOST = 10_000  # limit on the elements: the whole list is read at each call
MAKING = (torch.tensor, torch.as_tensor)  # functions that make a tensor of a list
_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}


def column_of(container: Any) -> torch.Tensor:
    """Return a list or tuple of numbers of one type as a tensor of shape (length,). Raises TypeError for others."""
    if not is_one_of(type(container), (list, tuple)) or not 0 < len(container) <= MOST:
        raise TypeError("no list or tuple with elements, or too many")
    kind = type(container[0])
    if kind not in _DTYPES or any(type(part) is not kind for part in container):
        raise TypeError("elements are no numbers of one kind")
    try:
        with torch._C.DisableTorchFunction():
            return torch.tensor(container, dtype=_DTYPES[kind])
    except (ValueError, OverflowError, RuntimeError) as error:
        raise TypeError("a number is too large") from error


def made_as(kind: Any, dtype: Any = None, device: Any = None, requires_grad: Any = False, **others: Any) -> Any:
    """Return the dtype of a tensor that is made of a list of such numbers; None if torch has to make it."""
    if kind not in _DTYPES or requires_grad is not False or others:
        return None
    if str(device) != "cpu" and (device is not None or default_device() is not None):
        return None
    if dtype is None:
        dtype = torch.get_default_dtype() if kind is float else _DTYPES[kind]
    # Numbers may overflow other dtypes, and torch has to raise the error.
    fits = dtype in (torch.float32, torch.float64) or (kind is not float and dtype in (torch.int64, torch.bool))
    return dtype if fits else None


def _is_held(event: Any) -> bool:
    """Whether an event needs the value of a fetched number."""
    if isinstance(event, Op):
        if event.name.rpartition(".")[2].strip("_") in NUMBERS_ALIKE:
            return False
        return any(isinstance(part, Expr) and _is_fetched(part) for part in leaves_of((event.args, event.kwargs)))
    return isinstance(event, Specialization) and _is_fetched(event.expr)


def _is_fetched(expr: Expr) -> bool:
    return depends_on(expr, Fetch)


@dataclass(slots=True)
class _Seen:
    """What was seen at one place first: the index, the length of the list, and its flags."""

    key: int
    length: int
    flags: tuple[bool, ...] | None
    keys: bool = False  # whether the index has varied
    contents: bool = False  # whether the length or the flags have varied


class Columns:
    """The places of one function's source that read elements of such lists."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Seen] = {}
        self._held: set[Hashable] = set()
        self.used: set[Hashable] = set()  # in the latest run

    def hold(self, place: Hashable) -> None:
        """Specialise on the numbers that are read there from now on."""
        if place in self._seen:
            self._held.add(place)

    def settle(self, trace: Trace) -> None:
        """Evaluate a run that has ended: specialise at the places whose numbers it used as fetched ones cannot be."""
        if self.used and (trace.refusals or any(map(_is_held, trace.events))):
            self._held |= self.used
        self.used = set()

    def record_read(self, place: Hashable, container: list[Any] | tuple[Any, ...], key: int) -> bool:
        """Record a read of an element at a place. Return whether it should be a row of a tensor."""
        if place in self._held or not container or not is_one_of(type(container[0]), _DTYPES):
            return False
        flags = None
        if type(container[0]) is bool and len(container) <= MOST:
            flags = tuple(container)
        seen = self._seen.get(place)
        if seen is None:
            if len(self._seen) < MOST_PLACES:
                self._seen[place] = _Seen(key, len(container), flags)
            return False
        seen.keys |= key != seen.key
        seen.contents |= len(container) != seen.length or flags != seen.flags
        return seen.keys and seen.contents

"""Lists of plain numbers that loops go through by their iterations' numbers (``actions[t]``, ``if flags[t]``): told as
the rows of one tensor, which the host makes of the list, once it has been seen that they differ in what makes paths
differ. So is what ``torch.tensor(words)`` makes of a list whose length changes.

Element by element, each would be an input or a constant of its own, in a graph for each length. Knows nothing of
watching.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.default_device import default_device
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Pinned
from torchjanus.trace.values import Expr, Fetch, leaves

__all__ = ["MAKING", "Columns", "column_of", "made_as"]

MOST_PLACES = 1000
MOST = 10_000  # elements: the whole list is read at each call
# What computes with numbers as it does with tensors of one number.
_COMPUTING = frozenset(
    "add radd iadd sub rsub isub mul rmul imul div truediv eq ne lt le gt ge tensor full full_like where".split()
)
MAKING = (torch.tensor, torch.as_tensor)  # what makes a tensor of a list
_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}


def column_of(container: Any) -> torch.Tensor:
    """A list of numbers of one kind as a tensor. Raises TypeError where it is none."""
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
    """Of which dtype a tensor is that is made of a list of such numbers; None where that is left to torch."""
    if kind not in _DTYPES or requires_grad is not False or others:
        return None
    if str(device) != "cpu" and (device is not None or default_device() is not None):
        return None
    if dtype is None:
        dtype = torch.get_default_dtype() if kind is float else _DTYPES[kind]
    # A number may be too large for other dtypes: to say so is torch's affair.
    fits = dtype in (torch.float32, torch.float64) or (kind is not float and dtype in (torch.int64, torch.bool))
    return dtype if fits else None


def _is_held(event: Any) -> bool:
    """Whether it needs the value of a number that was fetched."""
    if isinstance(event, Op):
        if event.name.rpartition(".")[2].strip("_") in _COMPUTING:
            return False
        return any(isinstance(part, Expr) and _is_fetched(part) for part in _parts((event.args, event.kwargs)))
    return isinstance(event, Pinned) and _is_fetched(event.expr)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, dict):
        yield from _parts(tuple(value.values()))
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def _is_fetched(expr: Expr) -> bool:
    return any(isinstance(leaf, Fetch) for leaf in leaves(expr))


@dataclass(slots=True)
class _Seen:
    """What was seen at one place: an element's number, how long the list was, and the flags in it."""

    key: int
    length: int
    flags: tuple[bool, ...] | None
    keys: bool = False  # whether the numbers of elements were seen to change
    contents: bool = False  # whether lengths or flags were


class Columns:
    """Of one function: the places of its text where elements are taken from such lists."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Seen] = {}
        self._held: set[Hashable] = set()
        self.used: set[Hashable] = set()  # in the latest run

    def hold(self, place: Hashable) -> None:
        """The numbers that are taken there stay what they are from now on."""
        if place in self._seen:
            self._held.add(place)

    def settle(self, trace: Trace) -> None:
        """A run is over. Where numbers were used as none from a tensor can be, they stay what they are from now on."""
        if self.used and (trace.refusals or any(map(_is_held, trace.events))):
            self._held |= self.used
        self.used = set()

    def at(self, place: Hashable, container: list[Any] | tuple[Any, ...], key: int) -> bool:
        """An element is taken there. Whether it is to be one of a tensor."""
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

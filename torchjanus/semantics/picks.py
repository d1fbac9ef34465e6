"""Subscripts by tensors of one whole number: ``scores[t, word]``, ``table[action]``, ``text[i : i + 64]``.

Eager asks such a tensor for its number and gives a view. A graph cannot ask: it looks the elements up by it, and
has a copy. That is the same as long as neither is changed while the part is in use, and nobody gets the view: which is
found out here, and refused otherwise. Knows nothing of how calls are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.errors import Place
from torchjanus.semantics.details import memory_of, version_of
from torchjanus.semantics.recording import HELD_NUMBERS, Recording, hold_numbers
from torchjanus.trace.values import Fetch, TracedInt, leaves, plain

__all__ = ["Picks", "picks"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def _is_pick(value: Any) -> bool:
    """Whether it is a tensor of one whole number, or a number that was fetched from a tensor."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype in _INTEGERS
    return isinstance(value, TracedInt) and any(isinstance(leaf, Fetch) for leaf in leaves(value.expr))


def _ends(part: Any) -> tuple[Any, Any] | None:
    """Between what a slice lies, or None where it is no slice between two such numbers."""
    if not isinstance(part, slice) or part.step not in (None, 1):
        return None
    return (part.start, part.stop) if _is_pick(part.start) and _is_pick(part.stop) else None


def _by_numbers(key: Any) -> bool:
    """Whether numbers fetched from tensors pick, and no tensors do."""
    parts = [end for part in (key if type(key) is tuple else (key,)) for end in _ends(part) or (part,)]
    return any(_is_pick(part) for part in parts) and not any(isinstance(part, torch.Tensor) for part in parts)


def _width(tensor: torch.Tensor, dim: int, start: Any, stop: Any) -> int | None:
    """How many elements lie there; None where the slice reaches beyond the tensor."""
    with torch._C.DisableTorchFunction():
        first, end, size = int(plain(start)), int(plain(stop)), tensor.size(dim)
    return end - first if 0 <= first <= end <= size else None


def picks(tensor: torch.Tensor, key: Any, place: Place) -> bool:
    """Whether this is a subscript by tensors of one number, or by slices between them, beside numbers and slices.
    ``place``: where it stands in the program."""
    if place in HELD_NUMBERS and _by_numbers(key):
        return False
    parts = key if type(key) is tuple else (key,)
    known = (_is_pick(part) or part is None or part is Ellipsis or isinstance(part, int | slice) for part in parts)
    bare = not any(isinstance(part, bool) for part in parts)
    counted = not tensor.is_inference()  # else nobody can tell whether it is changed
    found = any(_is_pick(part) or _ends(part) is not None for part in parts)
    if not (tensor.dim() > 0 and counted and found and bare and all(known)):
        return False
    slices = [(dim, ends) for dim, part in zip(_dims(tensor, parts), parts, strict=True) if (ends := _ends(part))]
    if not slices:
        return True
    # The dimensions of the result are those of the tensor where nothing is added or taken out.
    simple = all(part is Ellipsis or isinstance(part, slice) for part in parts)
    return simple and all(_width(tensor, dim, *ends) is not None for dim, ends in slices)


@dataclass(slots=True)
class _Part:
    """A part that was picked: the view itself, and what tells whether anybody has written there since."""

    view: torch.Tensor
    version: int
    place: Place | None  # where it was picked by a number of Python's


class Picks:
    """The parts picked in one watched run."""

    def __init__(
        self, recording: Recording, framework: Callable[..., Any], really: Callable[..., torch.Tensor]
    ) -> None:
        """``framework`` makes a call of torch's that is recorded; ``really`` one as it stands in the program, its first
        argument, and records another."""
        self._recording = recording
        self._framework = framework
        self._really = really
        self._parts: dict[int, tuple[_Part, torch.Tensor]] = {}  # by id: parts, and views of them

    @property
    def any(self) -> bool:
        """Whether anything has been picked."""
        return bool(self._parts)

    def item(self, tensor: torch.Tensor, key: Any) -> torch.Tensor:
        """``tensor[key]``."""
        parts = [self._of_tensors(part) for part in (key if type(key) is tuple else (key,))]
        found, dims = tensor, _dims(tensor, parts)
        slices = [(dim, ends) for dim, part in zip(dims, parts, strict=True) if (ends := _ends(part)) is not None]
        if slices:
            return self._part(key, self._windows(tensor, key, parts, slices))
        rest = tuple(slice(None) if _is_pick(part) else part for part in parts)
        if any(part != slice(None) for part in rest):
            found = self._framework(torch.Tensor.__getitem__, found, rest)
        picked = [(dim, part) for dim, part in zip(dims, parts, strict=True) if _is_pick(part)]
        for number, (dim, part) in reversed([*enumerate(picked)]):
            row = (*(slice(None),) * dim, self._framework(torch.Tensor.reshape, part, (1,)))
            found = self._framework(torch.Tensor.__getitem__, found, row)
            if number:
                found = self._framework(torch.Tensor.squeeze, found, dim)
        return self._part(key, self._really(lambda: tensor[key], torch.Tensor.squeeze, found, picked[0][0]))

    def _of_tensors(self, part: Any) -> Any:
        """A part of a key with tensors in the place of numbers that were fetched."""
        if _ends(part) is not None:
            return slice(self._of_tensors(part.start), self._of_tensors(part.stop))
        fetched = isinstance(part, TracedInt) and _is_pick(part)
        return self._framework(torch.tensor, part, dtype=torch.int64) if fetched else part

    def _windows(
        self, tensor: torch.Tensor, key: Any, parts: Sequence[Any], slices: Sequence[tuple[int, Any]]
    ) -> torch.Tensor:
        """A subscript by slices between tensors: as wide as they are now, and within the tensor."""
        call, found = self._framework, tensor
        rest = tuple(slice(None) if _ends(part) is not None else part for part in parts)
        if any(part != slice(None) and part is not Ellipsis for part in rest):
            found = call(torch.Tensor.__getitem__, found, rest)
        for number, (dim, (start, stop)) in enumerate(slices):
            width = _width(tensor, dim, start, stop)
            assert width is not None
            size = call(torch.Tensor.size, tensor, dim)
            wide = call(torch.Tensor.eq, call(torch.Tensor.sub, stop, start), width)
            within = call(torch.Tensor.logical_and, call(torch.Tensor.ge, start, 0), call(torch.Tensor.le, stop, size))
            call(torch.Tensor.__bool__, call(torch.Tensor.logical_and, wide, within))
            places = call(torch.Tensor.add, call(torch.Tensor.reshape, start, (1,)), call(torch.arange, width))
            places = call(torch.Tensor.clamp, places, 0, size - 1)  # where they are not within, nothing is to raise
            row = (*(slice(None),) * dim, places)
            if number == len(slices) - 1:
                return self._really(lambda: tensor[key], torch.Tensor.__getitem__, found, row)
            found = call(torch.Tensor.__getitem__, found, row)
        raise AssertionError("there is a slice")

    def _part(self, key: Any, result: torch.Tensor) -> torch.Tensor:
        place = self._recording.place if _by_numbers(key) else None
        self._parts[id(result)] = (_Part(result, version_of(result), place), result)
        self._recording.copied[self._recording.number(result)] = place
        return result

    def look(self, taken: Sequence[Any], made: Sequence[Any] = ()) -> None:
        """A call of torch's takes these, and has made those."""
        used = [self._parts[id(one)][0] for one in taken if id(one) in self._parts]
        if not used:
            return
        if changed := [part.place for part in used if version_of(part.view) != part.version]:
            hold_numbers(changed)
            self._recording.refuse(
                "a part of a tensor, picked by a tensor, is used when one of the two has been changed in place",
                "a graph looks the part up, and has a copy.",
                "Pick it by a number (tensor[int(index)]), or clone it.",
            )
        for one in made:
            for part in used:
                if isinstance(one, torch.Tensor) and memory_of(one) == memory_of(part.view):
                    self._parts[id(one)] = (part, one)
                    self._recording.copied[self._recording.number(one)] = part.place


def _dims(tensor: torch.Tensor, parts: Sequence[Any]) -> list[int]:
    """For each part of a key the dimension of the result it is for, had tensors of one number been slices."""
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    found, dim = [], 0
    for part in parts:
        found.append(dim)
        if part is Ellipsis:
            dim += tensor.dim() - taken
        elif not isinstance(part, int):
            dim += 1
    return found

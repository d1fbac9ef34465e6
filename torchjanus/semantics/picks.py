"""Subscripts by tensors of one whole number: ``scores[t, word]``, ``table[action]``.

Eager asks such a tensor for its number and gives a view. A graph cannot ask: it looks the element up by the tensor, and
has a copy. That is the same as long as neither is changed while the part is in use, and nobody gets the view: which is
found out here, and refused otherwise. Knows nothing of how calls are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.semantics.recording import Recording, memory_of, version_of

__all__ = ["Picks", "picks"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def _is_pick(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _INTEGERS


def picks(tensor: torch.Tensor, key: Any) -> bool:
    """Whether this is a subscript by tensors of one number, beside numbers and slices."""
    parts = key if type(key) is tuple else (key,)
    plain = (_is_pick(part) or part is None or part is Ellipsis or isinstance(part, int | slice) for part in parts)
    bare = not any(isinstance(part, bool) for part in parts)
    counted = not tensor.is_inference()  # else nobody can tell whether it is changed
    return tensor.dim() > 0 and counted and any(map(_is_pick, parts)) and bare and all(plain)


@dataclass(slots=True)
class _Part:
    """A part that was picked: the view itself, and what tells whether anybody has written there since."""

    view: torch.Tensor
    version: int


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
        parts = list(key) if type(key) is tuple else [key]
        found, dims = tensor, _dims(tensor, parts)
        rest = tuple(slice(None) if _is_pick(part) else part for part in parts)
        if any(part != slice(None) for part in rest):
            found = self._framework(torch.Tensor.__getitem__, found, rest)
        picked = [(dim, part) for dim, part in zip(dims, parts, strict=True) if _is_pick(part)]
        for number, (dim, part) in reversed([*enumerate(picked)]):
            row = (*(slice(None),) * dim, self._framework(torch.Tensor.reshape, part, (1,)))
            found = self._framework(torch.Tensor.__getitem__, found, row)
            if number:
                found = self._framework(torch.Tensor.squeeze, found, dim)
        result = self._really(lambda: tensor[key], torch.Tensor.squeeze, found, picked[0][0])
        self._parts[id(result)] = (_Part(result, version_of(result)), result)
        self._recording.copied.add(self._recording.number(result))
        return result

    def look(self, taken: Sequence[Any], made: Sequence[Any] = ()) -> None:
        """A call of torch's takes these, and has made those."""
        used = [self._parts[id(one)][0] for one in taken if id(one) in self._parts]
        if not used:
            return
        if any(version_of(part.view) != part.version for part in used):
            self._recording.refuse(
                "a part of a tensor, picked by a tensor, is used when one of the two has been changed in place",
                "a graph looks the part up, and has a copy.",
                "Pick it by a number (tensor[int(index)]), or clone it.",
            )
        for one in made:
            for part in used:
                if isinstance(one, torch.Tensor) and memory_of(one) == memory_of(part.view):
                    self._parts[id(one)] = (part, one)
                    self._recording.copied.add(self._recording.number(one))


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

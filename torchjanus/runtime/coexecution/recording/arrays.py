"""Memory of a call's tensors: copies of contents; arrays that share it (``numpy()``), which are written to or live on.

Knows neither paths nor graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["SharedArrays", "Shown", "copied", "memory_of", "same_bits", "shares", "storage_of"]


@dataclass(frozen=True, slots=True)
class Shown:
    """The layout of a tensor whose memory an array shares. ``owner``: the number of the tensor from outside that owns
    the memory, or -1; ``nbytes``: the size of the whole memory; ``first``: the number of the tensor whose array was the
    first one that shared this memory, or -1."""

    owner: int
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    nbytes: int
    first: int = -1

    @classmethod
    def of(cls, tensor: torch.Tensor, owner: int, first: int = -1) -> Shown:
        """Return the layout of a tensor."""
        offset, nbytes = int(tensor.storage_offset()), tensor.untyped_storage().nbytes()
        return cls(owner, tensor.dtype, offset, tuple(tensor.size()), tensor.stride(), nbytes, first)

    def within(self, owner: torch.Tensor) -> torch.Tensor:
        """Return a tensor with this layout in the storage of ``owner``."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            made = torch.empty(0, dtype=self.dtype)
            return made.set_(owner.untyped_storage(), self.offset, self.size, self.stride)

    def placed(self, tensor: torch.Tensor, memory: torch.Tensor | None) -> torch.Tensor:
        """Return a tensor with this layout that holds the same as ``tensor``, in the memory of ``memory``, or in one of
        its own."""
        if memory is None and Shown.of(tensor, self.owner) == self:
            return tensor
        with torch.no_grad(), torch._C.DisableTorchFunction():
            made = self.within(torch.empty(self.nbytes, dtype=torch.uint8) if memory is None else memory)
            return made.copy_(tensor)


@dataclass(slots=True)
class _Array:
    """``then``: its bytes at the last comparison; ``number``: that of the tensor whose ``numpy()`` it is; ``memory``: a
    tensor that shares its memory; ``other``: one that shares the memory of tensors that autograd may have saved."""

    array: np.ndarray[Any, Any]
    then: bytes
    number: int
    memory: torch.Tensor
    other: torch.Tensor | None = None

    @property
    def is_written(self) -> bool:
        return self.array.tobytes() != self.then

    @property
    def is_alive(self) -> bool:
        return sys.getrefcount(self.array) > 2


class SharedArrays:
    """The arrays of one call."""

    def __init__(self) -> None:
        self.all: list[_Array] = []

    def add(self, array: np.ndarray[Any, Any], number: int, memory: torch.Tensor) -> None:
        """Watch an array that shares memory with the tensor ``memory``, which has this number."""
        self.all.append(_Array(array, array.tobytes(), number, memory))

    def written(self) -> bool:
        """Whether the program has written to an array since this was asked last. What autograd has saved of such memory
        is written, too."""
        found = [one for one in self.all if one.is_written]
        for one in found:
            one.then = one.array.tobytes()
            if one.other is not None:
                with torch.no_grad():
                    one.other.copy_(one.memory)
        return bool(found)

    def alive(self) -> Iterator[int]:
        """Yield the numbers of the tensors whose arrays somebody holds."""
        return (one.number for one in self.all if one.is_alive)

    def memory(self, number: int) -> torch.Tensor | None:
        """Return a tensor that shares the memory of the first array of this tensor; None if there is none."""
        return next((one.memory for one in self.all if one.number == number), None)

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the tensors of all arrays."""
        return (one.number for one in self.all)

    def rebind(self, values: Sequence[Any]) -> bool:
        """Give the memory of each array that is still held to the tensors that should share it: ``values``, by number,
        have been made again. Returns whether that was possible. What the arrays hold stays; the rest of their memory,
        which the graph may have used for other values, becomes what the tensors hold."""
        for one in self.all:
            made = values[one.number]
            if not one.is_alive or shares(made, one.memory):
                continue
            if _layout(made) != _layout(one.memory):
                return False
            same = [value for value in values if isinstance(value, torch.Tensor) and shares(value, made)]
            one.other = Shown.of(made, -1).within(made)
            held = [(other, other.array.copy()) for other in self.all if shares(other.memory, one.memory)]
            one.memory.untyped_storage().copy_(made.untyped_storage())
            for other, contents in held:
                other.memory.detach().copy_(torch.from_numpy(contents))
            with torch.no_grad():
                for value in same:
                    value.data = Shown.of(value, -1).within(one.memory)
        return True


def shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both have one storage."""
    return storage_of(one) == storage_of(other)


def storage_of(tensor: torch.Tensor) -> int:
    """Return what identifies the tensor's storage."""
    return int(tensor.untyped_storage()._cdata)


def memory_of(array: np.ndarray[Any, Any], tensor: torch.Tensor) -> bool:
    """Whether the array shares the tensor's memory. One of another dtype is a copy."""
    begin = tensor.untyped_storage().data_ptr()
    end = begin + tensor.untyped_storage().nbytes()
    return array.nbytes > 0 and begin <= array.__array_interface__["data"][0] < end


def _layout(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage().nbytes(), tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the layout of the tensor."""
    with torch.no_grad():
        return tensor.detach().clone()


def same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether both hold the same bits."""
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    first, second = (t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for t in (one, other))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8)) if first.numel() else True

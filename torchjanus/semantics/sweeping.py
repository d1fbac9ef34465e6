"""Lets go of the contents of tensors that a watched run has made and that nobody but its record still holds.

The record numbers tensors by their ids, and so has to keep each one until the run ends, or another tensor might get the
id of one that is gone. But what eager would have freed by then (an optimizer's intermediates, activations after the
backward) need not keep its memory: only the tensor is needed, not what is in it. Knows nothing of what is recorded.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Sequence

import torch

__all__ = ["Sweeping"]

SMALL = 1 << 14  # bytes that are not worth the looking
OFTEN = 1 << 22  # so many bytes made call for a look at what has been made before


class Sweeping:
    """Looks after the tensors of one run, which are given as a list: nothing else of the record holds them."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._watched: list[int] = []
        self._made = 0  # bytes since the last look

    def made(self, number: int) -> None:
        """The run has made this tensor."""
        tensor = self._tensors[number]
        if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
            return
        size = tensor.untyped_storage().nbytes()
        if size < SMALL:
            return
        if self._made > OFTEN:
            self._made = 0
            self._sweep()
        self._watched.append(number)
        self._made += 0 if tensor._is_view() else size

    def _sweep(self) -> None:
        """Free the memory of which all that is left is in the list."""
        alone = [number for number in self._watched if _references(self._tensors, number) == _NOBODY[0]]
        views: Counter[int] = Counter()  # of each tensor, by its id
        for number in alone:
            if self._tensors[number]._is_view():
                views[id(self._tensors[number]._base)] += 1
        sharing: dict[int, list[int]] = {}
        for number in alone:
            tensor = self._tensors[number]
            if tensor._use_count() == 1 + views[id(tensor)]:  # type: ignore[attr-defined]
                sharing.setdefault(tensor.untyped_storage()._cdata, []).append(number)
        gone: set[int] = set()
        for numbers in sharing.values():
            storage, references, uses = _storage(self._tensors[numbers[0]])
            if (references, uses) == (_NOBODY[1], len(numbers) + 1) and storage.resizable():
                storage.resize_(0)
                gone.update(numbers)
        self._watched = [number for number in self._watched if number not in gone]

    def end(self) -> None:
        """The run is over."""
        self._tensors, self._watched = (), []


def _references(tensors: Sequence[torch.Tensor], number: int) -> int:
    """How many references there are to this object; -1 if there are weak ones."""
    tensor = tensors[number]
    return -1 if weakref.getweakrefcount(tensor) else sys.getrefcount(tensor)


def _storage(tensor: torch.Tensor) -> tuple[torch.UntypedStorage, int, int]:
    """Its storage, how many references there are to that object, and how many tensors use the memory; and this."""
    storage = tensor.untyped_storage()
    return storage, sys.getrefcount(storage), torch._C._storage_Use_Count(storage._cdata)


# Of what only the list holds: interpreters count differently.
_NOBODY = _references([torch.empty(1)], 0), _storage(torch.empty(1))[1]

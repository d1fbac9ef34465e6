"""What recursive calls of a step have written to objects, of which nobody may see anything before the commit.

The calls of a speculated run are computed in another order than eager's, and their writes are made when all is known.
So what they write is for those who come after the step. Knows nothing of how calls are watched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.hooks.lookup import attributes_of

__all__ = ["CallWrites", "Counts", "share_memory"]


class CallWrites:
    """Of one step. Objects are told apart by identity: the traces of the calls keep them alive."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, Any], object] = {}
        self._lists: set[int] = set()
        self._returned: list[tuple[torch.Tensor, int]] = []

    def stored(self, container: Any, key: Any, by: object) -> None:
        """A call has written there. ``by``: who records it."""
        self._places[id(container), key] = by

    def appended(self, container: Any) -> None:
        """A call has appended to it."""
        self._lists.add(id(container))

    def returned(self, tensors: Iterable[torch.Tensor]) -> None:
        """A call of the step itself has returned these."""
        self._returned += [(tensor, _version(tensor)) for tensor in tensors]

    def is_stored(self, container: Any, key: Any, by: object) -> bool:
        """Whether another call than this one has written there."""
        return self._places.get((id(container), key), by) is not by

    def last(self, container: Any, key: Any) -> Any:
        """What a call has written there last; None where none has."""
        by: Any = self._places.get((id(container), key))
        return None if by is None else by.written(container, key)

    def is_appended(self, container: Any) -> bool:
        """Whether calls have appended to it."""
        return id(container) in self._lists

    def wrote(self, value: Any) -> bool:
        """Whether calls have changed the object, or its attributes."""
        parts = (id(value), id(attributes_of(value)))
        return id(value) in self._lists or any(place in parts for place, _ in self._places)

    def shows(self, leaving: Iterable[torch.Tensor]) -> bool:
        """Whether the step changes what calls have returned, or lets it out: what they have stored may share memory
        with that."""
        if not self._places and not self._lists:
            return False
        changed = any(_version(tensor) != version for tensor, version in self._returned)
        return changed or share_memory(leaving, [tensor for tensor, _ in self._returned])


class Counts:
    """Numbers that are the same for all calls, and that calls have been seen to write (``self.visited += 1``): such a
    number is no constant of the program. ``known``: where they are found, in any run; ``new``: those of this run that
    were not known."""

    def __init__(self, known: set[Any] | None = None) -> None:
        self._known: set[Any] = set() if known is None else known
        self._held: set[tuple[int, Any]] = set()
        self.new: list[str] = []

    def __contains__(self, place: Any) -> bool:
        return place in self._known

    def add(self, place: AccessPath, container: Any, key: Any) -> None:
        """A call has written there what it had read there."""
        if place.token not in self._known:
            self.new.append(str(place))
        self._known.add(place.token)
        self._held.add((id(container), key))

    def holds(self, container: Any, key: Any) -> bool:
        """Whether calls of this run have counted there."""
        return (id(container), key) in self._held


def share_memory(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Whether one of these tensors shares memory with one of those."""
    return not {_memory(tensor) for tensor in some}.isdisjoint({_memory(tensor) for tensor in others})


def _memory(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


def _version(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return -1 if tensor.is_inference() else tensor._version

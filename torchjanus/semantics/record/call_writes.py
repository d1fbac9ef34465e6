"""Record what the recursive calls of a step write to objects.

A graph runs the calls in another order than eager execution and defers their writes to the commit. So nothing within
the step may read them. This module does not watch calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.rewrite.hooks.lookup import attributes_of

__all__ = ["CallWrites", "Counts", "share_memory"]


class CallWrites:
    """The writes of one step's calls. Objects are keyed by ``id``: the traces of the calls keep them alive."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, Any], object] = {}
        self._lists: set[int] = set()
        self._returned: list[tuple[torch.Tensor, int]] = []

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._places or self._lists)

    def record_store(self, container: Any, key: Any, by: object) -> None:
        """Record a write of a call. ``by``: the recording of the call."""
        self._places[id(container), key] = by

    def record_append(self, container: Any) -> None:
        """Record that a call has appended to a container."""
        self._lists.add(id(container))

    def record_result(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record the tensors that a call made by the step itself has returned."""
        self._returned += [(tensor, _version(tensor)) for tensor in tensors]

    def is_stored(self, container: Any, key: Any, by: object) -> bool:
        """Whether a call other than ``by`` has written there."""
        return self._places.get((id(container), key), by) is not by

    def last(self, container: Any, key: Any) -> Any:
        """Return what a call has written there last, None if no call has."""
        by: Any = self._places.get((id(container), key))
        return None if by is None else by.written(container, key)

    def is_appended(self, container: Any) -> bool:
        """Whether calls have appended to a container."""
        return id(container) in self._lists

    def wrote(self, value: Any) -> bool:
        """Whether calls have changed an object or its attributes."""
        parts = (id(value), id(attributes_of(value)))
        return id(value) in self._lists or any(place in parts for place, _ in self._places)

    def shows(self, leaving: Iterable[torch.Tensor]) -> bool:
        """Whether the step changes or returns a tensor that calls have returned. Stored tensors may alias it."""
        if not self._places and not self._lists:
            return False
        changed = any(_version(tensor) != version for tensor, version in self._returned)
        return changed or share_memory(leaving, [tensor for tensor, _ in self._returned])


class Counts:
    """Numbers of shared objects that calls read and write (``self.visited += 1``): a graph must not specialise on them.

    ``known``: the tokens of their access paths over all runs; ``new``: those that this run has added.
    """

    def __init__(self, known: set[Any] | None = None) -> None:
        self._known: set[Any] = set() if known is None else known
        self._held: set[tuple[int, Any]] = set()
        self.new: list[str] = []

    def __contains__(self, place: Any) -> bool:
        return place in self._known

    def add(self, place: AccessPath, container: Any, key: Any) -> None:
        """Record that a call writes a number where it has read one."""
        if place.token not in self._known:
            self.new.append(str(place))
        self._known.add(place.token)
        self._held.add((id(container), key))

    def holds(self, container: Any, key: Any) -> bool:
        """Whether calls of this run have written a number there."""
        return (id(container), key) in self._held


def share_memory(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Whether a tensor of ``some`` shares its storage with one of ``others``."""
    return not {_memory(tensor) for tensor in some}.isdisjoint({_memory(tensor) for tensor in others})


def _memory(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


def _version(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return -1 if tensor.is_inference() else tensor._version

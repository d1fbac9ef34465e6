"""Iterators that show a watched run its traced elements, and the container's own elements once the run is over.

Knows nothing of how containers are watched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchjanus.core.access_path import native_class
from torchjanus.semantics.protocols.indexed_iterators import WrappedIterable
from torchjanus.semantics.record.recording import Recording

__all__ = ["paired"]


class _Paired(WrappedIterable):
    """The iterator of a container, with the elements of a copy: it ends or raises as the container's own one does."""

    __slots__ = ("_copy", "_own", "_recording")

    def __init__(self, recording: Recording, own: Any, copy: Iterable[Any]) -> None:
        self._recording, self._own = recording, own
        self._copy: Any = iter(copy)

    def __iter__(self) -> _Paired:
        return self

    def __next__(self) -> Any:
        own = next(self._own)
        recording = self._recording
        return own if recording.over or recording.lost else next(self._copy, own)

    def native(self) -> Any:
        return self._own


class _Measured(_Paired):
    """One whose length Python can ask for: all but those of an OrderedDict."""

    __slots__ = ()

    def __length_hint__(self) -> Any:
        return self._own.__length_hint__()


class _Positioned(_Measured):
    """One whose position can be set, as copying and unpickling do: those of lists and tuples, forward and backward."""

    __slots__ = ()

    def __setstate__(self, index: Any) -> None:
        self._own.__setstate__(index)
        self._copy.__setstate__(index)


def paired(recording: Recording, container: Any, copy: Iterable[Any], name: str = "__iter__") -> _Paired:
    """Return the iterator of a container or view that its method ``name`` makes, with the elements of ``copy`` during
    the run."""
    own = getattr(native_class(type(container)) or type(container), name)(container)
    kind = _Positioned if hasattr(type(own), "__setstate__") else _Measured
    return (kind if hasattr(type(own), "__length_hint__") else _Paired)(recording, own, copy)

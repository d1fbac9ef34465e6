"""What native code reads of containers: their elements and lengths, one by one, or all of them at once."""

from __future__ import annotations

import collections
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch

from torchjanus.origin import Origin
from torchjanus.semantics.framework import FrameworkRecorder
from torchjanus.semantics.recording import Recording
from torchjanus.semantics.shadows import Shadows
from torchjanus.trace.values import Apply, Traced, TracedStr, plain, trace_value

__all__ = ["CONTAINERS", "HeapAccess", "NativeContainers"]

_SEQUENCES = (list, tuple, collections.deque)
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)


class HeapAccess(Protocol):
    """The part of the watching semantics that native calls fall back on."""

    def load_item(self, at: Any, obj: Any, key: Any) -> Any: ...
    def store_item(self, at: Any, obj: Any, key: Any, value: Any) -> None: ...
    def drop_item(self, at: Any, obj: Any, key: Any) -> None: ...
    def load_attr(self, at: Any, obj: Any, name: str) -> Any: ...
    def store_attr(self, at: Any, obj: Any, name: str, value: Any) -> None: ...
    def drop_attr(self, at: Any, obj: Any, name: str) -> None: ...
    def truth(self, at: Any, value: Any) -> bool: ...
    def native_binary(self, at: Any, op: str, a: Any, b: Any) -> Any: ...


class NativeContainers(ABC):
    """Reads containers for the native calls of one watched run."""

    def __init__(self, recording: Recording, framework: FrameworkRecorder, heap: HeapAccess) -> None:
        self.recording = recording
        self.framework = framework
        self.heap = heap
        self.shadows = Shadows(recording)

    @abstractmethod
    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a native call for real and record what it means."""

    @abstractmethod
    def unknown(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a native call that nothing is known of: the trace is refused."""

    def opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a framework call: containers from before the call are read, so that traced numbers in them
        go into the node as expressions."""
        return tuple(map(self._opened, args)), {key: self._opened(value) for key, value in kwargs.items()}

    def _opened(self, value: Any) -> Any:
        if not isinstance(value, CONTAINERS) or isinstance(value, torch.Size):
            return value
        copy = self.consumed(value)
        if isinstance(copy, dict):
            parts: Any = {key: self._opened(part) for key, part in dict.items(copy)}
            same = all(parts[key] is part for key, part in dict.items(copy))
        else:
            parts = [self._opened(part) for part in copy]
            same = all(new is old for new, old in zip(parts, copy, strict=True))
        if same:
            return copy
        if isinstance(copy, dict):
            return parts
        return type(copy)(*parts) if hasattr(copy, "_fields") else type(copy)(parts)

    def expose(self, value: Any, *, pin: bool = True) -> None:
        """Read a container from end to end: native code is about to do the same. With ``pin``, the numbers in it are
        held constant."""
        if isinstance(value, Traced):
            if pin:
                self.recording.pin(value, "read by native code")
        elif isinstance(value, CONTAINERS):
            if self.recording.owner(value) is not None:
                for part in self.iterable(value):
                    self.expose(part, pin=pin)
                if isinstance(value, dict):
                    for part in self.consumed(value).values():
                        self.expose(part, pin=pin)
            else:
                for part in dict.values(value) if isinstance(value, dict) else value:
                    self.expose(part, pin=pin)

    # -- containers -----------------------------------------------------------------------------------------------

    def whole_length(self, obj: Any) -> None:
        """Hold the length of a container from before the call constant, as it was then."""
        if self.shadows.of(obj) is not None:
            return  # its reads hold what they need
        origin = self.recording.owner(obj)
        assert origin is not None
        self.recording.pin(self.recording.length(origin, obj), "the length decides what is read")

    def iterable(self, obj: Any) -> Iterable[Any]:
        """The elements of ``obj`` in order, read one by one if it was there before the call."""
        origin = self.recording.owner(obj)
        if origin is None or isinstance(obj, torch.Tensor | range | str | bytes):
            return obj  # type: ignore[no-any-return]
        shadow = self.shadows.of(obj)
        if shadow is not None:
            return shadow.elements()
        if id(obj) in self.recording.restructured:
            self.recording.refuse(
                f"reads a {type(obj).__name__} after changing its length in the same call",
                "held-back changes are not visible to it yet.",
                "Read it before changing it, or in the next call.",
            )
            return obj  # type: ignore[no-any-return]
        if isinstance(obj, _SEQUENCES):
            return self._sequence(origin, obj)
        if isinstance(obj, dict | set | frozenset):
            keys = tuple(obj)
            self.recording.keys(origin, keys)
            for key in keys:
                if not isinstance(key, str | int | float | bool | type(None)):
                    self.recording.claim(key, Origin.const(key))
            return keys
        if isinstance(obj, types.MappingProxyType) or (type(obj).__module__ == "builtins" and hasattr(obj, "mapping")):
            return obj  # type: ignore[no-any-return]
        self.recording.refuse(
            f"iterates over a {type(obj).__name__} that was there before the call",
            "taking an element from it is a side effect outside of the graph.",
            "Take the elements outside of the step and pass them in.",
        )
        return obj  # type: ignore[no-any-return]

    def _sequence(self, origin: Origin, obj: Any) -> Iterator[Any]:
        self.whole_length(obj)
        index = 0
        while index < len(obj):
            yield self.recording.read_key(origin, obj, index)
            index += 1

    def consumed(self, value: Any) -> Any:
        """A private copy of a container from before the call, its elements read and traced; or the value as it is."""
        if self.recording.owner(value) is None or not isinstance(value, CONTAINERS):
            return value
        if isinstance(value, dict):
            keys = tuple(self.iterable(value))
            copy: dict[Any, Any] = {key: self.heap.load_item(None, value, key) for key in keys}
            return copy
        parts = list(self.iterable(value))
        for cls in (list, set, frozenset, collections.deque):
            if isinstance(value, cls):
                return cls(parts)
        return tuple(parts) if type(value) is tuple or not hasattr(value, "_fields") else type(value)(*parts)

    def _length(self, obj: Any) -> Any:
        origin = self.recording.owner(obj)
        if isinstance(obj, TracedStr):
            return trace_value(len(obj), Apply(len, (obj.expr,)))
        if origin is None or isinstance(obj, torch.Tensor) or not isinstance(obj, CONTAINERS):
            if origin is not None and not isinstance(obj, torch.Tensor | str | bytes | range):
                self.recording.refuse(f"takes the length of a {type(obj).__name__}", "it is not watched.", "")
            return len(obj)
        shadow = self.shadows.of(obj)
        if shadow is not None:
            return shadow.length()
        if id(obj) in self.recording.restructured:
            self.iterable(obj)  # refuses
            return len(obj)
        return self.recording.length(origin, obj)

    def _pinned(self, value: Any, why: str) -> Any:
        value = self.recording.pin(value, why)
        if isinstance(value, CONTAINERS):
            self.expose(value, pin=True)
            if type(value) in (list, tuple, set, frozenset, collections.deque):
                return type(value)(map(plain, value))
        return value

    def _pin_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            self.recording.pin(value, "read by native code")
            self.expose(value)

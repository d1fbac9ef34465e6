"""Reads of ``cls.__dict__``: the value of each name that is read becomes an assumption.

Classes of libraries, which are not expected to change, are not watched this way. Other mapping proxies are not watched
either: reading from one is refused where its contents may change.
"""

from __future__ import annotations

import types
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import getattr, isinstance
from torchjanus.semantics.protocols.leaves import namespace_of
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.record.write_record import ABSENT

__all__ = ["ClassNamespaces", "functions_of", "refuse_view"]


def functions_of(raw: Any) -> list[types.FunctionType]:
    """Return the functions of a class attribute: itself, the function that it wraps, and those of a property."""
    parts = (raw, *(getattr(raw, part, None) for part in ("__func__", "fget", "fset", "fdel")))
    return [part for part in parts if isinstance(part, types.FunctionType)]


def refuse_view(recording: Recording) -> None:
    """Refuse the trace: the call reads through a mapping proxy, and a graph would not notice changes behind it."""
    recording.refuse(
        "container-unwatched",
        "asks for parts of a mappingproxy that was there before the call: what it holds is not watched",
        "the dictionary behind it may change.",
        "Ask the dictionary itself.",
    )


class ClassNamespaces:
    """The classes whose ``__dict__`` the call has read."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._of: dict[int, tuple[Any, type]] = {}  # keeps the view alive, so that its id stays unique

    def show(self, cls: type) -> Any:
        view = namespace_of(cls)
        self._of[id(view)] = view, cls
        self._recording.claim(view, AccessPath.const(cls).then(Step.DICT))
        return view

    def is_shown(self, view: Any) -> bool:
        """Whether ``show`` returned this view."""
        return id(view) in self._of

    def has(self, view: Any, key: Any) -> bool:
        """Return ``key in cls.__dict__``."""
        recording, cls = self._recording, self._of[id(view)][1]
        if recording.has_written(cls, key):
            return recording.written(cls, key) is not ABSENT
        recording.absent(AccessPath.const(cls).then(Step.DICT), key, present=key in view)
        return key in view

    def item(self, view: Any, key: Any) -> Any:
        """Return ``cls.__dict__[key]``. Raises KeyError."""
        recording, cls = self._recording, self._of[id(view)][1]
        if not self.has(view, key):
            raise KeyError(key)
        if recording.has_written(cls, key):
            return recording.written(cls, key)
        raw = view[key]
        functions = functions_of(raw)
        access_path = AccessPath.const(cls).then(Step.DICT).item(key)
        if functions or not isinstance(key, str):
            recording.held(access_path, raw, functions)
            return raw
        return recording.found(access_path, raw)

    def call(self, view: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Call a method of the view."""
        if name in ("__getitem__", "get") and args:
            default = args[1] if len(args) > 1 else None
            return self.item(view, args[0]) if name == "__getitem__" or self.has(view, args[0]) else default
        if name == "__contains__" and args:
            return self.has(view, args[0])
        self.record_whole_read(view)
        return getattr(view, name)(*args)

    def record_whole_read(self, view: Any) -> None:
        """Record that the program reads all of the view."""
        recording, cls = self._recording, self._of[id(view)][1]
        if any(recording.has_written(cls, key) for key in view):
            refuse_view(recording)
        base = AccessPath.const(cls).then(Step.DICT)
        recording.keys(base, tuple(view))
        for key, raw in view.items():
            recording.held(base.item(key), raw)

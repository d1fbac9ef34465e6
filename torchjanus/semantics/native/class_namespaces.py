"""What a class shows of itself as its ``__dict__``: each name is what the class has under it now, and a graph holds it.

Classes of which nobody is expected to change anything (a library's) are not watched so, nor other views of
dictionaries: what those show is refused where it may change.
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
    """The functions that a class attribute stands for: itself, what it wraps, and a property's."""
    parts = (raw, *(getattr(raw, part, None) for part in ("__func__", "fget", "fset", "fdel")))
    return [part for part in parts if isinstance(part, types.FunctionType)]


def refuse_view(recording: Recording) -> None:
    """The call looks through a view of a dictionary at what a graph would not see change."""
    recording.refuse(
        "container-unwatched",
        "asks for parts of a mappingproxy that was there before the call: what it holds is not watched",
        "the dictionary behind it may change.",
        "Ask the dictionary itself.",
    )


class ClassNamespaces:
    """The classes whose ``__dict__`` the call has asked for."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._of: dict[int, tuple[Any, type]] = {}  # the view is kept: another would get its number

    def show(self, cls: type) -> Any:
        view = namespace_of(cls)
        self._of[id(view)] = view, cls
        self._recording.claim(view, AccessPath.const(cls).then(Step.DICT))
        return view

    def is_shown(self, view: Any) -> bool:
        """Whether it is what a class has shown."""
        return id(view) in self._of

    def has(self, view: Any, key: Any) -> bool:
        """``key in cls.__dict__``."""
        recording, cls = self._recording, self._of[id(view)][1]
        if recording.has_written(cls, key):
            return recording.written(cls, key) is not ABSENT
        recording.absent(AccessPath.const(cls).then(Step.DICT), key, present=key in view)
        return key in view

    def item(self, view: Any, key: Any) -> Any:
        """``cls.__dict__[key]``. Raises KeyError."""
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
        """A method of the view."""
        if name in ("__getitem__", "get") and args:
            default = args[1] if len(args) > 1 else None
            return self.item(view, args[0]) if name == "__getitem__" or self.has(view, args[0]) else default
        if name == "__contains__" and args:
            return self.has(view, args[0])
        self.whole(view)
        return getattr(view, name)(*args)

    def whole(self, view: Any) -> None:
        """All of it is looked at."""
        recording, cls = self._recording, self._of[id(view)][1]
        if any(recording.has_written(cls, key) for key in view):
            refuse_view(recording)
        base = AccessPath.const(cls).then(Step.DICT)
        recording.keys(base, tuple(view))
        for key, raw in view.items():
            recording.held(base.item(key), raw)

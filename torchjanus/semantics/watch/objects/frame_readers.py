"""Watch functions that read frames of the stack: the program gets its own frames, without those of torchjanus."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
import typing
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import getattr, is_one_of, isinstance, move_to_module
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import program_frames
from torchjanus.semantics.external.logs import warnings_shown
from torchjanus.semantics.protocols.leaves import namespace_of
from torchjanus.semantics.watch.objects.state import Part, WatchState

__all__ = ["FrameReaders", "in_its_module", "program_module"]


class FrameReaders(Part):
    """Functions that read the caller's frame."""

    def __init__(self, state: WatchState, outermost: types.CodeType) -> None:
        """``outermost``: the code of ours that calls the step."""
        super().__init__(state)
        self._outermost = outermost

    def frame_reader(self, at: Site, owner: dict[str, Any], fn: Any) -> Any:
        """Return what is called in place of such a function. ``owner``: the caller's globals."""
        self.at(at)
        if fn is warnings.warn:
            return functools.partial(self._warn, at, owner)
        if fn is not inspect.currentframe:
            self.recording.refuse(
                "frame-inspection",
                f"calls {getattr(fn, '__name__', fn)}()",
                "it looks at variables behind the back of the watch.",
                "Name the variables instead.",
            )
        if fn is getattr(sys, "_getframemodulename", None):  # since Python 3.12
            return program_module
        return program_frame if fn is sys._getframe else fn

    def _warn(
        self,
        at: Site,
        owner: dict[str, Any],
        message: Warning | str,
        category: type[Warning] | None = None,
        stacklevel: int = 1,
        source: Any = None,
        **options: Any,
    ) -> None:
        """Record ``warnings.warn`` with an explicit location: at commit the frame of the user's line is gone."""
        frames = _of_eager(program_frames(self._outermost))
        caller = next(itertools.islice(frames, stacklevel - 1, None), None) if stacklevel > 1 else None
        if options or (stacklevel > 1 and caller is None):
            # The next call of the step may come from another place.
            self.recording.refuse(
                "caller-of-log", "warns in its caller's name", "the caller is not there at commit.", ""
            )
            warnings.warn(message, category, stacklevel + 1, source, **options)
            return
        if warnings_shown() != self.state.step.warnings:
            what = "warns under filters that the step has set"
            self.recording.refuse(
                "warning-filters", what, "at commit they are no longer in force.", "Set them before the step."
            )
        self.state.step.recording.rely_on_filters()
        file, line = at.file, at.line
        if caller is not None:
            owner, file, line = caller.f_globals, caller.f_code.co_filename, caller.f_lineno
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        registry = owner.setdefault("__warningregistry__", {})
        self.recording.claim(registry, AccessPath.const(registry))
        module = owner.get("__name__") or "<unknown>"
        self.natives.externs.dropped = True  # it returns nothing
        self.natives.extern(warnings.warn_explicit, (message, kind, file, line, module, registry), {})


def in_its_module(made: Any) -> Any:
    """Correct ``__module__`` of a class or type variable just made by native code that reads the calling frame: it is
    ours. Return the object."""
    if is_one_of(type(made), _OF_TYPING):
        if made.__module__.startswith(_OWN):
            made.__module__ = program_module()
    elif issubclass(type(made), type):
        module = namespace_of(made).get("__module__")
        if (
            isinstance(module, str)
            and module.startswith(_OWN)
            and vars(sys.modules[module]).get(made.__name__) is not made
        ):
            move_to_module(made, program_module() or "builtins")
    return made


_OWN = "torchjanus.semantics."
_OF_TYPING = (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple, typing.NewType)


def program_frame(depth: int = 0) -> types.FrameType:
    """Return ``sys._getframe(depth)`` without the frames of torchjanus. Raises ValueError if there is none."""
    for frame in itertools.islice(program_frames(), depth, None):
        return frame
    raise ValueError("call stack is not deep enough")


def _of_eager(frames: Iterator[types.FrameType]) -> Iterator[types.FrameType]:
    """Yield frames without those of torch function dispatch: eager execution does not have them."""
    for frame in frames:
        if frame.f_code is _DISPATCH_CODE:
            next(frames, None)
        else:
            yield frame


_DISPATCH_CODE = torch.overrides.handle_torch_function.__code__


def program_module(depth: int = 0) -> str | None:
    """Return ``sys._getframemodulename(depth)`` without the frames of torchjanus."""
    try:
        name: str | None = program_frame(depth).f_globals.get("__name__")
    except ValueError:
        return None
    return name

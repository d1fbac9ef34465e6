"""Warnings of native code that torchjanus's frames call in the program's place: shown at the program's line, or, where
the program does not make the call, not at all."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torchjanus.rewrite.hooks.frames import is_own
from torchjanus.rewrite.hooks.semantics import current

__all__ = ["place_warnings", "silenced"]

_work = threading.local()
_original: Any = None


def place_warnings() -> None:
    """From now on show warnings that would name torchjanus's files at the line of the program.

    Python asks its filters about the line of ours first. Those of them that let it pass are asked again.
    """
    global _original
    # What the interpreter calls; it calls showwarning(), which the program may have replaced.
    shows: Any = getattr(warnings, "_showwarnmsg", None)
    if shows is not None and shows is not _show:
        _original = shows
        warnings._showwarnmsg = _show  # type: ignore[attr-defined]


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Show no warnings of this thread: the program's operations are repeated. Changing filters instead would make the
    program's own warnings appear once more."""
    before = getattr(_work, "silent", False)
    _work.silent = True
    try:
        yield
    finally:
        _work.silent = before


def _show(message: Any) -> None:
    if getattr(_work, "silent", False):
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != message.filename:
        frame = frame.f_back
    if frame is None or not is_own(frame.f_code):
        _original(message)
        return
    frame.f_globals.pop("__warningregistry__", None)  # or the next warning from here would not be shown
    frame = _program(frame)
    if frame is None or current() is None:
        return  # a graph repeats what a watched call has warned about
    warnings.onceregistry.pop((str(message.message), message.category), None)  # type: ignore[attr-defined]
    file, names = frame.f_code.co_filename, frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message.message, message.category, file, frame.f_lineno, names.get("__name__"), registry, source=message.source
    )


def _program(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program around a frame of ours. A function of torch whose modes call us is
    called by the program."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.overrides":
            frame = frame.f_back
        elif not is_own(frame.f_code):
            return frame
        frame = None if frame is None else frame.f_back
    return None

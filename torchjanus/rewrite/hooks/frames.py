"""Removes torchjanus's own frames from the user's tracebacks and stacks. Knows nothing of hooks."""

from __future__ import annotations

import sys
from builtins import reversed  # a program may rebind builtins.reversed
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from torchjanus.rewrite import RUN

__all__ = ["hide_frames", "program_frames"]

OWN = str(Path(__file__).resolve().parents[2]) + "/"
OWN_RAW = __file__.removesuffix("rewrite/hooks/frames.py")  # as code objects spell it, which may differ from OWN

GENERATED = "<torchjanus "  # the prefix of the file names of generated code
CALLING = "<torchjanus call>"  # the name of functions that make a call for the program, from its file and line


def hide_frames(exception: BaseException) -> None:
    """Remove torchjanus's frames from the traceback of an exception, its causes, its contexts and its group members."""
    waiting, seen = [exception], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if one.__traceback__ is not None:
            shown = without_own(one.__traceback__)
            if shown is not one.__traceback__:
                one.__traceback__ = shown
        waiting.extend(linked for linked in (one.__cause__, one.__context__) if linked is not None)
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith((OWN_RAW, OWN, GENERATED)) or code.co_name == CALLING


def program_frames(until: CodeType | None = None) -> Iterator[FrameType]:
    """Yield the stack's frames without torchjanus's, innermost first, until a frame that runs ``until``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not until:
        if not _is_own(frame.f_code):
            yield frame
        frame = frame.f_back


def without_own(traceback: TracebackType) -> TracebackType | None:
    """Return the traceback without torchjanus's frames. The others are relinked in place: they may be shared. Of a run
    of statements that has been made a function, only its own frame is kept."""
    kept: list[TracebackType] = []
    step: TracebackType | None = traceback
    while step is not None:
        code = step.tb_frame.f_code
        if not _is_own(code):
            if kept and RUN in code.co_consts:
                kept.pop()
            kept.append(step)
        step = step.tb_next
    following: TracebackType | None = None
    for one in reversed(kept):
        if one.tb_next is not following:
            one.tb_next = following
        following = one
    return following

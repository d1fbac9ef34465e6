"""Keeps Dynamo, torch's compiler of frames, from compiling torchjanus' own functions, without importing it.

This module does not know what the functions do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["call_uncompiled", "is_compiling", "leave_alone", "skipped"]

_frames: Any = torch._C._dynamo.eval_frame  # written in C, and present without Dynamo
# The callback that decides whether to compile a frame; None where nothing is compiled in this thread.
is_compiling: Callable[[], Any] = _frames.get_eval_frame_callback
_registered = False


def leave_alone() -> None:
    """Make Dynamo, if the program has imported it, run the functions of this package's files as they are."""
    global _registered
    add = getattr(sys.modules.get("torch._dynamo.trace_rules"), "add", None)
    if add is not None and not _registered:
        _registered = True
        add(__name__.partition(".")[0])


def skipped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function so that Dynamo runs its frames as they are, and does not trace into it where it is called."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    if hasattr(_frames, "set_code_exec_strategy"):
        action = _frames._FrameAction
        strategy = _frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        _frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def call_uncompiled(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function without compiling its frame, or frames of functions that it calls."""
    before = _frames.set_eval_frame(None)
    try:
        return function(*args)
    finally:
        _frames.set_eval_frame(before)

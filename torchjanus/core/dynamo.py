"""What torch's compiler of frames (Dynamo) is to do with this package's functions: nothing. It is not imported here.

Knows nothing of what the functions do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["apart", "is_compiling", "leave_alone", "skipped"]

_frames: Any = torch._C._dynamo.eval_frame  # written in C, and there without Dynamo
# The callback that is asked whether to compile a frame; None where nothing is compiled in this thread.
is_compiling: Callable[[], Any] = _frames.get_eval_frame_callback
_told = False


def leave_alone() -> None:
    """Have Dynamo, if the program has imported it, run the functions of this package's files as they are."""
    global _told
    add = getattr(sys.modules.get("torch._dynamo.trace_rules"), "add", None)
    if add is not None and not _told:
        _told = True
        add(__name__.partition(".")[0])


def skipped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function so that Dynamo runs its frames as they are, and does not look into it where it is called."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    if hasattr(_frames, "set_code_exec_strategy"):
        action = _frames._FrameAction
        strategy = _frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        _frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of which no frame is to be compiled, nor of those that it calls."""
    before = _frames.set_eval_frame(None)
    try:
        return function(*args)
    finally:
        _frames.set_eval_frame(before)

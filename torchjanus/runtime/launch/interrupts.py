"""Defers Ctrl-C while a call must not be interrupted. It does not know what the call does.

Python runs a signal's handler between two instructions of the main thread, so an interrupt could come after some of a
commit's writes and before others. From before a graph's updates to the end of its commit the handler only records the
signal; then the program's own handler is called, which raises KeyboardInterrupt as usual.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["hold_interrupts", "release_interrupts"]

_SIGINT = int(signal.SIGINT)
_MAIN = threading.main_thread().ident
_ident = threading.get_ident
# What signal.signal() wraps: its conversions between numbers and enumerations take longer than all the rest.
_set: Callable[[int, Any], Any] = _signal.signal


class _Waiting:
    """Replaces the program's handler, and records a signal."""

    __slots__ = ("came", "handler")

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True


def hold_interrupts() -> _Waiting | None:
    """Defer interrupts from now on. Pass the result to ``release_interrupts``."""
    if _ident() != _MAIN:
        return None  # handlers run in the main thread only
    waiting = _Waiting(None)
    waiting.handler = _set(_SIGINT, waiting)
    if not callable(waiting.handler):  # ignored, the system's own, or set from C: cannot be called from Python
        if waiting.handler is not None:
            _set(_SIGINT, waiting.handler)
        return None
    return waiting


def release_interrupts(waiting: _Waiting | None) -> None:
    """Restore the program's handler, and call it if an interrupt came meanwhile."""
    if waiting is not None:
        _set(_SIGINT, waiting.handler)
        if waiting.came:
            waiting.handler(_SIGINT, None)

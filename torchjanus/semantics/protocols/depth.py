"""Counts the program's own recursion depth while a run is watched.

A watched function takes several Python frames where the program's own takes one. Python's recursion limit is raised
during the run, and the depth is counted here. So a recursion that eager can do can be watched, and an endless one
raises RecursionError about where it does in eager.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["Depth", "room"]

_FRAMES = 12  # the most Python frames and C calls that one watched call of a function takes


_lock = threading.Lock()
_limits: list[int] = []  # the program's own limit, one element for each run that is being watched


class Depth:
    """The depth of the watched program's own calls."""

    def __init__(self) -> None:
        frame: FrameType | None = sys._getframe()
        here = 0
        while frame is not None:
            frame, here = frame.f_back, here + 1
        with _lock:
            self._left = (_limits[0] if _limits else sys.getrecursionlimit()) - here

    @property
    def left(self) -> int:
        """How many more nested functions can be entered."""
        return self._left

    def enter(self) -> None:
        """A function begins. Raises RecursionError."""
        if self._left <= 0:
            raise RecursionError("maximum recursion depth exceeded")
        self._left -= 1

    def leave(self) -> None:
        """A function has ended."""
        self._left += 1


@contextlib.contextmanager
def room() -> Iterator[None]:
    """Raise the recursion limit while a run is watched. All threads share it; the last run restores it."""
    with _lock:
        if not _limits:
            _limits.append(sys.getrecursionlimit())
            sys.setrecursionlimit(_limits[0] * _FRAMES)
        else:
            _limits.append(_limits[0])
    try:
        yield
    finally:
        with _lock:
            limit = _limits.pop()
            if not _limits and sys.getrecursionlimit() == limit * _FRAMES:  # else the program has set another
                sys.setrecursionlimit(limit)

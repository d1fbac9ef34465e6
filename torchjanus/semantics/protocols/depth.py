"""Room for recursion: a watched function takes several Python frames where the program's own takes one.

Python's limit on recursion is raised while a run is watched, and the program's own depth is counted instead, so that a
recursion that eager can do can be watched, and one without an end raises RecursionError about where it does in eager.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["Depth", "room"]

_FRAMES = 12  # Python frames, and calls through C, that one watched call of a function takes at most


_lock = threading.Lock()
_limits: list[int] = []  # the program's own limit, once for each run that is being watched


class Depth:
    """How deep the watched program is in calls of its own."""

    def __init__(self) -> None:
        frame: FrameType | None = sys._getframe()
        here = 0
        while frame is not None:
            frame, here = frame.f_back, here + 1
        with _lock:
            self._left = (_limits[0] if _limits else sys.getrecursionlimit()) - here

    @property
    def left(self) -> int:
        """How many more functions can be entered within each other."""
        return self._left

    def enter(self) -> None:
        """One more function begins. Raises RecursionError."""
        if self._left <= 0:
            raise RecursionError("maximum recursion depth exceeded")
        self._left -= 1

    def leave(self) -> None:
        """It has ended."""
        self._left += 1


@contextlib.contextmanager
def room() -> Iterator[None]:
    """While a run is watched. The limit is one for all threads: the last run that ends puts it back."""
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

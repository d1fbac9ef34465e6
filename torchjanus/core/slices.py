"""Limits how long a background thread holds Python's lock.

A thread that computes in Python holds the lock, and a program that calls torch releases it at each operation: so a
thread with much to do would stop the program for as long as that takes. This module does not know what is done.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["in_slices"]

_WORK = 0.004  # seconds without a rest: the program waits so long for the lock, at most once in three times that
_REST = 0.002


@contextlib.contextmanager
def in_slices() -> Iterator[None]:
    """Let this thread rest when a function is called or left after _WORK seconds of work."""
    begun = time.perf_counter()

    def look(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal begun
        if time.perf_counter() - begun > _WORK:
            time.sleep(_REST)
            begun = time.perf_counter()

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)

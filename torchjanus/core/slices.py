"""Work in a thread beside the program, a slice at a time.

Whoever computes in Python holds its one lock, and a program that calls torch gives it up at each operation: so a thread
that has much to do would stop the other for as long as that takes. Knows nothing of what is done.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["in_slices"]

_WORK = 0.001  # seconds without a rest
_REST = 0.002


@contextlib.contextmanager
def in_slices() -> Iterator[None]:
    """In this thread and within, there is a rest whenever a function is called or left after so much work."""
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

"""Returns freed memory to the system, between pieces of work that each need much memory for a moment.

The C library keeps freed memory in pieces that may not fit the next request: a trial, which runs a step twice, would
take more than both runs together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["give_back"]


def _found() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim  # of glibc only
    except (OSError, AttributeError, TypeError):
        return None
    return trim


_TRIM = _found()


def give_back() -> None:
    """Return freed memory to the system, if the C library can. It takes milliseconds for each 100 MiB."""
    if _TRIM is not None:
        _TRIM(0)

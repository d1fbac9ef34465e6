"""Gives memory that was freed back to the system, between pieces of work that each need much of it for a moment.

The C library keeps what is freed, in pieces that the next piece of work may not fit into: a trial, which runs a step
twice, would take more than both runs together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["give_back"]


def _found() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim  # of glibc alone
    except (OSError, AttributeError, TypeError):
        return None
    return trim


_TRIM = _found()


def give_back() -> None:
    """Takes milliseconds for each 100 MiB that are given back; does nothing where the C library cannot do it."""
    if _TRIM is not None:
        _TRIM(0)

"""Ignores warnings without the side effect of ``warnings.catch_warnings()``: where that changes filters, Python forgets
which warnings it has shown, and shows those of the program once more."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["unnoticed", "unwarned"]


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Ignore all warnings in the block."""
    filters: Any = warnings.filters
    ignoring = ("ignore", None, Warning, None, 0)
    filters.insert(0, ignoring)
    try:
        yield
    finally:
        filters[:] = [one for one in filters if one is not ignoring]


class _Unnoticed:
    """``unnoticed()``. Threads may be in such blocks at a time: the last one to leave puts back what was there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        self._notice: Any = None

    def __enter__(self) -> None:
        of_warnings: Any = warnings
        with self._lock:
            if not self._within:
                self._notice, of_warnings._filters_mutated = of_warnings._filters_mutated, _nothing
            self._within += 1

    def __exit__(self, *_: object) -> None:
        of_warnings: Any = warnings
        with self._lock:
            self._within -= 1
            if not self._within:
                of_warnings._filters_mutated = self._notice


def _nothing() -> None:
    pass


_UNNOTICED = _Unnoticed()


def unnoticed() -> contextlib.AbstractContextManager[None]:
    """Return a context in which changes of filters by other libraries go unnoticed: those that are put back at its end,
    and those that only a library's own warnings meet (SymPy makes one when it is imported)."""
    return _UNNOTICED

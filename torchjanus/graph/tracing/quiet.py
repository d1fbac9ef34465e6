"""Keeps warnings of tracing from the user: the program has warned when it ran."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["quiet"]


class _InThread:
    """Matches each text, in one thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def match(self, text: str) -> bool:
        return threading.get_ident() == self._thread


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Ignore the warnings of this thread. Unlike ``warnings.catch_warnings()`` this lets Python remember which warnings
    it has shown, and is nothing to other threads."""
    filters: Any = warnings.filters
    ours = ("ignore", _InThread(), Warning, None, 0)
    filters.insert(0, ours)
    try:
        yield
    finally:
        filters[:] = [one for one in filters if one is not ours]

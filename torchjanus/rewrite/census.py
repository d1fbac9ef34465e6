"""Counts the functions that the rewriter met: which were rewritten, which were left native, and why."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import CodeType

__all__ = ["CENSUS", "Census", "Entry"]


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One function that was met. ``native``: why it was left as it is, or ""."""

    file: str
    line: int
    function: str
    native: str = ""

    @property
    def rewritten(self) -> bool:
        return not self.native


@dataclass(slots=True)
class Census:
    """The functions met so far, each counted once."""

    _entries: dict[tuple[str, int, str], Entry] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, code: CodeType, native: str = "") -> None:
        key = (code.co_filename, code.co_firstlineno, code.co_qualname)
        if key not in self._entries:
            with self._lock:
                self._entries.setdefault(key, Entry(*key, native))

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    @property
    def met(self) -> tuple[Entry, ...]:
        with self._lock:
            return tuple(sorted(self._entries.values()))

    @property
    def rewritten(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.met if entry.rewritten)

    @property
    def native(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.met if not entry.rewritten)


CENSUS = Census()

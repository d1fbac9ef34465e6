"""Finds strings that change from call to call: they are traced like numbers, and no entry holds them constant.

A string seen with two values splits into entries (a mode, a phase); one seen with three is a name, and is relaxed
(JANUS, figure 4).
"""

from __future__ import annotations

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Place
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead

__all__ = ["VaryingTexts"]

MANY = 3  # values of one string
MAX_PLACES = 10_000


class VaryingTexts:
    """The strings of one function. ``loose``: the access paths of strings that are traced from now on; each is added
    once."""

    def __init__(self) -> None:
        self.loose: set[AccessPath] = set()
        self._seen: dict[AccessPath, set[str]] = {}

    def learn(self, trace: Trace) -> list[tuple[AccessPath, Place]]:
        """Record one watched run. Returns what was relaxed, with the places where the program reads it."""
        relaxed = []
        for event in trace.events:
            if isinstance(event, HeapRead) and event.kind == "constant" and type(event.value) is str:
                if len(self._seen) >= MAX_PLACES and event.access_path not in self._seen:
                    continue
                seen = self._seen.setdefault(event.access_path, set())
                seen.add(event.value)
                if len(seen) >= MANY and event.access_path not in self.loose:
                    self.loose.add(event.access_path)
                    relaxed.append((event.access_path, event.place))
        return relaxed

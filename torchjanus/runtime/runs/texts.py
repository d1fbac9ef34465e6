"""Which texts change from call to call: those are traced like numbers, and no entry holds them constant.

A text that was seen with two values splits into entries (a mode, a phase); one with three is a name, and
relaxed (JANUS figure 4).
"""

from __future__ import annotations

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Place
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Found

__all__ = ["Texts"]

MANY = 3  # values of one text
MAX_PLACES = 10_000


class Texts:
    """Of one function. ``loose``: the places whose texts are traced from now on; each gets in once."""

    def __init__(self) -> None:
        self.loose: set[AccessPath] = set()
        self._seen: dict[AccessPath, set[str]] = {}

    def learn(self, trace: Trace) -> list[tuple[AccessPath, Place]]:
        """Take in one watched run. Returns what was relaxed, and where the program reads it."""
        relaxed = []
        for event in trace.events:
            if isinstance(event, Found) and event.kind == "constant" and type(event.value) is str:
                if len(self._seen) >= MAX_PLACES and event.access_path not in self._seen:
                    continue
                seen = self._seen.setdefault(event.access_path, set())
                seen.add(event.value)
                if len(seen) >= MANY and event.access_path not in self.loose:
                    self.loose.add(event.access_path)
                    relaxed.append((event.access_path, event.place))
        return relaxed

"""Which texts change from call to call: those are traced like numbers, and no entry holds them constant.

A text that was seen with two values splits into entries (a mode, a phase); one with three is a name, and
relaxed (JANUS figure 4).
"""

from __future__ import annotations

from torchjanus.core.access_path import Origin
from torchjanus.core.errors import Place
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Found

__all__ = ["Texts"]

MANY = 3  # values of one text
MAX_PLACES = 10_000


class Texts:
    """Of one function. ``loose``: the places whose texts are traced from now on; each gets in once."""

    def __init__(self) -> None:
        self.loose: set[Origin] = set()
        self._seen: dict[Origin, set[str]] = {}

    def learn(self, trace: Trace) -> list[tuple[Origin, Place]]:
        """Take in one watched run. Returns what was relaxed, and where the program reads it."""
        relaxed = []
        for event in trace.events:
            if isinstance(event, Found) and event.kind == "constant" and type(event.value) is str:
                if len(self._seen) >= MAX_PLACES and event.origin not in self._seen:
                    continue
                seen = self._seen.setdefault(event.origin, set())
                seen.add(event.value)
                if len(seen) >= MANY and event.origin not in self.loose:
                    self.loose.add(event.origin)
                    relaxed.append((event.origin, event.place))
        return relaxed

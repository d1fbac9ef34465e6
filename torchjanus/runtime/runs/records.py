"""What a speculated function tells of itself, as data and to the log."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from dataclasses import dataclass

from torchjanus.core.errors import NOWHERE, Place, Refusal

__all__ = ["Counts", "Event", "Profile", "Statistics", "Story"]

log = logging.getLogger("torchjanus")

MAX_EVENTS = 1000  # the oldest are forgotten
MAX_REFUSALS = 100


@dataclass(frozen=True, slots=True)
class Statistics:
    """What became of the calls so far.

    ``calls`` is the sum of ``watched``, ``speculated`` and ``imperative``. ``missed`` (no entry's guards held) and
    ``violated`` (an assertion failed inside of a graph) count calls that were then watched or imperative; ``refused``
    counts watched calls of which no graph could be made; ``verified`` counts imperative calls that a graph made, too,
    on copies. ``compiles`` counts graphs made, ``entries`` those in use.
    """

    calls: int
    watched: int
    speculated: int
    missed: int
    violated: int
    refused: int
    imperative: int
    compiles: int
    verified: int
    entries: int


@dataclass(slots=True)
class Counts:
    """The running counts behind Statistics."""

    calls: int = 0
    watched: int = 0
    speculated: int = 0
    missed: int = 0
    violated: int = 0
    refused: int = 0
    imperative: int = 0
    compiles: int = 0
    verified: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of speculated calls goes: medians, in microseconds, over ``calls`` calls.

    ``guards``: checking the assumptions and collecting the inputs; ``run``: the graph; ``commit``: making the results
    and the held-back writes.
    """

    calls: int
    guards: float
    run: float
    commit: float

    @property
    def share(self) -> float:
        """Guards and commit as a share of the call."""
        return (self.guards + self.commit) / (self.guards + self.run + self.commit)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the report tells: a miss, a relaxation, a refusal, a fault. ``reason``: its code, or ""."""

    call: int
    kind: str
    text: str
    place: Place = NOWHERE
    reason: str = ""


class Story:
    """What has happened so far. ``name`` is what the log calls the function, ``home`` where it is written; ``after``:
    what this one goes on from."""

    def __init__(self, name: str, home: Place = NOWHERE, after: Story | None = None) -> None:
        self.name, self.home = name, home
        self.counts = Counts()
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS) if after is None else after.events
        self.refusals: list[Refusal] = [] if after is None else after.refusals
        self._said: set[str] = set()
        self._before = dataclasses.asdict(Counts()) if after is None else after.totals()

    def totals(self) -> dict[str, int]:
        """The counts from the beginning, by name: those of the stories that it goes on from, too."""
        return {name: count + self._before[name] for name, count in dataclasses.asdict(self.counts).items()}

    def say(self, kind: str, text: str, place: Place = NOWHERE, reason: str = "") -> None:
        """Tell of something. The log is told once."""
        self.events.append(Event(self._before["calls"] + self.counts.calls, kind, text, place, reason))
        if text not in self._said and len(self._said) < MAX_EVENTS:
            self._said.add(text)
            log.info("%s %s: %s", place if place.line else self.name, kind, text)

    def placed(self, refusal: Refusal) -> Refusal:
        """What is refused is the whole function, if nothing narrower is."""
        return refusal.at(self.home)

    def refuse(self, refusal: Refusal) -> None:
        """Tell, once, what cannot be speculated on."""
        refusal = self.placed(refusal)
        if refusal not in self.refusals and len(self.refusals) < MAX_REFUSALS:
            self.refusals.append(refusal)
            self.say("refused", f"{refusal.what}: {refusal.why} {refusal.remedy}", refusal.place, refusal.reason)

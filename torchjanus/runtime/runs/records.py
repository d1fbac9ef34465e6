"""Counts, events and refusals of a speculated function, as data and in the log."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torchjanus.core.errors import NOWHERE, Place, Refusal
from torchjanus.core.logs import logger, topic_of
from torchjanus.core.remarks import Remarks

__all__ = ["LISTENERS", "Counts", "Event", "EventLog", "Profile", "Statistics"]

# Called with each text once: the function's name, the kind of the event, its text and its place.
LISTENERS: list[Callable[[str, str, str, Place], None]] = []

MAX_EVENTS = 1000  # the oldest are dropped
MAX_REFUSALS = 100


@dataclass(frozen=True, slots=True)
class Statistics:
    """The outcome of the calls so far.

    ``calls`` is the sum of ``watched``, ``speculated`` and ``imperative``. ``missed`` (no entry's guards held) and
    ``violated`` (an assertion failed inside a graph) count calls that were then watched or imperative; ``refused``
    counts watched calls of which no graph could be made; ``verified`` counts imperative calls that a graph also made on
    copies. ``compiles`` counts graphs made, ``entries`` those in use. ``partly`` counts imperative calls of which
    graphs made parts.
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
    partly: int
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
    partly: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """The time of speculated calls by phase: medians, in microseconds, over ``calls`` calls.

    ``guards``: checking the assumptions and collecting the inputs; ``run``: the graph; ``commit``: making the results
    and the deferred writes.
    """

    calls: int
    guards: float
    run: float
    commit: float

    @property
    def share(self) -> float:
        """The share of guards and commit in the time of the call."""
        return (self.guards + self.commit) / (self.guards + self.run + self.commit)


@dataclass(frozen=True, slots=True)
class Event:
    """One event for the report: a miss, a relaxation, a refusal, a fault. ``reason``: the code of a refusal, or ""."""

    call: int
    kind: str
    text: str
    place: Place = NOWHERE
    reason: str = ""


class EventLog:
    """The events, refusals and counts so far. ``name``: the function's name in the log; ``home``: its place in the
    source; ``after``: the record of the same function that this one continues."""

    def __init__(self, name: str, home: Place = NOWHERE, after: EventLog | None = None) -> None:
        self.name, self.home = name, home
        self.counts = Counts()
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS) if after is None else after.events
        self.refusals: list[Refusal] = [] if after is None else after.refusals
        self.remarks: Remarks = Remarks() if after is None else after.remarks
        self._said: set[str] = set()
        self._before = dataclasses.asdict(Counts()) if after is None else after.totals()

    def totals(self) -> dict[str, int]:
        """Return the counts from the beginning, by name, those of continued records included."""
        return {name: count + self._before[name] for name, count in dataclasses.asdict(self.counts).items()}

    @property
    def number(self) -> int:
        """The number of the current call."""
        return self._before["calls"] + self.counts.calls

    def record(self, kind: str, text: str, place: Place = NOWHERE, reason: str = "") -> None:
        """Record an event. The log gets each text once."""
        self.events.append(Event(self.number, kind, text, place, reason))
        if text not in self._said and len(self._said) < MAX_EVENTS:
            self._said.add(text)
            for listener in LISTENERS:
                listener(self.name, kind, text, place)
            logger(topic_of(kind)).info("%s %s: %s", place if place.line else self.name, kind, text)

    def unroll(self, text: str, refusal: Refusal) -> None:
        """Tell of a loop or a recursion that is unrolled."""
        self.record("unrolled", text, refusal.place, refusal.reason)
        self.remarks.note(self.placed(refusal).place, refusal.reason, refusal.what)

    def placed(self, refusal: Refusal) -> Refusal:
        """Return the refusal with a place: that of the whole function if it has none."""
        return refusal.at(self.home)

    def refuse(self, refusal: Refusal) -> None:
        """Record, once, what cannot be speculated on."""
        refusal = self.placed(refusal)
        if refusal not in self.refusals and len(self.refusals) < MAX_REFUSALS:
            self.refusals.append(refusal)
            self.record("refused", f"{refusal.what}: {refusal.why} {refusal.remedy}", refusal.place, refusal.reason)

"""What a speculated function tells of itself, as data."""

from __future__ import annotations

from dataclasses import dataclass

from torchjanus.errors import NOWHERE, Place

__all__ = ["Counts", "Event", "Profile", "Statistics"]


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
    """Something that the report tells: a miss, a relaxation, a refusal, a fault."""

    call: int
    kind: str
    text: str
    place: Place = NOWHERE

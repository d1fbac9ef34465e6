"""What is known of a speculated function, as data. Knows nothing of how it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from torchjanus.core.errors import Place, Refusal
from torchjanus.core.remarks import Remark
from torchjanus.host.assumption import Assumption
from torchjanus.runtime import Event, Overhead, Statistics
from torchjanus.runtime.coexecution.report import CoexecutionReport
from torchjanus.runtime.parts.contest import Standing
from torchjanus.runtime.report.facts import Fact
from torchjanus.runtime.report.places import count, where
from torchjanus.runtime.runs.call_times import EAGER, PARTS, CallTimes

__all__ = ["EntryExplanation", "Explained", "PartExplanation"]


@dataclass(frozen=True, slots=True)
class EntryExplanation:
    """One graph: its size, its executor, its assumptions, its inputs."""

    number: int
    nodes: int
    inputs: int
    updates: int
    executor: str
    runs: int
    violations: int
    assumptions: tuple[Assumption, ...]
    varying: tuple[str, ...]
    fetched: tuple[str, ...]
    externs: tuple[tuple[str, tuple[str, ...]], ...]  # when, and which
    decided: tuple[str, ...]
    asserts: tuple[str, ...]
    pinned: tuple[str, ...]
    recursions: tuple[str, ...]
    selected: tuple[str, ...]  # where the graph itself determines the number of elements
    notes: tuple[str, ...]
    reasons: tuple[str, ...]  # the codes of the notes
    facts: tuple[Fact, ...]  # what the program's own lines rely on


@dataclass(frozen=True, slots=True)
class PartExplanation:
    """One part of a step that Python makes. ``share``, ``seconds``: its time by Python, as a share of the step's and in
    seconds, when it was measured. ``served``: those of its ``calls`` that a graph made. ``why``: the reason for which
    it is Python's, or ""."""

    label: str
    place: Place
    share: float
    seconds: float
    calls: int
    served: int
    graphs: int
    why: str
    refusals: tuple[Refusal, ...]

    def __str__(self) -> str:
        by_graph = f"{self.served} of {self.calls} calls by {count(self.graphs, 'graph')}"
        left = f"Python's: {self.why}" if self.why else by_graph
        return f"{where(self.place)}  {self.label}: {self.share:.0%} of the time; {left}"


@dataclass(frozen=True, slots=True)
class Explained:
    """All that is known of a speculated function.

    ``share``: the time of a call by graphs as a share of that by Python, where it was measured; ``times``: who made its
    calls, and how long they took.
    """

    name: str
    place: Place
    statistics: Statistics
    given_up: str
    being_made: str
    overhead: Overhead
    entries: tuple[EntryExplanation, ...]
    parts: tuple[PartExplanation, ...]
    refusals: tuple[Refusal, ...]
    remarks: tuple[Remark, ...]
    events: tuple[Event, ...]
    share: float | None
    python: bool  # whether Python makes the calls since it is faster by measure
    times: CallTimes
    coexecution: CoexecutionReport | None  # where the step is co-executed, or that was tried
    contest: Standing | None  # who makes the calls that no graph of the whole serves, by measure

    @property
    def eager(self) -> float:
        """The seconds that a call takes by Python alone, unwatched; 0.0 where no such call was measured."""
        if not self.statistics.partly and self.times.typical(PARTS):
            return self.times.typical(PARTS)  # there are no parts that graphs make
        measured = (part.seconds / part.share for part in self.parts if part.share)
        return self.times.typical(EAGER) or max(measured, default=0.0)

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of all reasons in the report, each once: see docs/reasons.md."""
        of_parts = (refusal for part in self.parts for refusal in part.refusals)
        shown_events: Iterator[Refusal | Remark | Event] = chain(self.refusals, of_parts, self.remarks, self.events)
        noted = (code for entry in self.entries for code in entry.reasons)
        return tuple(dict.fromkeys((*(one.reason for one in shown_events if one.reason), *noted)))

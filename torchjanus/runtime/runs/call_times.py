"""Times of a function's calls, by who made them: what a report draws as a timeline. Knows nothing of graphs.

All calls are counted in bins of equal length; the bins become longer as time goes on, so that their number is bounded.
The first calls, and the latest, are kept one by one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from statistics import median
from typing import NamedTuple

__all__ = ["COMPILED", "EAGER", "GRAPH", "KINDS", "PARTS", "WATCHED", "Bin", "CallTimes", "Timed"]

EAGER, WATCHED, PARTS, GRAPH, COMPILED = KINDS = ("eager", "watched", "parts", "graph", "compiled")
SERVED = (GRAPH, COMPILED)
MOST_BINS = 400
FIRST_WIDTH = 0.02  # seconds
KEPT = 1000  # calls at the beginning, and at the end
SHORT = 1e-3  # seconds: of calls by graphs that are shorter, later on only some are recorded
SKIPPED = 7  # between two of these
RECENT = 64  # calls of each kind over which the median is taken


class Timed(NamedTuple):
    """One call: its number, who made it, and when, by ``time.perf_counter``."""

    number: int
    kind: str
    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.begun


Bin = dict[str, list[float]]  # calls that began within one bin: for each kind how many, and their seconds


class CallTimes:
    """The calls of one function so far."""

    def __init__(self) -> None:
        self.zero = 0.0  # the clock at the first call
        self.wall = 0.0  # the same, as time of day
        self.width = FIRST_WIDTH
        self.bins: list[Bin] = []
        self.first: list[Timed] = []
        self.latest: deque[Timed] = deque(maxlen=KEPT)
        self.unserved: deque[Timed] = deque(maxlen=KEPT)  # calls that no graph of the whole made
        self.served: Timed | None = None  # the first call by a graph
        self.before: tuple[int, float] = (0, 0.0)  # calls by Python before it was speculated on, and their seconds
        self.skips = 0  # so many of the next calls are not recorded: recording one takes three microseconds
        self._like = 1  # the next recorded call stands for so many
        self._bin: Bin = {}  # the current bin
        self._until = -math.inf  # its end
        self._recent: dict[str, deque[float]] = {kind: deque(maxlen=RECENT) for kind in KINDS}

    def record(self, number: int, kind: str, begun: float, ended: float) -> None:
        """Record a call, and the unrecorded ones before it as calls like it."""
        like, self._like = self._like, 1
        counts = self._bin.get(kind) if begun < self._until else None
        if counts is None:
            counts = self._counts(kind, begun)
        counts[0] += like
        counts[1] += like * (ended - begun)
        self._recent[kind].append(ended - begun)
        timed = Timed(number, kind, begun, ended)
        if len(self.first) < KEPT:
            self.first.append(timed)
        else:
            self.latest.append(timed)
            if ended - begun < SHORT and kind in SERVED:
                self.skip_next(SKIPPED)
        if kind not in SERVED:
            self.unserved.append(timed)
        elif self.served is None:
            self.served = timed

    def skip_next(self, calls: int) -> None:
        """Record no more of so many calls than that they are like the latest one."""
        self.skips, self._like = calls, calls + 1

    def _counts(self, kind: str, begun: float) -> list[float]:
        """Return the counts of the bin in which a call began."""
        if not self.wall:
            self.wall, self.zero = time.time(), begun
        at = max(int((begun - self.zero) / self.width), 0)
        while at >= MOST_BINS:
            bins, self.width, at = self.bins, 2 * self.width, at // 2
            self.bins = [{**one} for one in bins[::2]]
            for one, other in zip(self.bins, bins[1::2], strict=False):
                _add(one, other)
        while len(self.bins) <= at:
            self.bins.append({})
        self._bin, self._until = self.bins[at], self.zero + (at + 1) * self.width
        return self._bin.setdefault(kind, [0, 0.0])

    @property
    def total(self) -> Bin:
        """All calls."""
        made: Bin = {}
        for one in self.bins:
            _add(made, one)
        return made

    def typical(self, kind: str) -> float:
        """Return the median seconds of the latest calls of a kind; 0 if there were none."""
        recent = [*self._recent[kind]]
        if not recent and kind == EAGER and self.before[0]:
            return self.before[1] / self.before[0]
        return median(recent) if recent else 0.0

    @property
    def calls(self) -> list[Timed]:
        """The calls that are kept one by one, in order."""
        return [*self.first, *self.latest]


def _add(one: Bin, other: Bin) -> None:
    for kind, (calls, seconds) in other.items():
        before = one.get(kind, (0, 0.0))
        one[kind] = [before[0] + calls, before[1] + seconds]

"""Decides by measurement whether graphs or plain Python make a function's calls, so that no function runs slower than
eager.

After some calls by graphs, Python and graphs make the next calls alternately until it is clear which is faster. Only
calls of one kind are compared. The order of alternation is irregular: if a step updated at every second call, strict
alternation would give all updates to one side. The results are eager's either way. Measurement is repeated when there
are other graphs or another executor runs them, and else ever more rarely. A measurement made while a compilation
occupies one of the cores holds only until that is over (calls have been seen to take a hundred times as long, those by
graphs more so). This module does not know how calls are made.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torchjanus.runtime.entries.engine import Engine

__all__ = ["ExecutionPolicy"]

FIRST = 30  # calls by graphs before the first measurement
SOON = 10  # the same, if calls are long
LONG = 1e-3  # seconds of such a call
AGAIN = 500  # calls before the next measurement if the last was close; doubled each time
# Who makes the first call of a pair, by the number of the pair: graphs, or Python (True). If every nth call of a step
# differs, for n from two to eight, these pairs are still fair.
ORDER = (False, False, True, False, True, True, True, False, False, True)
PAIRS = 10  # pairs of calls, one by Python and one by a graph
MANY = 40  # pairs where it is close: measuring longer costs nothing there
FEW = 3  # pairs that suffice if graphs are clearly faster, or still slower: disturbances make calls longer
CLEAR = 0.7  # of the other's time: no further measurement as long as nothing changes
MARGIN = 0.97  # of the other's time: needed to change who makes the calls, for less is noise
DOUBTFUL = 0.9  # of the other's time: between this and its inverse ``PAIRS`` pairs do not suffice
UNTIMED = 20  # after so many calls that no graph could make, without more timed calls, measuring stops for now
UNKNOWN = 0.5  # of the other's time, as long as nothing was measured
LONGER = 4  # a call by Python that takes so many times its measured time does something else
CHANGED = 4  # after so many consecutive calls by Python of that length the measurement no longer holds
LOOK = 16  # calls by Python between two checks whether an executor is ready


class _Times(NamedTuple):
    """Times of calls of one kind, in seconds."""

    python: list[float]
    graphs: list[float]

    @property
    def pairs(self) -> int:
        """The number of pairs of calls, one by Python and one by a graph."""
        return min(len(self.python), len(self.graphs))

    def plain(self, python: bool) -> bool:
        """Whether each call by Python (or, with ``python`` false, by a graph) was clearly faster than each by the
        other."""
        one, other = (self.python, self.graphs) if python else (self.graphs, self.python)
        return self.pairs > 0 and max(one) < CLEAR * min(other)


class ExecutionPolicy:
    """Decides who makes the calls once ``due`` calls have been made by graphs (infinite: graphs always do)."""

    def __init__(self, record: Callable[[str, str], None], *, measures: bool, busy: Callable[[], bool]) -> None:
        """``record`` reports what was found, as a kind and a text. ``busy``: whether compilations are running now."""
        self._say = record
        self._busy = busy
        self._disturbed = False  # whether a compilation disturbed the last measurement
        self.due: float = FIRST if measures else math.inf
        self.eager = False  # whether Python was faster
        self.measuring = False  # whether calls are timed
        self.rest = 0  # so many of the next calls are Python's, without a check
        self.share = UNKNOWN  # the time of a call by a graph, as a share of that of a call by Python
        self.found: float | None = None  # the same, by the last measurement that was completed
        self._kinds: dict[object, _Times] = {}  # times by the kind of call
        self.kind: object = None  # of the call that is being timed
        self.timed = "a call"  # what the times are of
        self._untimed = 0
        self._measured: object = None  # the executors that were measured last
        self._clear = False  # whether it was clear which is faster
        self._wait = AGAIN
        self._calls = 0  # by Python, since Python was found to be faster
        self._python = math.inf  # seconds of a call by Python, by that measurement
        self._longer = 0  # consecutive calls that have taken much longer

    def trial(self, speculated: int, engines: Sequence[Engine], kind: Callable[[], object] = lambda: 0) -> bool | None:
        """Return who makes this call: Python (True), or a graph (False; None where the call is not timed). ``kind``
        returns what calls the call may be compared with, None if no graph will make it; it is called only while a
        measurement goes on."""
        if self.measuring:
            return self._next(kind())
        trying = any(engine.trying for engine in engines)
        again = self._disturbed and not self._busy()
        if self.eager:
            self._calls += 1 + LOOK
            if trying:  # there is a new artifact: its trial needs calls by graphs
                self.eager = False
                self.due = speculated + FIRST
                return None
            if self._calls < self._wait and not again:
                self.rest = LOOK
                return True
        now = tuple((id(engine), engine.current) for engine in engines)
        known = now == self._measured and not again
        if trying or not engines or (known and not self.eager and (self._clear or self._disturbed)):
            self.due = speculated + FIRST
            return None
        self._wait = 2 * self._wait if known else AGAIN
        self._measured = now
        self._disturbed = False
        self.measuring = True
        self._kinds, self._untimed = {}, 0
        return self._next(kind())

    def _next(self, kind: object) -> bool | None:
        """Whether Python makes the next call of this kind; None where the call says nothing of graphs."""
        if kind is None:
            return None
        self.kind = kind
        times = self._kinds.setdefault(kind, _Times([], []))
        ahead = len(times.python) - len(times.graphs)
        return ahead < 0 or (ahead == 0 and ORDER[len(times.python) % len(ORDER)])

    @property
    def measurement(self) -> object:
        """What identifies the current measurement; None outside of one."""
        return self._kinds if self.measuring else None

    def measure_anew(self, speculated: int) -> None:
        """Begin again, later, since calls are timed in another way from now on."""
        self.measuring = self.eager = False
        self._measured = None
        self.due = speculated + FIRST

    def record_python_call(self, seconds: float, speculated: int) -> None:
        """Record the time of a call that Python made because it was faster. If calls have become much longer (a replay
        buffer is full enough to train), graphs are looked for again."""
        if seconds > LONG and self.due == FIRST:
            self.due = SOON
        self._longer = self._longer + 1 if self.eager and seconds > LONGER * self._python else 0
        if self._longer >= CHANGED:
            self.eager, self.rest, self._longer = False, 0, 0
            self._measured = None
            self.due = speculated + FIRST

    def record_timed_call(self, python: bool, seconds: float, speculated: int, kind: object = None) -> None:
        """Record the time of a call that belongs to the current measurement. ``kind``: of the call, if it is not the
        latest one."""
        kind = self.kind if kind is None else kind
        times = self._kinds.setdefault(kind, _Times([], []))  # calls may come from several threads
        (times.python if python else times.graphs).append(seconds)
        self._disturbed = self._disturbed or self._busy()
        kinds = list(self._kinds.values())
        paired = [kind for kind in kinds if kind.pairs]
        count = sum(kind.pairs for kind in paired)
        if len(times.python) != len(times.graphs) or count < FEW:
            return
        by_python = sum(statistics.median(kind.python) * kind.pairs for kind in paired) / count
        by_graphs = sum(statistics.median(kind.graphs) * kind.pairs for kind in paired) / count
        self.share = by_graphs / by_python
        self._clear = by_graphs < CLEAR * by_python or by_python < CLEAR * by_graphs
        # Where Python makes the calls already, more measuring only makes them slower.
        plain = all(kind.plain(False) for kind in kinds) or (self.eager and all(kind.plain(True) for kind in kinds))
        doubtful = DOUBTFUL * by_graphs < by_python < by_graphs / DOUBTFUL
        if plain or count >= (MANY if doubtful else PAIRS):
            self._conclude(by_python, by_graphs, speculated)

    def record_untimed(self, speculated: int) -> None:
        """Record that no graph could make the call that was to be timed."""
        self._untimed += 1
        timed = sum(len(times.python) + len(times.graphs) for times in list(self._kinds.values()))
        if self._untimed >= max(UNTIMED, timed):
            self.measuring = self.eager = False
            self._measured = None
            self.due = speculated + self._wait

    def _conclude(self, by_python: float, by_graphs: float, speculated: int) -> None:
        """End the measurement, and decide who makes the next calls."""
        self.measuring = False
        self.found = self.share
        before = self.eager
        self.eager = by_graphs >= MARGIN * by_python if before else by_python < MARGIN * by_graphs
        self._calls = 0
        self._python = by_python
        self.rest = LOOK if self.eager else 0
        self.due = 0 if self.eager else speculated + (FIRST if self._clear or self._disturbed else self._wait)
        if self.eager != before:
            winner = "Python is faster and makes the calls" if self.eager else "graphs make the calls again"
            times = f"{by_python * 1e6:.0f} us {self.timed}, by a graph {by_graphs * 1e6:.0f} us"
            self._say("executor", f"by measure {winner} ({times})")

"""Whether graphs or plain Python make a function's calls, by measure on them, so that none runs slower than eager.

After some calls by graphs Python and graphs make the next ones by turns, until it is clear who is faster. Calls of one
kind are compared with each other, and turns are irregular: of a step that updates at every other call one of the two
would make all updates else. Either way the results are eager's. It is measured again when there are other graphs, or
another executor runs them, and else ever more rarely. What is found while a compilation takes one of the cores (a call
was seen to take a hundred times as long, by graphs more so) holds until that is over. Knows nothing of how calls are
made.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torchjanus.runtime.entries.engine import Engine

__all__ = ["Pace"]

FIRST = 30  # calls by graphs before the first measure
AGAIN = 500  # calls before the next where it was close; twice as many each time
# Who begins a pair of calls, by its number: graphs, or Python (True). Whatever every second to eighth call is like,
# these pairs tell who is faster.
ORDER = (False, False, True, False, True, True, True, False, False, True)
PAIRS = 10  # of calls, one by Python and one by a graph
MANY = 40  # where it is close: to look longer costs nothing there
FEW = 3  # pairs that tell as much where graphs are clearly faster, or still slower: what disturbs makes calls longer
CLEAR = 0.7  # of the other's time: nobody looks again as long as nothing changes
MARGIN = 0.97  # of the other's time: it takes this to replace who makes the calls, for less is noise
DOUBTFUL = 0.9  # of the other's time: from here to its inverse so few pairs cannot tell
UNTIMED = 20  # calls that no graph could make, if there are no more others: measuring is given up for now
UNKNOWN = 0.5  # of the other's time, as long as nothing was measured
LOOK = 16  # calls by Python between two looks at whether an executor is ready


class _Times(NamedTuple):
    """Of calls of one kind, in seconds."""

    python: list[float]
    graphs: list[float]

    @property
    def pairs(self) -> int:
        """Calls by both."""
        return min(len(self.python), len(self.graphs))

    def plain(self, python: bool) -> bool:
        """Whether each call by Python, or by a graph, was clearly faster than each by the other."""
        one, other = (self.python, self.graphs) if python else (self.graphs, self.python)
        return self.pairs > 0 and max(one) < CLEAR * min(other)


class Pace:
    """Says who makes the calls once ``due`` calls have been made by graphs (infinite: graphs always do)."""

    def __init__(self, say: Callable[[str, str], None], *, measures: bool, busy: Callable[[], bool]) -> None:
        """``say`` is told what was found, as a kind and a text. ``busy``: whether compilations go on now."""
        self._say = say
        self._busy = busy
        self._disturbed = False  # the last measure, by a compilation
        self.due: float = FIRST if measures else math.inf
        self.eager = False  # Python was faster
        self.measuring = False  # calls are timed
        self.rest = 0  # the next so many calls are Python's, without asking
        self.share = UNKNOWN  # what a call by a graph takes, of what one by Python takes
        self.found: float | None = None  # the same, by the last measure that has come to an end
        self._kinds: dict[object, _Times] = {}  # of calls
        self._kind: object = None  # of the call that is being timed
        self._untimed = 0
        self._measured: object = None  # what was measured last
        self._clear = False  # and whether it was clear who is faster
        self._wait = AGAIN
        self._calls = 0  # by Python, since that won

    def trial(
        self, speculated: int, engines: Sequence[Engine], kind: Callable[[], object] = lambda: None
    ) -> bool | None:
        """Who makes this call: Python (True), or a graph (False; None where nobody wants to know its time). ``kind``
        says what calls it may be compared with; asked of calls that are timed only."""
        if self.measuring:
            return self._next(kind())
        trying = any(engine.trying for engine in engines)
        again = self._disturbed and not self._busy()
        if self.eager:
            self._calls += 1 + LOOK
            if trying:  # an artifact has come: it is tried on calls by graphs
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

    def _next(self, kind: object) -> bool:
        """Whether Python makes the next call of this kind."""
        self._kind = kind
        times = self._kinds.setdefault(kind, _Times([], []))
        ahead = len(times.python) - len(times.graphs)
        return ahead < 0 or (ahead == 0 and ORDER[len(times.python) % len(ORDER)])

    def took(self, python: bool, seconds: float, speculated: int) -> None:
        """A call of this measure has been made."""
        times = self._kinds.setdefault(self._kind, _Times([], []))  # calls may come from several threads
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
        # Where Python makes the calls already, the rest of the measure would only make them slower.
        plain = all(kind.plain(False) for kind in kinds) or (self.eager and all(kind.plain(True) for kind in kinds))
        doubtful = DOUBTFUL * by_graphs < by_python < by_graphs / DOUBTFUL
        if plain or count >= (MANY if doubtful else PAIRS):
            self._conclude(by_python, by_graphs, speculated)

    def untimed(self, speculated: int) -> None:
        """No graph could make the call that was to be timed."""
        self._untimed += 1
        timed = sum(len(times.python) + len(times.graphs) for times in list(self._kinds.values()))
        if self._untimed >= max(UNTIMED, timed):
            self.measuring = self.eager = False
            self._measured = None
            self.due = speculated + self._wait

    def _conclude(self, by_python: float, by_graphs: float, speculated: int) -> None:
        self.measuring = False
        self.found = self.share
        before = self.eager
        self.eager = by_graphs >= MARGIN * by_python if before else by_python < MARGIN * by_graphs
        self._calls = 0
        self.rest = LOOK if self.eager else 0
        self.due = 0 if self.eager else speculated + (FIRST if self._clear or self._disturbed else self._wait)
        if self.eager != before:
            winner = "Python is faster and makes the calls" if self.eager else "graphs make the calls again"
            times = f"{by_python * 1e6:.0f} us a call, by a graph {by_graphs * 1e6:.0f} us"
            self._say("pace", f"by measure {winner} ({times})")

"""Whether graphs or plain Python make a function's calls, by measure on them, so that none runs slower than eager.

After some calls by graphs the next ones alternate, one by Python and one by a graph, until it is clear who is faster.
Either way the results are eager's. It is measured again when there are other graphs, or another executor runs them, and
else ever more rarely. What is found while a compilation takes one of the cores (a call was seen to take a hundred times
as long, by graphs more so) holds until that is over. Knows nothing of how calls are made.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from torchjanus.runtime.engine import Engine

__all__ = ["Pace"]

FIRST = 30  # calls by graphs before the first measure
AGAIN = 500  # calls before the next where it was close; twice as many each time
PAIRS = 10  # of calls, one by Python and one by a graph
FEW = 3  # pairs that tell as much where graphs are clearly faster: what disturbs a call makes it longer
CLEAR = 0.7  # of the other's time: nobody looks again as long as nothing changes
MARGIN = 0.97  # of the graph's time: below it Python is faster, and above it that is noise
UNTIMED = 20  # calls that no graph could make, after which measuring is given up for now
LOOK = 16  # calls by Python between two looks at whether an executor is ready


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
        self._python: list[float] = []
        self._graphs: list[float] = []
        self._untimed = 0
        self._measured: object = None  # what was measured last
        self._clear = False  # and whether it was clear who is faster
        self._wait = AGAIN
        self._calls = 0  # by Python, since that won

    def turn(self, speculated: int, engines: Sequence[Engine]) -> bool | None:
        """Who makes this call: Python (True), or a graph (False; None where nobody wants to know its time)."""
        if self.measuring:
            return len(self._python) < len(self._graphs)
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
        self._python, self._graphs, self._untimed = [], [], 0
        return False

    def took(self, python: bool, seconds: float, speculated: int) -> None:
        """A call of this measure has been made."""
        (self._python if python else self._graphs).append(seconds)
        self._disturbed = self._disturbed or self._busy()
        count = len(self._python)
        if count != len(self._graphs) or count < FEW:
            return
        by_python, by_graphs = statistics.median(self._python), statistics.median(self._graphs)
        graphs = by_graphs < CLEAR * by_python
        self._clear = graphs or by_python < CLEAR * by_graphs
        if graphs or count >= PAIRS:
            self._conclude(by_python, by_graphs, speculated)

    def untimed(self, speculated: int) -> None:
        """No graph could make the call that was to be timed."""
        self._untimed += 1
        if self._untimed >= UNTIMED:
            self.measuring = self.eager = False
            self._measured = None
            self.due = speculated + self._wait

    def _conclude(self, by_python: float, by_graphs: float, speculated: int) -> None:
        self.measuring = False
        before, self.eager = self.eager, by_python < MARGIN * by_graphs
        self._calls = 0
        self.rest = LOOK if self.eager else 0
        self.due = 0 if self.eager else speculated + (FIRST if self._clear or self._disturbed else self._wait)
        if self.eager != before:
            winner = "Python is faster and makes the calls" if self.eager else "graphs make the calls again"
            times = f"{by_python * 1e6:.0f} us a call, by a graph {by_graphs * 1e6:.0f} us"
            self._say("pace", f"by measure {winner} ({times})")

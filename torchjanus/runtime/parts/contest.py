"""Decides by measurement who makes the calls of a step that no graph of the whole serves: plain Python, Python with
parts by graphs, or co-execution.

Parts are learnt first. Then co-execution is given some calls, as far as the account of learning has time for them; if
it serves them, all contenders make the next calls in turn, and the one with the least median makes the calls until the
next measurement. Those become ever rarer. Knows nothing of how a contender makes a call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchjanus.rewrite.hooks import current
from torchjanus.runtime.coexecution.runner import Coexecution
from torchjanus.runtime.learning.learning import Learning
from torchjanus.runtime.parts.skeleton import Parts
from torchjanus.runtime.runs.records import EventLog
from torchjanus.runtime.runs.stance import in_force

__all__ = ["Contest", "Standing"]

FIRST = 30  # calls before co-execution is tried: until then parts are learnt
TRIED = 24  # calls that co-execution is given at most without being ready
READY = 3  # calls in a row that co-execution has served, after which it is measured
MEASURED = 9  # calls of each contender in a measurement
SERVED = 0.75  # of its measured calls co-execution has to serve
MARGIN = 0.97  # of plain Python's time: what another contender has to keep below
AGAIN = 500  # calls until the next measurement; doubled each time
LATELY = 32  # calls over which a winning co-execution is watched: too many that diverge begin a measurement

PYTHON, PARTS, COEXECUTION = "Python", "Python with parts by graphs", "co-execution"


@dataclass(frozen=True, slots=True)
class Standing:
    """The last measurement: the median seconds of a call, by contender, and who has made the calls since."""

    times: tuple[tuple[str, float], ...]
    winner: str

    def __str__(self) -> str:
        times = ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in self.times)
        return f"by measure {self.winner} makes the calls ({times} a call)"

    def data(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {"times": dict(self.times), "winner": self.winner}


class Contest:
    """Makes the calls of ``fn``. ``parts``: None where none can be called in it; ``clock`` returns seconds."""

    def __init__(
        self,
        fn: Callable[..., Any],
        parts: Parts | None,
        learning: Learning,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.standing: Standing | None = None
        self._fn, self._parts, self._learning, self._clock = fn, parts, learning, clock
        self._log = EventLog(learning.event_log.name, learning.event_log.home)  # what it refuses is no refusal of ours
        self.coexecution = Coexecution(fn, self._log)
        self._winner = PYTHON if parts is None else PARTS
        self._times: dict[str, list[float]] = {}  # while a measurement is going on
        self._served = 0  # calls that co-execution has served within it
        self._next = FIRST  # calls until co-execution is tried, or a measurement begins
        self._wait = AGAIN
        self._tried = self._row = 0  # calls that co-execution was given; of those in a row it has served
        self._missed = 0  # of the last calls of a winning co-execution, as a fading sum

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Make one call."""
        if current() is not None or (self._parts is not None and self._parts.is_superseded):
            return self._fn(*args, **kwargs)
        if self._times:
            return self._measured(args, kwargs)
        self._next -= 1
        if self._next > 0:
            return (
                self._watched(args, kwargs) if self._winner is COEXECUTION else self._make(self._winner, args, kwargs)
            )
        if not in_force.learns:
            return self._make(self._winner, args, kwargs)
        return self._tries(args, kwargs)

    def _make(self, contender: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if contender is COEXECUTION:
            before = self._log.counts.speculated
            try:
                return self.coexecution.call(args, kwargs)
            finally:
                self._learning.counts.partly += self._log.counts.speculated > before
        if contender is PARTS and self._parts is not None:
            return self._parts.call(*args, **kwargs)
        return self._fn(*args, **kwargs)

    # -- co-execution is learnt -----------------------------------------------------------------------------------

    def _tries(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give co-execution this call, if there is time for it."""
        budget, log = self._learning.budget, self._log
        kind = "path graph" if self.coexecution.expects_graph else "path"
        if not budget.allows(kind):
            return self._make(self._winner, args, kwargs)
        served, made = log.counts.speculated, log.counts.compiles
        result = self._charged(args, kwargs, lambda: "path graph" if log.counts.compiles > made else "path")
        self._tried += 1
        self._row = self._row + 1 if log.counts.speculated > served else 0
        if self._row >= READY:
            self._begin()
        elif self._tried >= TRIED or (not self.coexecution.hopes and self._tried > READY):
            self._later()
        return result

    def _charged(self, args: tuple[Any, ...], kwargs: dict[str, Any], kind: Callable[[], str]) -> Any:
        """Make a call by co-execution, and charge what it takes longer than in eager."""
        budget, begun = self._learning.budget, self._clock()
        result = self._make(COEXECUTION, args, kwargs)
        overhead = max(self._clock() - begun - budget.eager, 0.0) if budget.eager else 0.0
        budget.charge(kind(), overhead)
        budget.apart += overhead
        return result

    def _later(self) -> None:
        """Try again after many calls."""
        self._next, self._wait = self._wait, 2 * self._wait
        self._tried = self._row = 0

    # -- measurements ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        parts = self._parts is not None and any(region.served for region in self._parts.regions)
        contenders = (PYTHON, PARTS, COEXECUTION) if parts else (PYTHON, COEXECUTION)
        self._times, self._served = {name: [] for name in contenders}, 0

    def _measured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call by the contender that comes next, and time it. Each is first equally often."""
        times = self._times
        number = sum(map(len, times.values()))
        repetition, place = divmod(number, len(times))
        contender = [*times][(place + repetition) % len(times)]
        before = self._log.counts.speculated
        begun = self._clock()
        if contender is COEXECUTION:
            result = self._charged(args, kwargs, lambda: "path")
            self._served += self._log.counts.speculated > before
        else:
            result = self._make(contender, args, kwargs)
        times[contender].append(self._clock() - begun)
        if number + 1 == MEASURED * len(times):
            self._conclude()
        return result

    def _conclude(self) -> None:
        medians = {name: statistics.median(times) for name, times in self._times.items()}
        eligible = {name: seconds for name, seconds in medians.items() if seconds < MARGIN * medians[PYTHON]}
        if self._served < SERVED * MEASURED:
            eligible.pop(COEXECUTION, None)
        before = None if self.standing is None else self._winner
        self._winner = min(eligible, key=eligible.__getitem__, default=PYTHON)
        self.standing = Standing(tuple(medians.items()), self._winner)
        if self._winner != before:
            self._learning.event_log.record("executor", str(self.standing))
        self._times = {}
        self._missed = 0
        self._later()

    def _watched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call by the winning co-execution. Where many calls diverge, measure again."""
        before = self._log.counts.speculated
        result = self._make(COEXECUTION, args, kwargs)
        if self._log.counts.speculated == before:
            self._missed += LATELY
            if self._missed > LATELY * LATELY * (1.0 - SERVED):
                self._begin()
        elif self._missed:
            self._missed -= 1
        return result

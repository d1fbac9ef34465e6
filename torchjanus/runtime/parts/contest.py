"""Decides by measurement who makes the calls of a step that no graph of the whole serves: plain Python, Python with
parts by graphs, or co-execution.

Parts are learnt first. Then co-execution is given some calls, as far as the account of learning has time for them. All
contenders that serve calls make the next ones in turn, and the fastest makes the calls until the next measurement.
Those become ever rarer. Where Python makes the calls, parts that are still being learnt are given few of them. What
diverges costs many times a call: co-execution has to make up for it, in the measurement and ever after. Knows nothing
of how a contender makes a call.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchjanus.core.clock import undelayed
from torchjanus.rewrite.hooks import current
from torchjanus.runtime.coexecution.runner import Coexecution
from torchjanus.runtime.learning.learning import Learning
from torchjanus.runtime.parts.skeleton import Parts
from torchjanus.runtime.runs.records import EventLog
from torchjanus.runtime.runs.stance import in_force

__all__ = ["Contest", "Standing"]

FIRST = 30  # calls before co-execution is tried: until then parts are learnt
TRIED = 24  # calls that co-execution is given at most without being ready
UNSERVED = 12  # of these calls that it may leave unserved
READY = 3  # calls in a row that co-execution has served, after which it is measured
MEASURED = 9  # calls of each contender in a measurement
SERVED = 0.75  # of its measured calls co-execution has to serve
MARGIN = 0.97  # another contender must take less than this share of plain Python's time
AGAIN = 500  # calls until the next measurement; doubled each time
LATELY = 32  # calls over which a winning co-execution is watched: too many that diverge begin a measurement
LOST = 32  # a winning co-execution may lose the time of so many calls of plain Python before it is left
NOT_NOW = 64  # calls until the account of learning is asked again
LEARNING = 8  # while Python makes the calls, one in so many is made by the parts that are being learnt
RARELY = 64  # the same, later on

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
        clock: Callable[[], float] = undelayed,
    ) -> None:
        self.standing: Standing | None = None
        self._fn, self._parts, self._learning, self._clock = fn, parts, learning, clock
        self._log = EventLog(learning.event_log.name, learning.event_log.home)  # what it refuses is no refusal of ours
        self.coexecution = Coexecution(fn, self._log)
        self._winner = PYTHON if parts is None else PARTS
        self._times: dict[str, list[float]] = {}  # while a measurement is going on
        self._unserved: list[float] = []  # the times of calls within it that co-execution has not served
        self._progress: object = None  # of the parts, when they were measured last
        self._next = FIRST  # calls until co-execution is tried, or a measurement begins
        self._wait = AGAIN
        self._python = 0  # of these, the next ones that Python makes in any case
        self._distance = LEARNING  # between two calls for parts, where Python makes the others
        self._tried = self._row = self._left = 0  # calls that co-execution was given, has served in a row, has left
        self._missed = 0  # of the last calls of a winning co-execution, as a fading sum
        self._balance = 0.0  # seconds that it has gained since it was measured

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Make one call, and return its result: by the winner, by one that is measured, or by one that learns."""
        if self._python > 0:
            self._python -= 1
            return self._make(PYTHON, args, kwargs)
        if current() is not None or (self._parts is not None and self._parts.is_superseded):
            return self._fn(*args, **kwargs)
        if self._times:
            return self._measured(args, kwargs)
        self._next -= 1
        if self._next > 0 or not in_force.learns:
            if self._winner is COEXECUTION:
                return self._watched(args, kwargs)
            if self._winner is PYTHON and self._parts is not None and self._next % self._distance == 0:
                return self._learned(self._parts, args, kwargs)
            if self._winner is PYTHON and in_force.learns:  # until something is to be decided
                parts = self._parts is not None and self._parts.are_learnt
                self._python = min(self._next, self._next % self._distance if parts else self._next) - 1
                self._next -= max(self._python, 0)
            return self._make(self._winner, args, kwargs)
        return self._tries(args, kwargs)

    def _make(self, contender: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one call by a contender: PYTHON, PARTS or COEXECUTION. Nothing is timed."""
        if contender is COEXECUTION:
            before = self._log.counts.speculated
            try:
                return self.coexecution.call(args, kwargs)
            finally:
                self._learning.counts.partly += self._log.counts.speculated > before
        if contender is PARTS and self._parts is not None:
            return self._parts.call(*args, **kwargs)
        return self._fn(*args, **kwargs)

    # -- what is learnt -------------------------------------------------------------------------------------------

    def _learned(self, parts: Parts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give parts a call that would be Python's. Once more of it is served than when they were measured, measure
        again."""
        if not parts.are_learnt:
            return self._make(PYTHON, args, kwargs)
        result = self._make(PARTS, args, kwargs)
        if parts.progress != self._progress:
            self._begin(coexecution=False)
        return result

    def _tries(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give co-execution this call, if there is time for it."""
        budget, log = self._learning.budget, self._log
        kind = "path graph" if self.coexecution.expects_graph else "path"
        if not budget.allows(kind):
            self._next = NOT_NOW
            if self.standing is None:
                self._begin(coexecution=False)
            return self._make(self._winner, args, kwargs)
        served, made = log.counts.speculated, log.counts.compiles
        result = self._charged(args, kwargs, lambda: "path graph" if log.counts.compiles > made else "path")
        self._tried += 1
        unserved = log.counts.speculated == served
        self._row = 0 if unserved else self._row + 1
        self._left += unserved
        if self._row >= READY:
            self._begin(coexecution=True)
        elif self._tried >= TRIED or self._left >= UNSERVED or (not self.coexecution.hopes and self._tried > READY):
            self._begin(coexecution=False)
        return result

    def _charged(self, args: tuple[Any, ...], kwargs: dict[str, Any], kind: Callable[[], str]) -> Any:
        """Make a call by co-execution, and charge what it takes longer than in eager."""
        budget, begun = self._learning.budget, self._clock()
        result = self._make(COEXECUTION, args, kwargs)
        overhead = max(self._clock() - begun - budget.eager, 0.0) if budget.eager else 0.0
        budget.charge(kind(), overhead)
        budget.seconds_of_parts += overhead
        return result

    def _later(self) -> None:
        """Put the next measurement off: twice as many calls as the last time."""
        self._next, self._wait = self._wait, 2 * self._wait
        self._distance = min(2 * self._distance, RARELY)
        self._tried = self._row = self._left = 0

    # -- measurements ---------------------------------------------------------------------------------------------

    def _begin(self, *, coexecution: bool) -> None:
        """Measure the contenders that serve calls. If there are none, Python makes the calls."""
        parts = self._parts if self._parts is not None and self._parts.serve else None
        self._progress = None if self._parts is None else self._parts.progress
        others = [*([PARTS] if parts is not None else []), *([COEXECUTION] if coexecution else [])]
        if others:
            self._times, self._unserved = {name: [] for name in (PYTHON, *others)}, []
        else:
            self._decide(PYTHON, () if self.standing is None else self.standing.times)

    def _decide(self, winner: str, times: tuple[tuple[str, float], ...]) -> None:
        """Let ``winner`` make the calls until the next measurement."""
        before = None if self.standing is None else self._winner
        self._winner, self._times = winner, {}
        if times:
            self.standing = Standing(times, winner)
            if winner != before:
                self._learning.event_log.record("executor", str(self.standing))
        self._missed, self._balance = 0, 0.0
        if self._next <= 0:
            self._later()

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
        else:
            result = self._make(contender, args, kwargs)
        seconds = self._clock() - begun
        times[contender].append(seconds)
        if contender is COEXECUTION and self._log.counts.speculated == before:
            self._unserved.append(seconds)
        if number + 1 == MEASURED * len(times):
            self._conclude()
        return result

    def _conclude(self) -> None:
        """Compare the medians of the measured calls, and let the fastest contender make the calls. Another than Python
        has to be faster by MARGIN, and co-execution has to have served most of its calls."""
        found = {name: statistics.median(times) for name, times in self._times.items()}
        if self._unserved:
            # The median does not show calls that diverge, which take many times as long.
            share = len(self._unserved) / MEASURED
            found[COEXECUTION] = (1.0 - share) * found[COEXECUTION] + sum(self._unserved) / MEASURED
        eligible = {name: seconds for name, seconds in found.items() if seconds < MARGIN * found[PYTHON]}
        if MEASURED - len(self._unserved) < SERVED * MEASURED:
            eligible.pop(COEXECUTION, None)
        self._decide(min(eligible, key=eligible.__getitem__, default=PYTHON), tuple(found.items()))

    def _watched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call by the winning co-execution. Where many calls diverge, measure again; where those that do take
        more than the others have gained, Python makes the calls: a measurement would not show it."""
        assert self.standing is not None
        python, before, begun = self.standing.times[0][1], self._log.counts.speculated, self._clock()
        result = self._make(COEXECUTION, args, kwargs)
        self._balance = min(self._balance + python - (self._clock() - begun), LOST * python)
        if self._log.counts.speculated == before:
            self._missed += LATELY
        elif self._missed:
            self._missed -= 1
        if self._balance < -LOST * python:
            self._next = 0
            self._decide(PYTHON, self.standing.times)
        elif self._missed > LATELY * LATELY * (1.0 - SERVED):
            self._next = 0
            self._begin(coexecution=True)
        return result

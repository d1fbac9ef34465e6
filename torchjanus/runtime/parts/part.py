"""Makes the calls of the part of a function that is speculated on: the whole function or some of its statements.

Python makes the statements ``before`` and ``after`` that part at each call.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from torchjanus.core.clock import undelayed
from torchjanus.execute.processes.background import busy
from torchjanus.host.journal import Journal
from torchjanus.rewrite.hooks import current
from torchjanus.runtime.launch.outcomes import MISS, Violation, failure
from torchjanus.runtime.learning.learning import Learning
from torchjanus.runtime.parts.backward_time import BackwardTime
from torchjanus.runtime.parts.calls import Calls
from torchjanus.runtime.parts.execution_policy import ExecutionPolicy
from torchjanus.runtime.runs.call_times import COMPILED, EAGER, GRAPH, PARTS, WATCHED
from torchjanus.runtime.runs.records import Profile

__all__ = ["Part"]

UNLOOKED = 3  # calls by Python after one that was
MAX_TICKS = 1000
# Calls after one that no graph made, whose beginning is timed: reading the clock takes microseconds, and where graphs
# make each call, nothing has to be charged.
TIMED = 16


class Part:
    """What is speculated on, ``fn``, with the statements around it (see ``Cut``).

    ``before`` and ``after``: the functions of the statements around ``fn``, if any. ``taken``: how many of the values
    that ``before`` returns are arguments of ``fn``. ``whole``: the complete function. ``verify``: see ``speculate``.
    """

    __slots__ = (
        "_backward", "_budget", "_clocked",
        "_counts",
        "_policy",
        "_routes",
        "_taken",
        "_ticks",
        "_verify",
        "_whole",
        "after",
        "before",
        "calls",
        "execution_policy",
        "fn",
        "learning",
        "skipped_calls",
    )  # fmt: skip

    def __init__(
        self,
        fn: Callable[..., Any],
        learning: Learning,
        verify: int,
        whole: Callable[..., Any],
        before: Callable[..., tuple[Any, ...] | list[Any]] | None,
        after: Callable[..., Any] | None,
        taken: int,
    ) -> None:
        self.fn = fn
        self.before = before
        self.after = after
        self._taken = taken
        self._whole = whole
        self.learning = learning
        self.calls = Calls(fn, learning)
        self.execution_policy = ExecutionPolicy(
            learning.event_log.record, measures=learning.routes.executor == "auto", busy=busy
        )
        self._backward = BackwardTime(self._backward_untimed)
        self._budget = learning.budget
        self._counts = learning.counts
        self._routes = learning.routes
        self._policy = learning.policy
        self._verify = verify
        self.skipped_calls = 0  # so many of the next calls are Python's, and nothing is looked at
        self._clocked = TIMED  # so many of the next calls are timed from their beginning
        self._ticks: deque[tuple[int, int, int]] = deque(maxlen=MAX_TICKS)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one call, and return its result: by a graph, by Python, or watched."""
        if self.before is None and self.after is None:
            return self._call(args, kwargs)
        semantics: Any = current()
        if semantics is not None:  # the call is part of another watched run, from its first statement on
            self._counts.calls += 1
            self._counts.imperative += 1
            return semantics.call(None, self._whole, args, kwargs)
        return self._around(self._call, args, kwargs)

    @property
    def number(self) -> int:
        """The number of the latest call."""
        return self.learning.event_log.number

    def mark(self) -> tuple[int, int]:
        """Return what ``made_by`` compares the counts with after a call."""
        return self._counts.speculated, self._counts.watched

    def made_by(self, before: tuple[int, int]) -> str:
        """Return who made the call since ``before``: a kind of ``call_times``."""
        counts = self._counts
        if counts.speculated > before[0]:
            route = self.calls.served_by
            return COMPILED if route is not None and route.engines[0].compiled is not None else GRAPH
        if counts.watched > before[1]:
            return WATCHED
        return EAGER if self.calls.native is self.calls.fn else PARTS

    def natively(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one call of the complete function ``fn`` by Python, whatever has been learnt."""
        self._counts.calls += 1
        self._counts.imperative += 1
        return fn(*args, **kwargs)

    def _around(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``before``, the part by ``call``, and ``after``. Returns the function's result; a list in place of a
        tuple holds a result that is returned early."""
        if self.before is not None:
            given: Any = self.before(*args, **kwargs)
            if type(given) is list:
                self._counts.calls += 1
                self._counts.imperative += 1
                return given[0]
            args, kwargs = given[: self._taken], {}
        result = call(args, kwargs)
        if self.after is None:
            return result
        return result[0] if type(result) is list else self.after(*result)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of the part: by Python or by a graph."""
        execution_policy = self.execution_policy
        if self._counts.speculated >= execution_policy.due and current() is None:
            if execution_policy.rest:
                execution_policy.rest -= 1
                self._skip_next_calls()
                return self._by_python(args, kwargs)
            return self._call_measured(args, kwargs)
        return self._by_graph(args, kwargs)

    def call_unobserved(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one of the calls that ``rest`` counts. To look at a call takes a few percent of a short one."""
        self.skipped_calls -= 1
        self._counts.calls += 1
        self._counts.imperative += 1
        self._budget.unsettled_untimed += 1
        return self.calls.native(*args, **kwargs)

    def _skip_next_calls(self) -> None:
        """Leave the next few calls to Python. Has no effect if decisions must not depend on the clock, or if some of
        the statements are Python's anyway."""
        if self._budget.limited and not self._budget.times_next_call and self.before is None and self.after is None:
            self.skipped_calls = UNLOOKED

    def _call_measured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call by Python or by a graph, whichever is faster, and time it if a measurement is going on."""
        counts, execution_policy, routes = self._counts, self.execution_policy, self._routes
        if self._policy.given_up:
            return self._by_graph(args, kwargs)
        engines = [engine for route in routes for engine in route.engines]
        kind = functools.partial(routes.dispatch.foresee, args, kwargs)
        python, speculated = execution_policy.trial(counts.speculated, engines, kind), counts.speculated
        if not execution_policy.measuring or python is None:
            return self._by_python(args, kwargs) if python else self._by_graph(args, kwargs)
        started = _now()
        result = (self._by_python if python else self._by_graph)(args, kwargs)
        seconds = _now() - started
        if python or counts.speculated > speculated:
            took = functools.partial(
                self._record_timed_call, execution_policy.measurement, execution_policy.kind, bool(python), seconds
            )
            if self._backward.follow(result, took):
                execution_policy.timed = "a call and its backward pass"
            else:
                took(0.0)
        else:
            execution_policy.record_untimed(counts.speculated)
        return result

    def _record_timed_call(
        self, measurement: object, kind: object, python: bool, seconds: float, backward: float
    ) -> None:
        """Record the time of a call, and of its backward pass, which may end when the measurement is over."""
        if measurement is not None and self.execution_policy.measurement is measurement:
            self.execution_policy.record_timed_call(python, seconds + backward, self._counts.speculated, kind)
            found = self._budget.share = self.execution_policy.found
            if found is not None:
                self.learning.payback.record_graph(found)

    def _backward_untimed(self) -> None:
        """Compare calls without their backward passes from now on."""
        text = "backward passes of its results cannot be timed each by itself: calls are compared without them"
        self.learning.event_log.record("executor", text)
        self.execution_policy.timed = "a call without its backward pass"
        self.execution_policy.measure_anew(self._counts.speculated)

    def _by_python(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call by Python, timed if the budget asks for that."""
        self._counts.calls += 1
        self._counts.imperative += 1
        budget = self._budget
        if budget.times_next_call:
            before = budget.python_seconds
            try:
                return self.calls.by_python(args, kwargs)
            finally:
                self.execution_policy.record_python_call(budget.python_seconds - before, self._counts.speculated)
        budget.unsettled_untimed += 1
        return self.calls.native(*args, **kwargs)

    def _by_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call by a graph, if there is one for it."""
        policy, routes = self._policy, self._routes
        if policy.may_skip_graphs and policy.skips_graphs(self.execution_policy.share) and current() is None:
            self._skip_next_calls()
            return self._by_python(args, kwargs)
        self._counts.calls += 1
        budget, made, python = self._budget, False, self._budget.python_seconds
        begun = budget.clock() if self._clocked else None
        journal = Journal() if routes.journaled else None
        try:
            if self._verify and self.calls.is_verification_due(self._verify):
                result = self.calls.verify(args, kwargs, journal)
                if result is not MISS:
                    made = True  # the user asked for verification: its time is no overhead
                    return result
            violated, dispatch, first = None, routes.dispatch, True
            for route in dispatch.candidates(args, kwargs):
                result = self.calls.attempt(route, args, kwargs, journal)
                if type(result) is Violation:
                    violated = violated or (route, result)  # another graph may serve the path that this call takes
                elif result is not MISS:
                    if not first:
                        dispatch.record_late_route(route)
                    made = True
                    return self.calls.finish(route, result, args, kwargs, journal)
                first = False
            begun = budget.clock() if begun is None else begun
            if violated is not None:
                return self.calls.finish(*violated, args, kwargs, journal)
            return self.calls.handle_miss(args, kwargs, journal)
        except BaseException:
            if journal is not None:
                self.calls.close(journal)  # an interrupt came between two parts of a graph
            raise
        finally:
            if made:
                self._clocked -= self._clocked > 0
            elif current() is None:
                self._clocked = TIMED
                budget.record_call(0.0 if begun is None else budget.clock() - begun, budget.python_seconds - python)

    def wait(self) -> None:
        """Return when no compilation is pending. From now on no graph waits until it is worth its price."""
        self.learning.payback.ignores_price = True
        self.skipped_calls = 0
        self.calls.finished_graphs.wait()
        for route in self._routes:
            for engine in route.engines:
                engine.wait()

    def profile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Profile | None:
        """See Speculated.profile."""
        self._around(self._timed, args, kwargs)
        if not self._ticks:
            return None
        guards, run, commit = (median(column) / 1e3 for column in zip(*self._ticks, strict=True))
        return Profile(len(self._ticks), guards, run, commit)

    def _timed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call by a graph, if there is one for it, and record how long its phases took."""
        ticks: list[int] = []
        journal = Journal() if self._routes.journaled else None
        self._counts.calls += 1
        for route in self._routes:
            if journal is not None:
                journal.begin()
            try:
                result = route.timed(args, kwargs, journal, ticks)
            except Exception as error:
                result = failure(error)
            if result is MISS:
                ticks.clear()
                continue
            result = self.calls.finish(route, result, args, kwargs, journal)
            if len(ticks) == 4:
                self._ticks.append((ticks[1] - ticks[0], ticks[2] - ticks[1], ticks[3] - ticks[2]))
            return result
        return self.calls.handle_miss(args, kwargs, journal)


def _now() -> float:
    """Return the time, in seconds, after all pending work of the GPU is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return undelayed()

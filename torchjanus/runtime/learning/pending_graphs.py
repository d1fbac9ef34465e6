"""Makes graphs of a function, here or in another process, and resumes learning when the other process is done.

This module does not know how graphs are made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torchjanus.runtime.entries.dispatch import Route
from torchjanus.runtime.runs.lowering_cache import Pending, RemoteLowering
from torchjanus.runtime.runs.records import EventLog

__all__ = ["PendingGraphs"]

Making = Callable[[], Route | None]  # returns the route to try then

MAX_ATTEMPTS = 4  # requests to another process for the graphs of one path
MAX_WASTED = 3  # calls by graphs that had to be made again, while a graph of another path is being made


class PendingGraphs:
    """Calls a function that makes graphs, and calls it again when the graphs for which it raised Pending are there."""

    def __init__(self, event_log: EventLog) -> None:
        self.remote = RemoteLowering()
        weakref.finalize(self, self.remote.close)
        self.instead: Making | None = None  # what to call again, if not the same function
        self._event_log = event_log
        self._making: Making | None = None  # what to call when a graph has been made in another process
        self._attempts = 0
        self._deferred = False  # whether only time is awaited
        self._wasted = 0  # calls since then in which a graph ran without result
        self._begun = 0  # calls speculated before that

    @property
    def is_waiting(self) -> bool:
        """Whether a graph is being made in another process. Nothing is learnt meanwhile."""
        return self._making is not None

    @property
    def is_away(self) -> bool:
        """Whether another process is still making a graph."""
        return self.is_waiting and not self.remote.over

    @property
    def is_made(self) -> bool:
        """Whether another process has made a graph that was asked for."""
        return self.is_waiting and not self._deferred and self.remote.over

    def __str__(self) -> str:
        """Return what is being made in another process; "" if nothing is."""
        if not self.is_waiting:
            return ""
        if self._deferred:
            return "a graph is made when there is time"
        return "a graph has been made: the next call takes it" if self.remote.over else f"a graph {self.remote}"

    @property
    def may_wait(self) -> bool:
        """Whether it may wait for another process once more."""
        return self._attempts <= MAX_ATTEMPTS

    def begin(self, making: Making) -> Route | None:
        """Make graphs. If one has to wait for another process, return None, and ``go_on`` repeats it."""
        self._attempts += 1
        self._deferred = False
        try:
            made = making()
        except Pending as pending:
            self._making = self.instead or making
            if self._attempts == 1:
                self._wasted, self._begun = 0, self._event_log.counts.speculated
                self._event_log.record("lowering", f"{pending}; calls are Python's until it is there")
            return None
        except BaseException:
            self.cancel()
            raise
        self.cancel()
        return made

    def defer(self, making: Making) -> None:
        """Make graphs in a later call."""
        self._making, self._attempts, self._deferred = making, 0, True
        self._wasted, self._begun = 0, self._event_log.counts.speculated

    def resume(self) -> None:
        """Use what has been made in another process, if it is there."""
        if self._making is not None and self.remote.over:
            self.begin(self._making)

    def cancel(self) -> None:
        """Stop waiting."""
        self._making, self.instead, self._attempts, self._deferred = None, None, 0, False
        self.remote.close()

    # Calls may take the path of the graph that is not there yet; each time the other graphs run without result.

    def record_wasted_run(self) -> None:
        """Record that a graph ran, or made extern calls, and the call has to be made again."""
        self._wasted += self.is_waiting

    @property
    def wastes_runs(self) -> bool:
        """Whether that has happened often while a graph is awaited."""
        return self._wasted >= MAX_WASTED and self.is_waiting and not self.remote.over

    def wastes_more_than_it_saves(self, share: float) -> bool:
        """Whether it has happened so often that using graphs is slower. ``share``: the time of a call by a graph, as a
        share of one by Python; a call that is made twice takes both."""
        served = self._event_log.counts.speculated - self._begun
        return self._wasted > (1 - share) * (self._wasted + served)

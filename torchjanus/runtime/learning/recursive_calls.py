"""Learns the recursive calls of a function's runs: one body for each variant, or unrolled where that cannot be (JANUS,
section 4.2.3).

In: traces. Out: whether a trace may become part of a graph, and whether unrolled graphs are worth having. This module
does not know how graphs are made.
"""

from __future__ import annotations

from torchjanus.core.errors import Refusal, Refused
from torchjanus.core.kinds import isinstance
from torchjanus.runtime.learning.routes import Routes
from torchjanus.runtime.runs.records import EventLog
from torchjanus.runtime.runs.recursion import Recursion
from torchjanus.trace.actions import InvokeOp
from torchjanus.trace.events import Trace

__all__ = ["RecursiveCalls"]

UNLIKE_AT_FIRST = 3  # watched runs with unrolled recursion, if all have been unlike each other and there is no graph
MAX_UNLIKE = 6  # such runs, while graphs of earlier ones hardly ever serve


class RecursiveCalls:
    """The recursive calls in the runs of one function. ``routes``: its graphs, which learn new variants."""

    def __init__(self, event_log: EventLog, routes: Routes) -> None:
        self.recursion = Recursion()
        self.event_log = event_log
        self.counts = event_log.counts
        self.routes = routes
        # When recursion was unrolled (calls watched, calls speculated, all calls), and why.
        self._unrolled: tuple[int, int, int, Refusal] | None = None
        self._renewed = False  # whether the last run has only shown new variants

    def begin_again(self) -> None:
        """Learn again after giving up."""
        self._unrolled = None

    def take_renewed(self) -> bool:
        """Return whether the last run has only shown new variants, and forget it."""
        renewed, self._renewed = self._renewed, False
        return renewed

    def merged(self, trace: Trace) -> Trace | None:
        """Return the run with its calls merged to a few operations; None where they have to be unrolled."""
        try:
            return self.recursion.merged(trace)
        except Refused as refused:
            self.unroll(refused.refusal)
            return None

    def learn(self, trace: Trace) -> bool:
        """Record the recursive calls of a run. Returns whether the run may become part of an entry."""
        recursion = self.recursion
        for unsuited in recursion.unsuited():
            self.event_log.unroll(f"calls are not run many at a time: {unsuited}", unsuited)
        if names := recursion.discover(trace):
            self.event_log.record(
                "recursion", f"{', '.join(names)} calls itself, and not always alike: one body for each variant"
            )
            return False
        if counted := recursion.counted():
            places = ", ".join(dict.fromkeys(counted))
            self.event_log.record("recursion", f"calls count, or add to, {places}: it is something else each time")
            return False
        if not any(isinstance(event, InvokeOp) for event in trace.events):
            return True
        refusal = recursion.refusal(trace)
        if refusal is None:
            try:
                self._renewed = recursion.learn(trace) and self._renew()
                return True
            except Refused as refused:
                refusal = refused.refusal
        self.unroll(refusal)
        return False

    def unroll(self, refusal: Refusal) -> None:
        """Unroll recursive calls from now on, for the reason given."""
        names = ", ".join(self.recursion.unroll())
        self.event_log.unroll(f"calls of {names} are not run many at a time: {refusal}", refusal)
        self._unrolled = (self.counts.watched, self.counts.speculated, self.counts.calls, refusal)

    def _renew(self) -> bool:
        """Extend entries with recursive calls to new variants. Returns whether all of them could be."""
        call_groups = [call_group for entry in self.routes.entries for call_group in entry.plan.call_groups]
        done = [call_group.renew(self.recursion.variant_table) for call_group in call_groups]
        return bool(done) and all(done)

    def wasted(self, *, unlike: bool) -> Refusal | None:
        """Return why calls were unrolled, if graphs of unrolled calls have hardly ever made a call since; None if not.
        ``unlike``: no two runs have been alike."""
        if self._unrolled is None:
            return None
        watched, speculated, calls, refusal = self._unrolled
        if unlike and not self.routes.entries and self.counts.watched >= watched + UNLIKE_AT_FIRST:
            return refusal
        served = self.counts.speculated - speculated
        hardly = self.counts.watched >= watched + MAX_UNLIKE and 4 * served <= self.counts.calls - calls
        return refusal if hardly else None

"""Record one active loop: where its iterations begin, what they compute with untraced numbers, and the states between.

It knows neither the iterable nor what later becomes of the loop.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from torchjanus.core.errors import Place
from torchjanus.semantics.known.trusted import is_installed
from torchjanus.semantics.record.iteration_states import state_of
from torchjanus.semantics.record.rebinding import is_suspended
from torchjanus.semantics.record.write_record import WriteRecord
from torchjanus.semantics.watch.loops.iteration_values import by_iteration, is_back
from torchjanus.trace.events import LoopEnd
from torchjanus.trace.loops.records import Loop, LoopRecord, LoopSnapshots, UntracedComputation
from torchjanus.trace.loops.untraced_computations import counted
from torchjanus.trace.values import Expr

__all__ = ["ActiveLoop"]


class ActiveLoop:
    """A loop under watch.

    ``counters``: current induction variables of all active loops, by ``id`` of their records; ``counting``: whether
    the trip count is an expression; ``span``: the range of its induction variable, if known beforehand;
    ``has_full_state``: whether variables and partial lists of comprehensions hold all loop-carried values.
    """

    def __init__(
        self,
        recording: WriteRecord,
        counters: dict[int, int],
        place: Place,
        loop_record: LoopRecord,
        counting: bool,
        span: range | None,
        has_full_state: bool = True,
    ) -> None:
        self.place = place
        self.loop_record = loop_record
        self.starts = loop_record.starts
        self.untraced_counts: list[int] = []  # per iteration: the number of untraced computations before it
        self.changes: list[frozenset[Any]] = []
        self._recording = recording
        self._counters = counters
        self._counting = counting
        self._given: list[int] = []  # per iteration: the number of entries of ``trace.given`` before it
        self._states: list[dict[Any, Any]] = []
        # The state of a suspended generator is in no variable.
        self._own = (
            has_full_state and not is_installed(place.file) and (counting or span is not None) and not is_suspended()
        )
        self._iteration: int | None = None
        self._is_counted = False  # in ``WriteRecord.loops``
        self._escaped = len(recording.escaped)

    def begin(self, iteration: int | None, given: tuple[Any, ...]) -> None:
        """Record the begin of an iteration. ``iteration``: its induction variable; ``given``: see ``LoopRecord``."""
        trace = self._recording.trace
        self._keep_last()
        if not self.starts:
            self._recording.loops += 1
            self._is_counted = True
        self.starts.append(len(trace.events))
        self.untraced_counts.append(len(trace.plain))
        self._given.append(len(trace.given))
        if self._own:
            self._states.append(state_of(self._recording, self._escaped))
        if self._counting:
            done = {len(self.starts) - 2, self._iteration}
            changed = self._recording.variable_changes.since(id(self.loop_record))
            self.changes.append(frozenset(by_iteration(name, done) for name in changed))
        if iteration is not None:
            self._iteration = self._counters[id(self.loop_record)] = iteration
        self.loop_record.given.append(given)

    def leave(self) -> None:
        """Record that the loop is no longer active."""
        self._counters.pop(id(self.loop_record), None)
        self._recording.loops -= self._is_counted
        self._is_counted = False

    def end(self, count: Expr | None) -> None:
        """Record that the loop has run to its end. ``count``: its trip count as an expression, if known."""
        trace, starts, span = self._recording.trace, self.starts, self.loop_record.over
        self.leave()
        self._keep_last()
        self.untraced_counts.append(len(trace.plain))
        self._given.append(len(trace.given))
        counting = counted(self.computed()) is None
        if self._own and (counting or any(starts[:1] <= [position] for position in reversed(trace.changed))):
            self._states.append(state_of(self._recording, self._escaped))
            steps = () if span is None else ((span.start, span.step),)
            known = None if is_back(span) and counting else count
            found = LoopSnapshots(
                tuple(starts), len(trace.events), tuple(self._states), known, steps,
                self.place, tuple(self.untraced_counts), tuple(self._given), counting,
                unpinned=self.loop_record.unpinned,
            )  # fmt: skip
            trace.frames.append(found)
        self._recording.note(LoopEnd(len(starts), self.place))
        trace.loops.append(Loop(self.place, tuple(starts), len(trace.events) - 1))
        self.loop_record.end = len(trace.events) - 1

    def _keep_last(self) -> None:
        """Attribute untraced computations after the last event of an iteration to this iteration, not to what follows.
        An iteration with a tensor-dependent predicate keeps its positions."""
        trace = self._recording.trace
        end, number = len(trace.events), len(trace.plain)
        if self.starts and any(position >= self.starts[-1] for position in trace.changed):
            return
        while self.starts and end > self.starts[-1] and number and trace.plain[number - 1].position == end:
            number -= 1
            trace.plain[number] = replace(trace.plain[number], position=end - 1)

    def computed(self) -> list[list[UntracedComputation]]:
        """Return the untraced computations of each iteration."""
        return [self._recording.trace.plain[a:b] for a, b in itertools.pairwise(self.untraced_counts)]

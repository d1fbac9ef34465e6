"""One loop that is being watched: where its iterations begin, what they have computed, and what variables are between
them.

Knows neither what the loop goes over nor what is made of it.
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
from torchjanus.trace.events import Trips
from torchjanus.trace.loop_records import Frames, Loop, LoopRecord, Plain
from torchjanus.trace.plains import counted
from torchjanus.trace.values import Expr

__all__ = ["ActiveLoop"]


class ActiveLoop:
    """``counters``: the numbers of the iterations of all loops that are going on, to which it adds its own;
    ``counting``: whether its number of iterations is known by an expression; ``span``: the numbers of its iterations,
    where they are known beforehand; ``stated``: whether variables, and containers in the making, hold all that it hands
    on."""

    def __init__(
        self,
        recording: WriteRecord,
        counters: dict[int, int],
        place: Place,
        loop_record: LoopRecord,
        counting: bool,
        span: range | None,
        stated: bool = True,
    ) -> None:
        self.place = place
        self.loop_record = loop_record
        self.starts = loop_record.starts
        self.plains: list[int] = []  # how much had been computed with plain numbers before each iteration
        self.changes: list[frozenset[Any]] = []
        self._recording = recording
        self._counters = counters
        self._counting = counting
        self._given: list[int] = []  # how much native code was given
        self._states: list[dict[Any, Any]] = []
        # What goes on between the iterations of a generator, and what one holds, is in no variable.
        self._own = stated and not is_installed(place.file) and (counting or span is not None) and not is_suspended()
        self._iteration: int | None = None
        self._escaped = len(recording.escaped)

    def begin(self, iteration: int | None, given: tuple[Any, ...]) -> None:
        """An iteration begins. ``iteration``: its number, if the loop has such; ``given``: see ``LoopRecord``."""
        trace = self._recording.trace
        self._keep_last()
        self.starts.append(len(trace.events))
        self.plains.append(len(trace.plain))
        self._given.append(len(trace.given))
        if self._own:
            self._states.append(state_of(self._recording, self._escaped))
        if self._counting:
            done = {len(self.starts) - 2, self._iteration}
            changed = self._recording.rebinding.since(id(self.loop_record))
            self.changes.append(frozenset(by_iteration(name, done) for name in changed))
        if iteration is not None:
            self._iteration = self._counters[id(self.loop_record)] = iteration
        self.loop_record.given.append(given)

    def leave(self) -> None:
        """It iterates no more."""
        self._counters.pop(id(self.loop_record), None)

    def end(self, count: Expr | None) -> None:
        """It has come to its end. ``count``: how many iterations there would be, if that is known."""
        trace, starts, span = self._recording.trace, self.starts, self.loop_record.over
        self.leave()
        self._keep_last()
        self.plains.append(len(trace.plain))
        self._given.append(len(trace.given))
        counting = counted(self.computed()) is None
        if self._own and (counting or any(starts[:1] <= [position] for position in reversed(trace.changed))):
            self._states.append(state_of(self._recording, self._escaped))
            steps = () if span is None else ((span.start, span.step),)
            known = None if is_back(span) and counting else count
            found = Frames(
                tuple(starts), len(trace.events), tuple(self._states), known, steps,
                self.place, tuple(self.plains), tuple(self._given), counting, unpinned=self.loop_record.unpinned,
            )  # fmt: skip
            trace.frames.append(found)
        self._recording.note(Trips(len(starts), self.place))
        trace.loops.append(Loop(self.place, tuple(starts), len(trace.events) - 1))
        self.loop_record.end = len(trace.events) - 1

    def _keep_last(self) -> None:
        """What the last iteration has computed behind all that it did is still its own, not the next one's, nor of what
        follows the loop. Where a tensor has decided in it, it stays behind what was decided."""
        trace = self._recording.trace
        end, number = len(trace.events), len(trace.plain)
        if self.starts and any(position >= self.starts[-1] for position in trace.changed):
            return
        while self.starts and end > self.starts[-1] and number and trace.plain[number - 1].position == end:
            number -= 1
            trace.plain[number] = replace(trace.plain[number], position=end - 1)

    def computed(self) -> list[list[Plain]]:
        """What each iteration has computed with plain numbers."""
        return [self._recording.trace.plain[a:b] for a, b in itertools.pairwise(self.plains)]

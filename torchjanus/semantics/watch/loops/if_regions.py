"""Watch ``if`` statements with tensor-dependent predicates: record the variables before and after the statement.

Such a region is recorded as a loop of one iteration. A snapshot of all variables is slow, so it is taken only where a
tensor has decided in an earlier run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.semantics import NOTHING
from torchjanus.semantics.known.trusted import is_installed
from torchjanus.semantics.record.iteration_states import state_of
from torchjanus.semantics.record.rebinding import is_suspended
from torchjanus.semantics.watch.objects.state import Part
from torchjanus.trace.loops.records import LoopSnapshots

__all__ = ["Regions"]


class Regions(Part):
    """``if`` statements in which tensors decide."""

    def region(self, at: Site) -> AbstractContextManager[Any, Any]:
        # Decisions within a recursive call are represented by its variants.
        if self.state.outer is not None or is_installed(at.file):
            return NOTHING
        return _Region(self, at)


class _Region(AbstractContextManager[None, None]):
    """One active ``if`` statement."""

    __slots__ = ("_before", "_escaped", "_given", "_plain", "_regions", "_site", "_start")

    def __init__(self, regions: Regions, at: Site) -> None:
        self._regions = regions
        self._site = at

    def __enter__(self) -> None:
        regions = self._regions
        trace = regions.recording.trace
        self._start, self._plain, self._given = len(trace.events), len(trace.plain), len(trace.given)
        self._escaped = len(regions.recording.escaped)
        known = self._site in regions.state.deciding and not is_suspended()
        self._before = state_of(regions.recording, self._escaped) if known else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        regions, run = self._regions, self._regions.recording.trace
        if kind is not None or not any(position >= self._start for position in reversed(run.changed)):
            return
        regions.state.deciding.add(self._site)
        if self._before is None:
            return
        regions.at(self._site)
        after = state_of(regions.recording, self._escaped)
        # Dead variables count as unchanged.
        states = self._before, {n: v for n, v in self._before.items() if n[:2] not in after} | after
        untraced_counts, given = (self._plain, len(run.plain)), (self._given, len(run.given))
        place, end = regions.recording.place, len(run.events)
        run.frames.append(
            LoopSnapshots((self._start,), end, states, None, (), place, untraced_counts, given, region=True)
        )

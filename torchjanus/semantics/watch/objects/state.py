"""The state of one watched call, which the parts of the watch share. Knows no hook and no part."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import isinstance
from torchjanus.host.journal import Journal
from torchjanus.rewrite import Site
from torchjanus.semantics.calls.inner_recording import InnerRecording
from torchjanus.semantics.calls.recursions import Discovery, Recursions
from torchjanus.semantics.containers.number_rows import Columns
from torchjanus.semantics.external.logs import warnings_shown
from torchjanus.semantics.external.native_calls import NativeCalls
from torchjanus.semantics.native.containers import WatchHooks
from torchjanus.semantics.protocols.depth import Depth
from torchjanus.semantics.protocols.falling_back import CallsOut
from torchjanus.semantics.record.accumulators import Accumulators
from torchjanus.semantics.record.call_writes import Counts
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.torch.failed_calls import ErrorRecorder

__all__ = ["Part", "WatchState"]

PERIOD = 64


class Limit:
    """When a call has been watched for long enough. ``end``: by the clock of the processor time of ``thread``, since on
    a busy machine eager waits for a processor, too; ``reached`` is called once; ``watches``: those of the call and of
    the recursive calls in it. The clock is read at one of ``PERIOD`` hooks."""

    __slots__ = ("end", "left", "reached", "thread", "watches")

    def __init__(self) -> None:
        self.end = math.inf
        self.thread = 0
        self.left: float = PERIOD
        self.watches: list[Any] = []
        self.reached: Callable[[], object] = list

    def look(self) -> None:
        """Look at the clock."""
        self.left = PERIOD
        if threading.get_ident() == self.thread and time.thread_time() > self.end:
            self.left = math.inf
            self.reached()


class WatchState:
    """The recording of one call, the models of what it calls, and what earlier runs have taught."""

    def __init__(
        self,
        journal: Journal | None = None,
        loose: Collection[AccessPath] = (),
        recursions: Recursions | None = None,
        outer: WatchState | None = None,
        columns: Columns | None = None,
        deciding: set[Site] | None = None,
    ) -> None:
        """``outer``: the state of the caller, if a recursive call is watched. ``deciding``: the ``if`` statements with
        a predicate on tensors and a common successor; receives further ones."""
        self.outer = outer
        self.step: WatchState = self if outer is None else outer.step
        self.limit: Limit = Limit() if outer is None else outer.limit
        self.given: tuple[tuple[Any, ...], dict[str, Any]] = (), {}  # arguments of the call
        self.warnings = warnings_shown()  # filters in force when the call began
        self.recording: Recording = (
            Recording(loose) if outer is None else InnerRecording(self.step.recording, outer.recording)
        )
        self.framework = ErrorRecorder(self.recording)
        if outer is not None:
            self.framework.out = outer.out
            self.step.framework.code.inner.append(self.framework.code)
        self.out: CallsOut = self.framework.out
        self.depth: Depth = Depth() if outer is None else outer.depth
        self.journal = journal or Journal()
        self.recursions = recursions or Recursions()
        if outer is None:
            self.recording.counts = Counts(self.recursions.counts)
            self.recording.accumulators = Accumulators(self.recursions.accumulators)
        self.columns: Columns = (columns or Columns()) if outer is None else outer.columns
        self.deciding: set[Site] = set() if deciding is None else deciding
        recording = self.recording
        self.discovery: Discovery = (
            Discovery(lambda: recording.ops, self.recursions.working, self.recursions.record_unsuitable)
            if outer is None
            else outer.discovery
        )

    def connect(self, watch: WatchHooks) -> None:
        """Give the models of native callees the watch, whose hooks they ask."""
        self.framework.code.watch = watch
        self.limit.watches.append(watch)
        self.natives = NativeCalls(self.recording, self.framework, watch, self.journal)

    def at(self, site: Site | None) -> None:
        """Set the place of the events that follow."""
        if site is None:  # within a native call, whose place stays
            return
        self.limit.left -= 1
        if self.limit.left < 0:
            self.limit.look()
        recording = self.recording
        recording.place = site.place
        if recording.trace.outline is not None:
            recording.at_site(site)

    def refuse_container(self, obj: Any, what: str) -> None:
        """Refuse an operation on a container from before the call whose content is not watched."""
        if not isinstance(obj, _WATCHED_WHOLE):
            self.recording.refuse(
                "container-unwatched",
                f"{what} of a {type(obj).__name__} that was there before the call",
                "what it holds is not watched.",
                "Read it into a tensor, list or dict before the step.",
            )


class Part:
    """A part of the watch: it has the state of the call, and the parts below it that it is given."""

    def __init__(self, state: WatchState) -> None:
        self.state = state
        self.recording = state.recording
        self.framework = state.framework
        self.natives = state.natives
        self.at = state.at


_WATCHED_WHOLE = (str, bytes, range, torch.Size)

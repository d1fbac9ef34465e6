"""The state that all parts of the watching semantics share: the recording, the place, the models of native callees."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.core.kinds import isinstance
from torchjanus.host.journal import Journal
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import rewritten
from torchjanus.semantics.calls.inner_recording import InnerRecording
from torchjanus.semantics.calls.method_sets import Lookups, Member
from torchjanus.semantics.calls.recursions import Discovery, Recursions
from torchjanus.semantics.containers.number_rows import Columns
from torchjanus.semantics.containers.releasing import forget
from torchjanus.semantics.external.logs import warnings_shown
from torchjanus.semantics.external.native_calls import NativeCalls
from torchjanus.semantics.known.trusted import is_installed, is_trusted_module
from torchjanus.semantics.protocols.depth import Depth
from torchjanus.semantics.protocols.falling_back import CallsOut
from torchjanus.semantics.protocols.protocols import Protocols
from torchjanus.semantics.record.accumulators import Accumulators
from torchjanus.semantics.record.call_writes import Counts
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.torch.framework import FrameworkRecorder
from torchjanus.trace.events import Trace

__all__ = ["WatchBase"]

_SIMPLE = (int, float, complex, str, bytes, bool, type(None))


class WatchBase(Protocols):
    """The watching semantics of one call, without the hooks for particular constructs."""

    recorder: type[FrameworkRecorder] = FrameworkRecorder

    def __init__(
        self,
        journal: Journal | None = None,
        loose: Collection[AccessPath] = (),
        recursions: Recursions | None = None,
        outer: WatchBase | None = None,
        columns: Columns | None = None,
        deciding: set[Site] | None = None,
    ) -> None:
        """``outer``: the watch of the caller, if this one watches a recursive call. ``deciding``: the ``if`` statements
        with a predicate on tensors and a common successor; receives further ones."""
        super().__init__()
        self.outer = outer
        self.step: WatchBase = self if outer is None else outer.step
        self.given: tuple[tuple[Any, ...], dict[str, Any]] = (), {}  # arguments of the call
        self.warnings = warnings_shown()  # filters in force when the call began
        self.recording: Recording = (
            Recording(loose) if outer is None else InnerRecording(self.step.recording, outer.recording)
        )
        self.framework = self.recorder(self.recording)
        if outer is not None:
            self.framework.out = outer.out
        self.out: CallsOut = self.framework.out
        self.framework.code.watch = self
        if outer is not None:
            self.step.framework.code.inner.append(self.framework.code)
        self.depth: Depth = Depth() if outer is None else outer.depth
        self.lookups = Lookups()
        self.member: Member | None = None  # the method that was looked up to be called next
        self.journal = journal or Journal()
        self.natives = NativeCalls(self.recording, self.framework, self, self.journal)
        self.recursions = recursions or Recursions()
        if outer is None:
            self.recording.counts = Counts(self.recursions.counts)
            self.recording.accumulators = Accumulators(self.recursions.accumulators)
        self.columns: Columns = (columns or Columns()) if outer is None else outer.columns
        self.deciding: set[Site] = set() if deciding is None else deciding
        recording = self.recording
        self.discovery: Discovery = (
            Discovery(lambda: recording.ops, self.recursions.working, self.recursions.unsuit)
            if outer is None
            else outer.discovery
        )

    def forget(self) -> None:
        """Release everything but the trace, since the run has ended."""
        inner: list[Any] = [code.watch for code in self.framework.code.inner]
        forget([self, *inner], (Recursions, Columns))
        for watch in (self, *inner):
            watch.given = (), {}
            watch.member = None
            watch.recording.trace = Trace()
        self.recording.called_back.any = False
        self.out.made = self.out.first = None

    def enter(self, at: Site, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.out(rewritten(fn), *args, **kwargs)

    def drop_attr(self, at: Site, obj: Any, name: str) -> None:
        self.out(super().drop_attr, at, obj, name)

    def drop_item(self, at: Site, obj: Any, key: Any) -> None:
        self.out(super().drop_item, at, obj, key)

    def native_next(self, at: Site, iterator: Iterator[Any]) -> Any:
        return self.out(super().native_next, at, iterator)

    def next_of(self, at: Site, iterator: Any) -> Any:
        item = super().next_of(at, iterator)
        self.recording.turn(at)
        return item

    def native_inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return self.out(super().native_inplace, at, op, a, b)

    def one_nan(self, a: Any, b: Any) -> bool:
        """Whether two unequal values are the same object (a NaN)."""
        return False

    def at(self, site: Site | None) -> None:
        """Set the place of the events that follow."""
        if site is None:  # within a native call, whose place stays
            return
        recording = self.recording
        recording.place = Place(site.file, site.line, site.column, site.function)
        if recording.trace.outline is not None:
            recording.at_site(site)

    def claim_defaults(self, fn: types.FunctionType, first: bool = False) -> None:
        """Record a function's code and defaults: guard on them, and give access paths to default objects."""
        root = self.recording.owner(fn) or AccessPath.const(fn)
        settled = is_trusted_module(fn.__module__) or is_installed(fn.__code__.co_filename)
        if (first or self.recording.was_there(fn)) and not settled:
            # IPython's autoreload puts new code into existing functions.
            self.recording.held(root.then(Step.FIELD, "__code__"), fn.__code__)
            self.recording.held(root.then(Step.FIELD, "__defaults__"), fn.__defaults__)
            if fn.__kwdefaults__ is not None:
                defaults = root.then(Step.FIELD, "__kwdefaults__")
                self.recording.held(defaults, fn.__kwdefaults__)
                for name, value in fn.__kwdefaults__.items():
                    self.recording.pin(self.recording.found(defaults.item(name), value), "a default")
        for index, value in enumerate(fn.__defaults__ or ()):
            if not isinstance(value, _SIMPLE) and self.recording.owner(value) is None:
                self.recording.found(
                    root.then(Step.FIELD, "__defaults__").item(index),
                    value,
                    trusted=not isinstance(value, torch.Tensor),
                )
        for name, value in (fn.__kwdefaults__ or {}).items():
            if not isinstance(value, _SIMPLE) and self.recording.owner(value) is None:
                self.recording.found(root.then(Step.FIELD, "__kwdefaults__").item(name), value, trusted=True)

    def _unknown_container(self, obj: Any, what: str, act: Callable[[], Any]) -> Any:
        if not isinstance(obj, str | bytes | range | torch.Size):
            self.recording.refuse(
                "container-unwatched",
                f"{what} of a {type(obj).__name__} that was there before the call",
                "what it holds is not watched.",
                "Read it into a tensor, list or dict before the step.",
            )
        return act()

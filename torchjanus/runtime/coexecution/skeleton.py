"""One co-executed call: Python runs the program on placeholders, and each call of torch is matched against the path.

The graph runs when Python needs a value of it, and at the end. Nothing is committed before the last event has matched.
If a call diverges, the generators are restored, the matched events are executed, and the placeholders get their
results. Python then continues, and the call is recorded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.overrides import TorchFunctionMode

from torchjanus.core.errors import NOWHERE, InternalFault, Place
from torchjanus.core.trees import map_leaves
from torchjanus.graph.tracing.ambient import Ambient
from torchjanus.runtime.coexecution.composite_walk import Walk
from torchjanus.runtime.coexecution.graphs.composite_plans import Composite
from torchjanus.runtime.coexecution.graphs.matching import MISS, undisturbed
from torchjanus.runtime.coexecution.graphs.run import GraphRun, LazyRun, restored, saved
from torchjanus.runtime.coexecution.graphs.served import Served
from torchjanus.runtime.coexecution.path_switching import begins_alike, cuts_before, events_of, make_missing, moved_to
from torchjanus.runtime.coexecution.prefix_replay import replay, tensors_in
from torchjanus.runtime.coexecution.recording.arrays import SharedArrays, copied, memory_of, same_bits
from torchjanus.runtime.coexecution.recording.composites import Aborted, listed
from torchjanus.runtime.coexecution.recording.events import Trace
from torchjanus.runtime.coexecution.recording.observer import Observer
from torchjanus.runtime.coexecution.recording.outside_modes import outside_modes
from torchjanus.runtime.coexecution.recording.placeholders import placeholder, register, unregister
from torchjanus.runtime.coexecution.recording.recorder import Recorder
from torchjanus.semantics.torch.torch_state import generator_state

__all__ = ["Run"]


class Run(TorchFunctionMode):
    """The call of one path, as the mode that gets torch's calls. ``others``: the paths to which it may turn out to
    belong instead; ``arguments``: the tensors among the step's arguments; ``begin``: begins a graph's run."""

    def __init__(
        self,
        served: Served,
        values: list[Any],
        others: Iterable[Served],
        arguments: list[torch.Tensor],
        begin: Callable[[Served], GraphRun] = LazyRun,
    ) -> None:
        super().__init__()
        self.served = served
        self.values = [*values]  # a list of its own: what is alive at the end is counted
        self.numbers: list[Any] = [None] * len(served.plan.program.slots)
        self.position = 0
        self.recorder: Recorder | None = None  # once it has diverged
        self.diverged_at = ""
        self.fault: Exception | None = None
        self.states = saved()
        self.graph = begin(served)
        self._begin = begin
        self._others = list(others)
        self._arguments = arguments
        self._lock = threading.RLock()
        self._thread = threading.get_ident()
        self._private: dict[int, torch.Tensor] = {}  # copies of inputs that share memory with arrays
        self._arrays = SharedArrays()
        self._fetched: dict[int, Any] = {}
        self.waits: list[tuple[int, float]] = []  # the events at which Python waited for the graph, and seconds
        self._over = False
        self._walk: Walk | None = None  # through a composite event of which torch's code is run
        self._unobserved = False  # whether unwatched code has run: nothing is learnt from such a run
        self._observer = Observer(self._seen) if served.exposed else None
        register(self)
        if self._observer is not None:
            self._observer.start()

    def _seen(self, reason: str, what: str, why: str, place: Place) -> None:
        """Diverge before the program does what a skeleton cannot answer, and torch's calls do not show."""
        with self._lock:
            if self._walk is not None:
                raise Aborted
            if self.recorder is None and not self._over:
                self.diverge(what)
            if self.recorder is not None:
                self.recorder.refuse(reason, what, why, place)
                self.recorder.let_go()
                self.values = []

    # -- calls of torch -------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer one of torch's calls."""
        with self._lock:
            if self._walk is not None:
                return self._walk.answer(self, func, args, kwargs or {})
            if self.recorder is None:
                k, found = self.position, self.served.matchers
                if self._arrays.all and self._arrays.written():
                    self.diverge("an array that shares memory with a tensor was written to")
                elif k < len(found) and (result := found[k](self, func, args, kwargs or {})) is not MISS:
                    if self.recorder is None:
                        self._matched(k + 1)
                    return result
                elif (result := self._matched_elsewhere(k, func, args, kwargs or {})) is not MISS:
                    return result
            if self.recorder is None:
                self.diverge(getattr(func, "__name__", repr(func)))
            assert self.recorder is not None
            return self.recorder.__torch_function__(func, types, args, kwargs)

    def _matched(self, position: int) -> None:
        """Note that so many events have matched."""
        self.position = position
        if position >= self.graph.due:
            try:
                self.graph.proceed(position, self.values, self._private, self.numbers)
            except Exception as error:
                self.fault = error
                self.diverge(f"the graph raised {type(error).__name__}")

    # -- composite events -----------------------------------------------------------------------------------------

    def composite(self, func: Callable[..., Any], first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call that may be one event. See ``Composer``."""
        first = listed(first)
        with self._lock:
            one = self.served.composites.get(self.position) if self.recorder is None else None
            if one is not None and not self._arrays.all and one.holds(func, first, args, kwargs):
                if one.following is None or self._walked(one, args, kwargs):
                    for n, meta in one.wanted:
                        if self.values[n] is None:
                            self.values[n] = placeholder(meta)
                    self._matched(one.section.end)
                    return None if one.section.result is None else self.values[one.section.result]
            elif self.recorder is not None:
                return self.recorder.composite(func, first, args, kwargs)
            if one is not None:  # it is walked through: what earlier ones have not made may be asked for
                make_missing(self.served, self.position, self.values)
        return func(first, *args, **kwargs)

    def _walked(self, one: Composite, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Walk through a composite event. Returns whether torch did what the path has; if not, nothing is done."""
        self._walk = Walk(one, self.served.matchers)
        try:
            return self._walk.matches(self, args, kwargs)
        finally:
            self._walk = None

    def _matched_elsewhere(self, k: int, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Answer a call that is none of this path as that of another one."""
        for other in self._others:
            if len(other.matchers) > k and begins_alike(self.served, other, k):
                before = self.served, self.values, self.numbers
                if self._switch_to(other, k):
                    result = other.matchers[k](self, func, args, kwargs)
                    if self.recorder is not None:
                        return result
                    if result is not MISS:
                        self._matched(k + 1)
                        return result
                self.served, self.values, self.numbers = before
        return MISS

    def _switch_to(self, other: Served, k: int) -> bool:
        """Go on as a call of the other path, which begins with the same events. Returns whether that path accepts what
        the call has taken from outside."""
        if other.exposed and self._observer is None:
            return False
        found = moved_to(self.served, other, k, self.values, self.numbers, self._private)
        if found is None:
            return False
        make_missing(other, k, found[0])
        self.graph.abandon()
        if self.served.draws:
            restored(self.states)
        seconds, waited = self.graph.seconds, self.graph.waited
        self.served, (self.values, self.numbers) = other, found
        self.graph = self._begin(other)
        self.graph.seconds, self.graph.waited = seconds, waited
        try:
            if before := cuts_before(other, k):  # what earlier fetches gave is known to be the same
                self._advance(before - 1)
        except Exception as error:
            self.fault = error
            return False
        return True

    # -- what generated matchers ask -------------------------------------------------------------------------------

    def accept(self, n: int, tensor: Any) -> bool:
        """Whether a tensor, met for the first time, may be external ``n``."""
        served = self.served
        if not served.accepts(n, tensor, self.values):
            return False
        if not tensor.untyped_storage().resizable():
            if n in served.changed:
                return False
            self._private[n] = copied(tensor)
        return served.separate(self.values)

    def unchanged(self, n: int) -> bool:
        """Whether an external that shares memory with an array still holds what it held when it was met."""
        return same_bits(self.values[n], self._private[n])

    def reseeded(self) -> bool:
        """Whether somebody else has moved the generators."""
        return self.graph.reseeded()

    def fetch(self, k: int, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Read what Python asks for."""
        contents = self._contents(k)
        if contents is None:
            return self._diverged(func, args, kwargs)
        result = func(*self._filled(args, contents), **self._filled(kwargs, contents))
        if isinstance(result, np.ndarray):
            n = self.served.events[k].inputs[0]
            if memory_of(result, contents[n]):
                self._arrays.add(result, n, contents[n])
            self._fetched[k] = result.copy()
        else:
            self._fetched[k] = result
        return result

    def host(self, k: int, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a tensor as Python does."""
        event = self.served.events[k]
        contents = self._contents(k) if k in self.served.plan.cuts else {}
        if contents is None:
            return self._diverged(func, args, kwargs)
        before = generator_state()
        result = func(*self._filled(args, contents), **self._filled(kwargs, contents))
        if (generator_state() != before) is not event.draws:
            return self._diverged(func, args, kwargs)
        self.graph.record_draws()
        made = tensors_in(result)
        numbers = [ref.index for ref in event.outs]
        if len(made) != len(numbers) or not self._accepted(numbers, made):
            return self._diverged(func, args, kwargs)
        return result

    def _accepted(self, numbers: list[int], made: list[torch.Tensor]) -> bool:
        return all(
            self.values[n] is tensor if self.values[n] is not None else self.accept(n, tensor)
            for n, tensor in zip(numbers, made, strict=True)
        )

    def _diverged(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.diverge(getattr(func, "__name__", repr(func)))
        assert self.recorder is not None
        return self.recorder.__torch_function__(func, (), args, kwargs)

    def _contents(self, k: int) -> dict[int, torch.Tensor] | None:
        """Return what the tensors hold that event ``k`` reads; None if the graph has failed, or an input is not as it
        was."""
        plan, event = self.served.plan, self.served.events[k]
        if event.shown is not None and event.shown.owner >= 0:
            owner = event.shown.owner
            if owner in self._private and not self.unchanged(owner):
                return None
            return {event.inputs[0]: event.shown.within(self.values[owner])}
        if hosted := plan.hosted.get(k):
            return {hosted.number: hosted.value(self.values[hosted.number])}
        cut, places = plan.cuts[k]
        before = self.graph.waited
        try:
            found = self._advance(cut)
        except Exception as error:
            self.fault = error
            return None
        self.waits.append((k, self.graph.waited - before))
        contents = {n: found[place] for n, place in places.items()}
        if event.shown is not None:  # so that the array can share memory with the tensor if the call diverges
            memory = self._arrays.memory(event.shown.first)
            contents = {n: event.shown.placed(tensor, memory) for n, tensor in contents.items()}
        return contents

    def _filled(self, tree: Any, contents: dict[int, torch.Tensor]) -> Any:
        by_id = {id(self.values[n]): tensor for n, tensor in contents.items()}
        return map_leaves(tree, lambda leaf: by_id.get(id(leaf), leaf) if isinstance(leaf, torch.Tensor) else leaf)

    def _advance(self, stage: int) -> list[torch.Tensor]:
        return self.graph.advance(stage, self.values, self._private, self.numbers)

    # -- divergence -----------------------------------------------------------------------------------------------

    def owns(self, tensor: torch.Tensor) -> bool:
        """See ``Owner``."""
        return any(tensor is one for one in self.values)

    def touched(self) -> None:
        """See ``Owner``."""
        with self._lock:
            if self._walk is not None:
                raise Aborted  # the event's calls are made one by one then
            if self.recorder is None and not self._over:
                self.diverge("a placeholder is used outside of the step's calls of torch")

    def diverge(self, what: str) -> None:
        """Put the call back to Python: make what has matched for real, and record what follows."""
        served, k = self.served, self.position
        self.diverged_at = f"{served.events[k].name if k < len(served.events) else 'the end'}: {what}"
        here = threading.get_ident() == self._thread
        if self._observer is not None and here:
            self._observer.stop()
        with outside_modes() as ambient:
            self.recorder = self._replayed(k, ambient)
        if here:
            self.recorder.observer.start()
        self._unobserved |= not here  # another thread cannot watch this one

    def _replayed(self, k: int, ambient: Ambient) -> Recorder:
        """Make the first ``k`` events for real. Returns a recorder that goes on after them."""
        served = self.served
        moved = saved() if self.reseeded() else None
        self.graph.abandon()
        recorder = self.recorder = Recorder(self._arguments, copies=True)
        recorder.observer.modules |= served.path.modules  # their code has run before
        recorder.sections += (one for one in served.path.sections if one.end <= k)
        count = served.known[k]
        recorder.keep((n, self.values[n]) for n in range(count) if n in served.externals)
        if served.draws:
            restored(self.states)
        events = events_of(served, k, self.numbers)
        try:
            replay(events, self.values, self._private, ambient)
        except BaseException:
            recorder.refuse_error(NOWHERE)
            raise
        if moved is not None:
            restored(moved)
        if not self._arrays.rebind(self.values):
            raise InternalFault("an array cannot share memory with the tensor that it was made of")
        known = (served.externals[n] for n in range(count) if n in served.externals)
        recorder.go_on_from(events, known, self.values[:count], self._arrays)
        recorder.fetched.update((event, value) for event, value in self._fetched.items() if event < k)
        return recorder

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> Trace | None:
        """Complete the call, whose program has returned: commit, or diverge. Returns the trace if it has diverged and
        was recorded to the end."""
        with self._lock:
            if self.recorder is None:
                self._complete()
            self.close()
            if self.recorder is None:
                return None
            self.values = []  # what is alive is counted
            trace = self.recorder.finish()
            return None if self._unobserved else trace

    def _complete(self) -> None:
        served, values = self.served, self.values
        if self._arrays.all and self._arrays.written():
            self.diverge("an array that shares memory with a tensor was written to")
        elif self.position < len(served.events) or not undisturbed():
            self.diverge("the step ends earlier, or in another mode")
        elif any(sys.getrefcount(values[n]) > 2 for n in served.passing if values[n] is not None):
            self.diverge("a tensor lives on that did not in earlier calls")
        elif self._arrays.all and not served.bound.isdisjoint(self._arrays.alive()):
            self.diverge("an array that shares memory with a tensor lives on, and did not in earlier calls")
        else:
            self._commit()

    def _commit(self) -> None:
        """Run the last stage of the graph, and make all changes."""
        served, values = self.served, self.values
        inputs = [self._private.get(n, values[n]) for n in served.plan.inputs]
        try:
            with _unsafe_preserve_version_counter(tuple(values[n] for n in served.uncounted)):
                made = self._advance(len(served.plan.program.cuts))
        except Exception as error:
            self.fault = error
            self.diverge(f"the graph raised {type(error).__name__}")
        else:
            served.commit(made, inputs, values)

    def fail(self) -> None:
        """End the call, whose program has raised: what it has done so far is done for real."""
        with self._lock:
            if self.recorder is None:
                self.diverge("the step raises")
            self.close()

    def close(self) -> None:
        """No placeholder of this run is left."""
        for observer in (self._observer, None if self.recorder is None else self.recorder.observer):
            if observer is not None:
                observer.stop()
        if not self._over:
            self._over = True
            unregister(self)
            self.graph.abandon()

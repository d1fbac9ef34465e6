"""The life of a call: run by an entry, missed, violated, failed, fallen back from, watched (JANUS 3.2, figure 2).

Whatever goes wrong in here, the call is completed by the program itself. What is known from the calls so far is kept by
``learning``; what the user sees of it all is ``speculate``'s.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.access_path import RESULTS
from torchjanus.core.collector import uncollected
from torchjanus.core.default_device import foreign_modes
from torchjanus.core.errors import Place, Refusal, SourceUnavailable, Unsupported
from torchjanus.hooks import current, rewritten
from torchjanus.host.journal import Journal
from torchjanus.runtime.entries.dispatch import Route
from torchjanus.runtime.entries.engine import make_ready
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.entries.verify import shadow_call
from torchjanus.runtime.launch.launch import MISS, RAISED, Failure, Violation, failure
from torchjanus.runtime.learning.learning import Learning
from torchjanus.semantics.protocols.depth import room
from torchjanus.semantics.protocols.virtualize import underlying
from torchjanus.semantics.torch.torch_state import hindrance
from torchjanus.semantics.watch.watch import watch_call
from torchjanus.trace.actions import name_of
from torchjanus.trace.events import Trace

__all__ = ["Calls"]

_SUSPENDED = {
    inspect.CO_COROUTINE: "coroutine",
    inspect.CO_ASYNC_GENERATOR: "asynchronous generator",
    inspect.CO_GENERATOR: "generator",
}

TRUSTED_ERRORS = 3

Target = tuple[types.FunctionType, tuple[Any, ...]]  # what is watched, and the arguments bound to it

# One call at a time is watched or made a graph of, whichever function's it is: neither CPython 3.11's syntax trees nor
# torch's tracing bear two threads at once. The others run as they are in the meantime.
_learning = threading.RLock()


class Calls:
    """Makes the calls of ``fn``."""

    def __init__(self, fn: Callable[..., Any], learning: Learning) -> None:
        self.fn = fn
        self.learning = learning
        self.counts = learning.counts
        self.story = learning.story
        self.patience = learning.patience
        self.awaiting = learning.awaiting
        self.budget = learning.budget

    @staticmethod
    def attempt(route: Route, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        if journal is not None:
            journal.begin()
        try:
            return route.call(args, kwargs, journal)
        except Exception as error:
            return failure(error)

    def finish(
        self, route: Route, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None
    ) -> Any:
        """Complete a call whose guards held. No exception is being handled: the user's has no other in its context."""
        if type(result) is Violation:
            part = result.by or route.entries[0]
            self.learning.violated(part, result)
            if self.learning.is_exception(part, result):
                return self._run_imperatively(args, kwargs, journal)
            made = self._after_violation(args, kwargs, journal)
            self.learning.charge(part)
            return made
        if type(result) is Failure:
            return self._after_failure(result.by or route.entries[0], result, args, kwargs, journal)
        if result is RAISED:
            return self._run_imperatively(args, kwargs, journal)
        self.patience.served()
        if self.learning.paths.lingers and _learning.acquire(blocking=False):
            try:
                self.learning.paths.let_go(args, kwargs)
            finally:
                _learning.release()
        route.runs += 1
        route.used = self.counts.calls
        if journal is not None and not journal.is_met:
            self.close(journal, served=True)  # an entry that was tried before has made more
        return result

    def is_due(self, every: int) -> bool:
        """Whether enough calls were speculated since the last that was verified."""
        counts = self.counts
        return counts.speculated >= (every - 1) * (counts.verified + 1)

    def verify(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Make one call by a graph on copies, and by the program for real. MISS if no entry's guards hold."""
        routes = [*self.learning.routes]
        for route in routes:
            if journal is not None:
                journal.begin()
            try:
                shadow = shadow_call(route, args, kwargs, journal)
            except Exception as error:
                return self.finish(route, failure(error, route.entries[0]), args, kwargs, journal)
            if shadow is MISS or (type(shadow) is Violation and route is not routes[-1]):
                continue
            if shadow is RAISED or type(shadow) is Violation:
                return self.finish(route, shadow, args, kwargs, journal)
            entry = shadow.entry
            made = [] if journal is None else journal.made()
            try:
                result = self._repeat(args, kwargs, journal)
            except Exception as error:
                self.learning.verified(entry, [f"eager raised {type(error).__name__}: {error}"])
                raise
            # A call that changes nothing may be made anew (see ``Journal.known``): that says nothing about the graph.
            told = [record for record in made if not record.taken and not (record.harmless and record.undo is None)]
            unmet = [f"{name_of(record.func)} was called, and eager does not" for record in told]
            self.learning.verified(entry, [*unmet, *shadow.differences(result)])
            return result
        return MISS

    def _run_imperatively(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None = None) -> Any:
        """The function as it is. Extern calls that a graph has made are taken back; where somebody could tell of one,
        none is made again: see _repeat."""
        if journal is not None and journal.harmless:
            journal.close()
        return self._repeat(args, kwargs, journal)

    def by_python(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function as it is."""
        begun = self.budget.clock()
        try:
            return self.fn(*args, **kwargs)
        finally:
            self.budget.by_python(self.budget.clock() - begun)

    def _repeat(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """The function as it is, watched if a graph has made extern calls: so as to meet them."""
        self.counts.imperative += 1
        found = self._target() if journal is not None and journal.records else None
        if found is None:
            return self.by_python(args, kwargs)
        assert journal is not None
        self.patience.repeated()
        self.budget.learns("repeat")
        return self._watched(found, args, kwargs, journal)[0]

    def _watched(
        self, found: Target, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None
    ) -> tuple[Any, Trace]:
        """Run the program under watch; after it, take back the extern calls that it did not come to."""
        journal = Journal() if journal is None else journal
        journal.begin()
        try:
            return watch_call(
                *found,
                args,
                kwargs,
                journal,
                self.learning.texts.loose,
                self.learning.recursion.functions,
                self.learning.columns,
                self.learning.deciding,
            )
        finally:
            self.close(journal)

    def close(self, journal: Journal, served: bool = False) -> None:
        for record in journal.close(served):
            self.story.say("extern", f"{name_of(record.func)} was called, and the program did not come to it")

    def _is_within(self) -> bool:
        """Whether the call is part of something that must not be watched anew."""
        return current() is not None or torch._C._len_torch_dispatch_stack() > 0

    def slow(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        learning = self.learning
        semantics: Any = current()
        if semantics is not None:
            # Reached through native code: the call is part of what is being watched all the same.
            self.counts.imperative += 1
            return semantics.call(None, self.fn, args, kwargs)
        if modes := foreign_modes():  # not even watched: they would see what watching asks torch
            what = f"the step runs under {modes}"
            why = "it sees each call of torch, of which a graph makes none."
            self.story.refuse(Refusal("torch-mode", what, why, "Leave it out."))
            return self._run_imperatively(args, kwargs, journal)
        due = self.counts.calls >= self.patience.again
        if self.patience.given_up and not due:
            self.patience.missed()
            return self._run_imperatively(args, kwargs, journal)
        if self._is_within() or not _learning.acquire(blocking=False):
            return self._run_imperatively(args, kwargs, journal)
        try:
            if due:
                learning.begin_again()
            if self.patience.closed:
                self.patience.unserved()
                return self._run_imperatively(args, kwargs, journal)
            if learning.routes.entries:
                if hindrance():  # a graph for this call would not be right either
                    return self._run_imperatively(args, kwargs, journal)
                self.counts.missed += 1
            if self.awaiting.waits:
                if journal is not None and journal.records:
                    self.awaiting.wasted()
                self._take_up()
                return self._run_imperatively(args, kwargs, journal)
            if not self.patience.has_time():
                route = self._relax(args, kwargs, journal) if self.patience.may_relax() else None
                if route is not None:
                    return self._retry(route, args, kwargs, journal, watching=False)
                self.patience.missed()
                return self._run_imperatively(args, kwargs, journal)
            return self._learn_from(args, kwargs, journal)
        finally:
            _learning.release()

    def _take_up(self) -> None:
        """Put a graph that has been made elsewhere to use, if that can be done just now."""
        if not self.awaiting.elsewhere.over or self._is_within() or not self.patience.may_make() or hindrance():
            return
        if _learning.acquire(blocking=False):
            begun = self.budget.clock()
            try:
                self._go_on()
            finally:
                self.budget.charge("make", self.budget.clock() - begun, in_call=True)
                _learning.release()

    def _go_on(self) -> None:
        """Use what has been made elsewhere, if it is there."""
        with room(), uncollected(kept=True):
            try:
                self.awaiting.go_on()
            except Exception as error:
                self.patience.fault(error)

    def wait(self) -> None:
        """Return when no graph is being made elsewhere."""
        while self.awaiting.waits:
            self.awaiting.elsewhere.wait()
            with _learning:
                self._go_on()

    def _learn_from(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Make a call that no graph could make, and learn from it."""
        if self.learning.routes.entries:
            route = self._relax(args, kwargs, journal)
            if route is not None:
                return self._retry(route, args, kwargs, journal)
        if self.awaiting.waits or not self.patience.may_watch():
            return self._run_imperatively(args, kwargs, journal)
        return self._watch(args, kwargs, journal)

    def _relax(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Route | None:
        """What serves this call now, or may, if it took no more than a weaker assumption."""
        try:
            results = {} if journal is None else journal.results()
            with uncollected():
                return self.learning.relax(args, {**kwargs, RESULTS: results} if results else kwargs)
        except Exception as error:
            self.patience.fault(error)
            return None

    def _retry(
        self,
        route: Route,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        journal: Journal | None,
        watching: bool = True,
    ) -> Any:
        """Make the call by this. ``watching``: if it cannot, the call may be watched."""
        if route.journaled and journal is None:
            journal = Journal()
        result = self.attempt(route, args, kwargs, journal)
        if result is MISS:
            return (self._watch if watching else self._run_imperatively)(args, kwargs, journal)
        return self.finish(route, result, args, kwargs, journal)

    def _after_violation(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Make the call by the program itself, watched where another way is worth learning."""
        if self.awaiting.waits:
            self._take_up()
            return self._run_imperatively(args, kwargs, journal)
        if not self.patience.may_watch_on() or self._is_within() or hindrance():
            return self._run_imperatively(args, kwargs, journal)
        if not _learning.acquire(blocking=False):
            return self._run_imperatively(args, kwargs, journal)
        try:
            return self._watch(args, kwargs, journal)
        finally:
            _learning.release()

    def _target(self) -> Target | None:
        """The Python function to watch and the arguments bound to it; None, and the reason told, if there is none."""
        try:
            target, leading = underlying(self.fn)
            rewritten(target)
        except (SourceUnavailable, Unsupported) as error:
            self.story.refuse(Refusal("no-source", f"{self.fn!r} cannot be rewritten", str(error)))
            self.patience.give_up(str(error))
            return None
        kind = next((kind for flag, kind in _SUSPENDED.items() if target.__code__.co_flags & flag), None)
        if kind is not None:
            place = Place(target.__code__.co_filename, target.__code__.co_firstlineno)
            why = f"calling it makes a {kind} and runs nothing of it yet."
            remedy = "Speculate on a plain function that does the work between two awaits or yields."
            refusal = Refusal("step-suspends", f"the step is a {kind}", why, remedy, place)
            self.story.refuse(refusal)
            self.patience.give_up(str(refusal))
            return None
        return target, leading

    def _watch(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        found = self._target()
        if found is None:
            return self._run_imperatively(args, kwargs)
        self.counts.watched += 1
        self.budget.learns("watch")
        if self.counts.watched == 1:
            with uncollected(kept=True):
                make_ready(self.learning.routes.executor)
        try:
            result, trace = self._watched(found, args, kwargs, journal)
        except BaseException as error:
            self.story.say("raised", f"the call raised {type(error).__name__}: no trace of it is kept")
            raise
        try:
            with room(), uncollected(kept=True):
                self.learning.learn(trace, args, kwargs)
        except Exception as error:
            self.patience.fault(error)
        return result

    def _after_failure(
        self, entry: Entry, failure: Failure, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None
    ) -> Any:
        error = failure.error
        if failure.committing:
            # Print to a pipe that has gone, or a fault of ours. What was updated stays so, as after eager's exception.
            self.counts.speculated += 1
            entry.runs += 1
            self.learning.drop(entry, f"{type(error).__name__} was raised when its results were committed")
            error.add_note("torchjanus: raised when the results of a graph were committed; its tensors are updated.")
            raise error
        # The graph raised, and changed nothing: eager decides whether the program raises, too.
        if entry.errors >= TRUSTED_ERRORS:
            self.learning.raised(entry, error)
            return self._run_imperatively(args, kwargs, journal)
        return self._after_suspect(entry, error, args, kwargs, journal)

    def _after_suspect(
        self,
        entry: Entry,
        error: BaseException,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        journal: Journal | None,
    ) -> Any:
        """Make the call by the program itself, and see whether an operation of it fails, too, be it caught or not."""
        found = None if self._is_within() else self._target()
        if found is None or not _learning.acquire(blocking=False):
            return self._run_imperatively(args, kwargs, journal)
        self.counts.watched += 1
        self.budget.learns("suspect")
        try:
            result, trace = self._watched(found, args, kwargs, journal)
        except BaseException:
            self.learning.raised(entry, error)
            raise
        finally:
            _learning.release()
        learning = self.learning
        if trace.failures:
            learning.raised(entry, error)
        else:
            self.patience.fault(error)
            learning.drop(entry, f"its graph raised {type(error).__name__} where eager does not")
        return result

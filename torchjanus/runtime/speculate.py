"""The life of a call: watch, generalise, run, commit; miss, violate, fall back, relax (JANUS 3.2, figure 2).

A Speculated stands for the user's function. Whatever goes wrong in here, the call is completed by the function itself.
What is known from the calls so far (entries, refusals, events) is kept by ``learning``.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
import types
import weakref
from collections.abc import Callable
from statistics import median
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch

from torchjanus.errors import NOWHERE, Refusal, SourceUnavailable, Unsupported
from torchjanus.hooks import current, hide_frames, rewritten
from torchjanus.journal import Journal
from torchjanus.origin import RESULTS
from torchjanus.runtime.engine import check_executor
from torchjanus.runtime.entry import Entry
from torchjanus.runtime.launch import MISS, RAISED, Failure, Violation
from torchjanus.runtime.learning import Learning
from torchjanus.runtime.records import Event, Profile, Statistics
from torchjanus.semantics.torch_state import hindrance
from torchjanus.semantics.virtualize import underlying
from torchjanus.semantics.watch import watch_call
from torchjanus.trace.events import name_of

__all__ = [
    "Speculated",
    "keep_speculated",
    "speculate",
    "speculated",
]

P = ParamSpec("P")
R = TypeVar("R")

_live: weakref.WeakSet[Speculated[Any, Any]] = weakref.WeakSet()
_kept: list[Speculated[Any, Any]] | None = None  # what keep_speculated() holds on to


def speculated() -> list[Speculated[Any, Any]]:
    """Every speculated function that is alive, in the order in which they were made."""
    return sorted(_live, key=lambda s: s.number)


def keep_speculated() -> None:
    """From now on hold on to every speculated function, and so to what it closes over, for a report at the end."""
    global _kept
    _kept = list(_live)


class Speculated(Generic[P, R]):
    """``fn`` under speculation. Call it as you would call ``fn``."""

    _made = 0

    def __init__(self, fn: Callable[P, R], *, watch: int, executor: str | None) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.watch = watch
        self.executor = executor
        # A module or another callable object has no name of its own.
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self._learning = Learning(name, watch=watch, executor=executor)
        self._counts = self._learning.counts
        Speculated._made += 1
        self.number = Speculated._made
        self._lock = threading.RLock()
        self._ticks: list[tuple[int, int, int]] = []
        _live.add(self)
        if _kept is not None:
            _kept.append(self)

    # -- calls ----------------------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._counts.calls += 1
        learning = self._learning
        journal = Journal() if learning.journaled else None
        try:
            for entry in learning.entries:
                result = self._attempt(entry, args, kwargs, journal)
                if result is not MISS:
                    return self._finish(entry, result, args, kwargs, journal)  # type: ignore[no-any-return]
            return self._slow(args, kwargs, journal)  # type: ignore[no-any-return]
        except BaseException as error:
            hide_frames(error)
            raise

    @property
    def entries(self) -> list[Entry]:
        """The graphs in use, the latest first."""
        return self._learning.entries

    @property
    def refusals(self) -> list[Refusal]:
        """What could not be speculated on."""
        return self._learning.refusals

    @property
    def events(self) -> list[Event]:
        """What happened, in order."""
        return self._learning.events

    @property
    def given_up(self) -> str:
        """Why the function runs as it is from now on, or ""."""
        return self._learning.given_up

    @property
    def __janus_target__(self) -> Callable[P, R]:
        """What another function's watch enters in place of this object."""
        return self.fn

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<speculated {self.fn!r}>"

    def __getattr__(self, name: str) -> Any:
        # Only names that this object does not have: a speculated module or callable shows its own attributes.
        if name.startswith("__") or name == "fn":
            raise AttributeError(name)
        return getattr(self.fn, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.fn, self.watch, self.executor)

    def __deepcopy__(self, memo: dict[int, Any]) -> Speculated[P, R]:
        # The copy's entries would speak of the original's objects: it starts anew.
        return Speculated(_deepcopy(self.fn, memo), watch=self.watch, executor=self.executor)

    def statistics(self) -> Statistics:
        """The counts so far."""
        return Statistics(**dataclasses.asdict(self._counts), entries=len(self.entries))

    def wait(self) -> None:
        """Return when no compilation is pending. (A compilation is part of the call that asks for it: none ever is.)"""

    def profile(self, *args: P.args, **kwargs: P.kwargs) -> Profile | None:
        """Make one call, as ``step(*args)`` does, and say where the time of it and of earlier profiled calls went.

        None as long as no profiled call was speculated. The returned value of the call is dropped.
        """
        ticks: list[int] = []
        journal = Journal() if self._learning.journaled else None
        self._counts.calls += 1
        for entry in self.entries:
            try:
                result = entry.launch.timed(args, kwargs, journal, ticks)
            except Exception as error:
                result = Failure(error, False)
            if result is MISS:
                ticks.clear()
                continue
            self._finish(entry, result, args, kwargs, journal)
            if len(ticks) == 4:
                self._ticks.append((ticks[1] - ticks[0], ticks[2] - ticks[1], ticks[3] - ticks[2]))
            break
        else:
            self._slow(args, kwargs, journal)
        if not self._ticks:
            return None
        guards, run, commit = (median(column) / 1e3 for column in zip(*self._ticks, strict=True))
        return Profile(len(self._ticks), guards, run, commit)

    @staticmethod
    def _attempt(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        try:
            return entry.launch.call(args, kwargs, journal)
        except Exception as error:
            return Failure(error, False)

    def _finish(
        self, entry: Entry, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None
    ) -> Any:
        """Complete a call whose guards held. No exception is being handled: the user's has no other in its context."""
        if type(result) is Violation:
            self._learning.violated(entry, result)
            return self._run_imperatively(args, kwargs, journal)
        if type(result) is Failure:
            return self._after_failure(entry, result, args, kwargs, journal)
        if result is RAISED:
            return self._run_imperatively(args, kwargs, journal)
        self._counts.speculated += 1
        entry.runs += 1
        return result

    # -- what happens off the fast path ---------------------------------------------------------------------------

    def _run_imperatively(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None = None) -> Any:
        """The function as it is. Extern calls that a graph has made already are not made again: the run is watched, so
        as to meet them."""
        self._counts.imperative += 1
        found = self._target() if journal is not None and journal.records else None
        if found is None:
            return self.fn(*args, **kwargs)
        assert journal is not None
        try:
            return watch_call(*found, args, kwargs, journal)[0]
        finally:
            self._close(journal)

    def _close(self, journal: Journal) -> None:
        for record in journal.close():
            self._learning.say("extern", f"{name_of(record.func)} was called, and the program did not come to it")

    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        learning = self._learning
        if learning.given_up or current() is not None or torch._C._len_torch_dispatch_stack():
            return self._run_imperatively(args, kwargs, journal)
        if not self._lock.acquire(blocking=False):
            # Another thread, or an outer call of this very function, is at work.
            return self._run_imperatively(args, kwargs, journal)
        try:
            if learning.entries:
                if hindrance():  # a graph for this call would not be right either
                    return self._run_imperatively(args, kwargs, journal)
                self._counts.missed += 1
                try:
                    results = {} if journal is None else journal.results()
                    entry = learning.relax(args, {**kwargs, RESULTS: results} if results else kwargs)
                except Exception as error:
                    learning.fault(error)
                    entry = None
                if entry is not None:
                    return self._retry(entry, args, kwargs, journal)
            if not learning.may_watch():
                return self._run_imperatively(args, kwargs, journal)
            return self._watch(args, kwargs, journal)
        finally:
            self._lock.release()

    def _retry(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        if entry.launch.journaled and journal is None:
            journal = Journal()
        result = self._attempt(entry, args, kwargs, journal)
        if result is MISS:
            return self._watch(args, kwargs, journal)
        return self._finish(entry, result, args, kwargs, journal)

    def _target(self) -> tuple[types.FunctionType, tuple[Any, ...]] | None:
        """The Python function to watch and the arguments bound to it; None, and the reason told, if there is none."""
        try:
            target, leading = underlying(self.fn)
            rewritten(target)
        except (SourceUnavailable, Unsupported) as error:
            self._learning.refuse(Refusal(NOWHERE, f"{self.fn!r} cannot be rewritten", str(error), ""))
            self._learning.give_up(str(error))
            return None
        return target, leading

    def _watch(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        found = self._target()
        if found is None:
            return self._run_imperatively(args, kwargs)
        target, leading = found
        self._counts.watched += 1
        journal = Journal() if journal is None else journal
        try:
            result, trace = watch_call(target, leading, args, kwargs, journal)
        except BaseException as error:
            self._learning.say("raised", f"the call raised {type(error).__name__}: no trace of it is kept")
            raise
        finally:
            self._close(journal)
        try:
            self._learning.learn(trace, args, kwargs)
        except Exception as error:
            self._learning.fault(error)
        return result

    def _after_failure(
        self, entry: Entry, failure: Failure, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None
    ) -> Any:
        error = failure.error
        if failure.committing:
            # Print to a pipe that has gone, or a fault of ours. What was updated stays so, as after eager's exception.
            self._counts.speculated += 1
            entry.runs += 1
            self._learning.drop(entry, f"{type(error).__name__} was raised when its results were committed")
            error.add_note("torchjanus: raised when the results of a graph were committed; its tensors are updated.")
            raise error
        # The graph raised, and changed nothing: eager decides whether the program raises, too.
        result = self._run_imperatively(args, kwargs, journal)
        # Eager did not raise, so the fault is ours.
        learning = self._learning
        learning.fault(error)
        learning.drop(entry, f"its graph raised {type(error).__name__} where eager does not")
        return result


def _again(fn: Callable[..., Any], watch: int, executor: str | None) -> Speculated[Any, Any]:
    return Speculated(fn, watch=watch, executor=executor)


def _deepcopy(fn: Any, memo: dict[int, Any]) -> Any:
    return copy.deepcopy(fn, memo)


@overload
def speculate(fn: Callable[P, R], *, watch: int = 3, executor: str | None = None) -> Speculated[P, R]: ...
@overload
def speculate(
    fn: None = None, *, watch: int = 3, executor: str | None = None
) -> Callable[[Callable[P, R]], Speculated[P, R]]: ...
def speculate(fn: Any = None, *, watch: int = 3, executor: str | None = None) -> Any:
    """Run ``fn`` speculatively: after ``watch`` watched calls as one graph, with eager's results (JANUS 3).

    Use it as a decorator (``@speculate`` or ``@speculate(watch=2)``) or as a call. ``fn`` is a function, a method, a
    lambda, an ``nn.Module`` or any callable written in Python; it should be a whole training step, with
    ``zero_grad()``, ``backward()`` and ``optimizer.step()`` inside. ``executor``: "auto" (the fastest by measure),
    "replay" (ATen calls, bitwise eager) or "inductor".

    Raises Unsupported if ``fn`` is not callable, ``watch`` is less than 1 or there is no such executor.

        >>> import torch, torchjanus
        >>> double = torchjanus.speculate(lambda x: x * 2, executor="replay")
        >>> [double(torch.tensor(float(k))).item() for k in range(6)]
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        >>> double.statistics().speculated
        3
    """
    if isinstance(watch, bool) or not isinstance(watch, int) or watch < 1:
        raise Unsupported(f"speculate(watch={watch!r}): the number of watched calls is an integer of at least 1.")
    if executor is not None:
        check_executor(executor)
    if fn is None:
        return functools.partial(speculate, watch=watch, executor=executor)
    if not callable(fn):
        raise Unsupported(
            f"speculate({fn!r}): expected a function, a method, an nn.Module or another callable, "
            f"not {type(fn).__name__}. Put the work of one step into a function and speculate on that."
        )
    return Speculated(fn, watch=watch, executor=executor)

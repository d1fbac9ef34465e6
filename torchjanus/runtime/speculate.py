"""The life of a call: watch, generalise, run, commit; miss, violate, fall back, relax (JANUS 3.2, figure 2).

A Speculated stands for the user's function. Whatever goes wrong in here, the call is completed by the function itself.
"""

from __future__ import annotations

import copy
import functools
import logging
import threading
import types
import weakref
from collections.abc import Callable
from statistics import median
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch

from torchjanus.errors import NOWHERE, Place, Refusal, Refused, SourceUnavailable, Unsupported
from torchjanus.hooks import current, hide_frames, rewritten
from torchjanus.runtime.engine import check_executor
from torchjanus.runtime.entry import Entry, Group, make_entry
from torchjanus.runtime.launch import MISS, Failure, Violation
from torchjanus.runtime.records import Event, Profile, Statistics
from torchjanus.semantics.virtualize import underlying
from torchjanus.semantics.watch import watch_call
from torchjanus.trace.events import Trace

__all__ = [
    "Speculated",
    "default_executor",
    "keep_speculated",
    "speculate",
    "speculated",
]

log = logging.getLogger("torchjanus")
P = ParamSpec("P")
R = TypeVar("R")

MAX_ENTRIES = 8
MAX_COMPILES = 24
MAX_WATCHED = 48
MAX_VIOLATIONS = 3
MAX_FAULTS = 3

_live: weakref.WeakSet[Speculated[Any, Any]] = weakref.WeakSet()
_kept: list[Speculated[Any, Any]] | None = None  # what keep_speculated() holds on to
_default_executor = "auto"


def default_executor(name: str | None = None) -> str:
    """The executor of functions that name none; given a name, sets it (the command line's --executor)."""
    global _default_executor
    if name is not None:
        _default_executor = check_executor(name)
    return _default_executor


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
        self.entries: list[Entry] = []
        self.groups: dict[Any, Group] = {}
        self.events: list[Event] = []
        self.refusals: list[Refusal] = []
        self.traces: list[Trace] = []
        self.given_up: str = ""
        Speculated._made += 1
        self.number = Speculated._made
        self._lock = threading.RLock()
        self._calls = self._watched = self._speculated = self._missed = 0
        self._violated = self._refused = self._imperative = self._compiles = 0
        self._faults = 0
        self._unproductive = 0
        self._said: set[str] = set()
        self._ticks: list[tuple[int, int, int]] = []
        _live.add(self)
        if _kept is not None:
            _kept.append(self)

    # -- calls ----------------------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._calls += 1
        try:
            for entry in self.entries:
                try:
                    result = entry.launch.call(args, kwargs)
                except Exception as error:
                    result = Failure(error, False)
                if result is not MISS:
                    return self._finish(entry, result, args, kwargs)  # type: ignore[no-any-return]
            return self._slow(args, kwargs)  # type: ignore[no-any-return]
        except BaseException as error:
            hide_frames(error)
            raise

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
        return Statistics(
            self._calls,
            self._watched,
            self._speculated,
            self._missed,
            self._violated,
            self._refused,
            self._imperative,
            self._compiles,
            len(self.entries),
        )

    def wait(self) -> None:
        """Return when no compilation is pending. (A compilation is part of the call that asks for it: none ever is.)"""

    def profile(self, *args: P.args, **kwargs: P.kwargs) -> Profile | None:
        """Make one call, as ``step(*args)`` does, and say where the time of it and of earlier profiled calls went.

        None as long as no profiled call was speculated. The returned value of the call is dropped.
        """
        ticks: list[int] = []
        for entry in self.entries:
            try:
                result = entry.launch.timed(args, kwargs, ticks)
            except Exception as error:
                result = Failure(error, False)
            if result is MISS:
                ticks.clear()
                continue
            self._calls += 1
            self._finish(entry, result, args, kwargs)
            if len(ticks) == 4:
                self._ticks.append((ticks[1] - ticks[0], ticks[2] - ticks[1], ticks[3] - ticks[2]))
            break
        else:
            self(*args, **kwargs)
        if not self._ticks:
            return None
        guards, run, commit = (median(column) / 1e3 for column in zip(*self._ticks, strict=True))
        return Profile(len(self._ticks), guards, run, commit)

    def _finish(self, entry: Entry, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Complete a call whose guards held. No exception is being handled: the user's has no other in its context."""
        if type(result) is Violation:
            return self._after_violation(entry, result, args, kwargs)
        if type(result) is Failure:
            return self._after_failure(entry, result, args, kwargs)
        self._speculated += 1
        entry.runs += 1
        return result

    # -- what happens off the fast path ---------------------------------------------------------------------------

    def _run_imperatively(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._imperative += 1
        return self.fn(*args, **kwargs)

    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.given_up or current() is not None or torch._C._len_torch_dispatch_stack():
            return self._run_imperatively(args, kwargs)
        if not self._lock.acquire(blocking=False):
            # Another thread, or an outer call of this very function, is at work.
            return self._run_imperatively(args, kwargs)
        try:
            if self.entries:
                self._missed += 1
                try:
                    entry = self._relax(args, kwargs)
                except Exception as error:
                    self._fault(error)
                    entry = None
                if entry is not None:
                    return self._retry(entry, args, kwargs)
            if self._watched >= MAX_WATCHED:
                self._give_up(f"{self._watched} calls were watched and calls still differ from what was assumed")
                return self._run_imperatively(args, kwargs)
            return self._watch(args, kwargs)
        finally:
            self._lock.release()

    def _retry(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            result = entry.launch.call(args, kwargs)
        except Exception as error:
            result = Failure(error, False)
        return self._watch(args, kwargs) if result is MISS else self._finish(entry, result, args, kwargs)

    def _target(self) -> tuple[types.FunctionType, tuple[Any, ...]] | None:
        """The Python function to watch and the arguments bound to it; None, and the reason told, if there is none."""
        try:
            target, leading = underlying(self.fn)
            rewritten(target)
        except (SourceUnavailable, Unsupported) as error:
            self._refuse(Refusal(NOWHERE, f"{self.fn!r} cannot be rewritten", str(error), ""))
            self._give_up(str(error))
            return None
        return target, leading

    def _watch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self._target()
        if found is None:
            return self._run_imperatively(args, kwargs)
        target, leading = found
        self._watched += 1
        try:
            result, trace = watch_call(target, leading, args, kwargs)
        except BaseException as error:
            self._say("raised", f"the call raised {type(error).__name__}: no trace of it is kept")
            raise
        try:
            self._learn(trace, args, kwargs)
        except Exception as error:
            self._fault(error)
        return result

    def _learn(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take in one watched run; make an entry when enough runs agree."""
        self.traces = [*self.traces[-2:], trace]
        if trace.refusals:
            self._refused += 1
            for refusal in trace.refusals:
                self._refuse(refusal)
            self._unproductive += 1
            if self._unproductive >= max(self.watch, 3) and not self.entries:
                self._give_up(str(trace.refusals[0]))
            return
        key = trace.tokens()
        group = self.groups.get(key)
        if group is None:
            shape = (len(args), tuple(kwargs))
            group = self.groups[key] = Group(len(self.groups) + 1, shape)
        group.traces = [*group.traces[-2:], trace]
        if self._watched >= self.watch and not self.entries and len(self.groups) == self._watched > 1:
            self._tell_difference()
        if self._watched < self.watch or len(group.traces) < min(2, self.watch) or group.refusal is not None:
            return
        if len(self.entries) >= MAX_ENTRIES or self._compiles >= MAX_COMPILES:
            self._give_up(f"{self._compiles} graphs were made and calls still differ from what was assumed")
            return
        self._make(group)

    def _tell_difference(self) -> None:
        """No two watched runs took the same path: say where the last two parted."""
        before, after = self.traces[-2:]
        for one, other in zip(before.events, after.events, strict=False):
            if one.token != other.token:
                self._say("differs", f"no two runs are alike; the last two part here: {one} / {other}", other.place)
                return
        self._say("differs", "no two runs are alike: they return or store different things")

    def _make(self, group: Group) -> Entry | None:
        try:
            entry = make_entry(group, self.executor or default_executor())
        except Refused as refused:
            group.refusal = refused.refusal
            self._refused += 1
            self._refuse(refused.refusal)
            if not self.entries:
                self._give_up(str(refused.refusal))
            return None
        self._compiles += 1
        self._unproductive = 0
        # An entry that holds a changing number at one value stays beside those for its other values.
        kept = (e for e in self.entries if e.group is not group or (e.lowered.pinned and entry.lowered.pinned))
        self.entries = [entry, *kept]
        return entry

    def _relax(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry | None:
        """Find an entry that would serve if one of its assumptions were weaker, and make it so (JANUS figure 4)."""
        for entry in self.entries:
            broken = entry.broken(args, kwargs)
            if broken is None:
                continue
            self._say("miss", f"{broken}, but now there is {broken.observed(args, kwargs)}", broken.place)
            tokens = entry.relaxable(broken)
            if tokens:
                entry.group.relaxed.update(tokens)
                self._say("relax", f"{broken}: relaxed, it is an input from now on", broken.place)
                made = self._make(entry.group)
                if made is not None:
                    return made
        return None

    def _after_violation(self, entry: Entry, violation: Violation, args: Any, kwargs: Any) -> Any:
        self._violated += 1
        entry.violations += 1
        for number in violation.violated.assertions:
            assertion = entry.lowered.assertions[number]
            self._say("violation", f"a condition on tensors stopped being {assertion.expected}", assertion.place)
        if entry.violations >= MAX_VIOLATIONS:
            self._drop(entry, "its assertions keep failing: a tensor decides which way the program goes")
        return self._run_imperatively(args, kwargs)

    def _after_failure(self, entry: Entry, failure: Failure, args: Any, kwargs: Any) -> Any:
        error = failure.error
        if failure.committing:
            # Print to a pipe that has gone, or a fault of ours. What was updated stays so, as after eager's exception.
            self._speculated += 1
            entry.runs += 1
            self._drop(entry, f"{type(error).__name__} was raised when its results were committed")
            error.add_note("torchjanus: raised when the results of a graph were committed; its tensors are updated.")
            raise error
        # The graph raised, and changed nothing: eager decides whether the program raises, too.
        self._imperative += 1
        result = self.fn(*args, **kwargs)
        # Eager did not raise, so the fault is ours.
        self._fault(error)
        self._drop(entry, f"its graph raised {type(error).__name__} where eager does not")
        return result

    def _drop(self, entry: Entry, why: str) -> None:
        self.entries = [e for e in self.entries if e is not entry]
        entry.group.refusal = Refusal(NOWHERE, "an entry was dropped", why, "")
        self._say("dropped", why)
        if not self.entries and all(group.refusal is not None for group in self.groups.values()):
            self._give_up(why)

    # -- words ----------------------------------------------------------------------------------------------------

    def _say(self, kind: str, text: str, place: Place = NOWHERE) -> None:
        event = Event(self._calls, kind, text, place)
        self.events.append(event)
        if text not in self._said:
            self._said.add(text)
            # A module or another callable object has no name of its own.
            name = getattr(self.fn, "__qualname__", type(self.fn).__qualname__)
            log.info("%s %s: %s", place if place.line else name, kind, text)

    def _refuse(self, refusal: Refusal) -> None:
        if refusal not in self.refusals:
            self.refusals.append(refusal)
            self._say("refused", f"{refusal.what}: {refusal.why} {refusal.remedy}", refusal.place)

    def _give_up(self, why: str) -> None:
        if not self.given_up:
            self.given_up = why
            self._say("imperative", f"from now on the function runs as it is: {why}")

    def _fault(self, error: BaseException) -> None:
        """Something inside torchjanus broke. The call is completed all the same."""
        self._faults += 1
        log.warning("internal fault in torchjanus, the call was completed eagerly", exc_info=error)
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        at = f" at {where.tb_frame.f_code.co_name}:{where.tb_lineno}" if where is not None else ""
        self._say("fault", f"torchjanus itself failed: {type(error).__name__}: {error}{at}. Please report this.")
        if self._faults >= MAX_FAULTS:
            self._give_up("torchjanus failed repeatedly")


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

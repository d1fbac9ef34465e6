"""The user's function under speculation: a callable with its statistics, events and graphs (JANUS, figure 2).

``Speculated`` holds what is known of the function (its ``Part``). It exchanges it when statements are left to Python,
when parts are tried, and on ``reset()``. ``parts.calls`` makes the calls.
"""

from __future__ import annotations

import copy
import functools
import os
import time
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from torchjanus.core.dynamo import call_uncompiled, is_compiling, skipped
from torchjanus.core.errors import Refusal, Unsupported
from torchjanus.core.remarks import Remark
from torchjanus.execute.compiled.duty_cycle import DUTY
from torchjanus.graph.ir.program import Assertion
from torchjanus.rewrite.hooks import current, hide_frames
from torchjanus.runtime.coexecution.recording.unnoticed import ACTIVE
from torchjanus.runtime.coexecution.report import CoexecutionReport
from torchjanus.runtime.coexecution.runner import Coexecution
from torchjanus.runtime.entries.engine import default_executor
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.learning.learning import Learning
from torchjanus.runtime.learning.saved import learnt_of, save
from torchjanus.runtime.parts.calls import Calls
from torchjanus.runtime.parts.contest import Contest, Standing
from torchjanus.runtime.parts.cutting import OF_THE_WHOLE, Cut
from torchjanus.runtime.parts.execution_policy import ExecutionPolicy
from torchjanus.runtime.parts.part import Part
from torchjanus.runtime.parts.region import Options, Region
from torchjanus.runtime.parts.skeleton import Parts
from torchjanus.runtime.pass_log.pass_log import PassLog, pass_log
from torchjanus.runtime.runs.budget import Overhead
from torchjanus.runtime.runs.call_times import CallTimes
from torchjanus.runtime.runs.experience import Experience
from torchjanus.runtime.runs.horizon import Horizon
from torchjanus.runtime.runs.marks import Marks
from torchjanus.runtime.runs.records import Event, Profile, Statistics
from torchjanus.runtime.runs.registry import register
from torchjanus.runtime.runs.saved_graphs import SavedGraphs
from torchjanus.runtime.runs.stance import in_force
from torchjanus.semantics.known.trusted import is_installed
from torchjanus.semantics.protocols.virtualize import home_of, underlying
from torchjanus.trace.events import Trace

__all__ = ["P", "R", "Speculated"]


P = ParamSpec("P")
R = TypeVar("R")


class Speculated(Generic[P, R]):
    """``fn`` under speculation. Call it as you would call ``fn``."""

    _made = 0

    def __init__(self, fn: Callable[P, R], *, watch: int, executor: str | None, verify: int) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        # The keywords of a ``functools.partial`` are arguments of each call of what it calls.
        self._body, self._keywords = _without_keywords(fn)
        self.watch = watch
        self.executor = executor
        self.verify = verify
        # A module or another callable object has no name of its own.
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self._name = name
        self._marks = Marks()
        self._part = self._begin()
        Speculated._made += 1
        self.number = Speculated._made
        register(self)

    def _begin(self) -> Part:
        """Return the whole function, of which nothing is known."""
        self._cut: Cut | None = None
        self._parts: Parts | None = None
        self._contest: Contest | None = None
        self.times = CallTimes()  # who made its calls, and how long they took
        home = home_of(self._body)
        coexecutes = (self.executor or default_executor()) == "coexecute"
        learning = Learning(
            self._name,
            home,
            watch=self.watch,
            executor="replay" if coexecutes else self.executor,
            cut=self._cut_off,
            cut_schedule=self._cut_schedule,
            passes=pass_log(self._name, home, self._body),
            unserved=self._try_parts,
            marks=self._marks,
            experience=self._experience,
        )
        self._coexecution = Coexecution(self._body, learning.event_log, merges=True) if coexecutes else None
        return self._part_of(self._body, learning)

    def _experience(self) -> Experience | None:
        """Return what earlier runs of the same code have kept; None for what has no code."""
        try:
            target, _ = underlying(self._body)
        except Unsupported:
            return None
        return Experience.of(target.__code__)

    # -- calls ----------------------------------------------------------------------------------------------------

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        part, times, begun, before = self._part, self.times, 0.0, (0, 0)
        if self._keywords:
            kwargs = {**self._keywords, **kwargs}  # type: ignore[assignment]
        if times.skips:
            times.skips -= 1
        else:
            before, begun = part.mark(), time.perf_counter()
        try:
            if in_force.is_eager and current() is None:
                return part.natively(self._body, args, kwargs)  # type: ignore[no-any-return]
            if is_compiling() is not None:  # by torch.compile: it would compile the program while that is watched
                return call_uncompiled(part.call, args, kwargs)  # type: ignore[no-any-return]
            if ACTIVE.calls:  # part of a call that is co-executed
                return part.natively(self._body, args, kwargs)  # type: ignore[no-any-return]
            if self._coexecution is not None:
                return self._coexecution.call(args, kwargs)  # type: ignore[no-any-return]
            if part.skipped_calls > 0 and current() is None:
                return part.call_unobserved(args, kwargs)  # type: ignore[no-any-return]
            return part.call(args, kwargs)  # type: ignore[no-any-return]
        except BaseException as error:
            hide_frames(error)
            raise
        finally:
            if begun:
                ended = time.perf_counter()
                times.record(part.number, part.made_by(before), begun, ended)
                if part.skipped_calls > 0:
                    times.skip_next(part.skipped_calls)
                if DUTY.working and current() is None and (slept := DUTY.called(ended - begun)):
                    part.learning.budget.charge("beside", slept)

    skipped(__call__)

    def _part_of(self, fn: Callable[..., Any], learning: Learning, cut: Cut | None = None) -> Part:
        before, after, taken = (None, None, 0) if cut is None else (cut.before, cut.after, cut.taken)
        return Part(fn, learning, self.verify, self._body, before, after, taken)

    def _cut_off(self, traces: Sequence[Trace]) -> bool:
        """Leave the first or the last statements, in which runs differ, to Python from the next call on. Returns
        whether that is possible."""
        return self._use(Cut.between(self._body, traces, self._cut))

    def _cut_schedule(self, trace: Trace) -> bool:
        """Leave a schedule in the first statements to Python from the next call on. Returns whether there is one."""
        return self._use(Cut.of_schedule(self._body, trace))

    def _use(self, cut: Cut | None) -> bool:
        """Speculate on what this cut leaves, from the next call on. Returns whether there is a cut."""
        if cut is None:
            return False
        before = self._learning
        before.event_log.record("cut", cut.description, cut.place)
        event_log = before.event_log
        after = Learning(
            event_log.name,
            event_log.home,
            watch=self.watch,
            executor=self.executor,
            cut=self._cut_off,
            after=before,
            passes=pass_log(event_log.name, event_log.home, cut.part),
            unserved=self._try_parts,
        )
        self._cut, self._part, self._parts, self._contest = cut, self._part_of(cut.part, after, cut), None, None
        before.end()
        return True

    def _try_parts(self) -> None:
        """Speculate on parts of the function from the next call on, since there is no graph of the whole; where the
        executor is chosen by measure, co-execution is a choice, too."""
        calls = self._part.calls
        if any(refusal.reason in OF_THE_WHOLE for refusal in calls.learning.event_log.refusals):
            return
        if self._parts is None and self._may_have_parts():
            self._parts = Parts(calls.fn, Options(self.watch, self.executor, self.verify), calls.learning)
            calls.native = self._parts.call
        if self._contest is None and (self.executor or default_executor()) == "auto":
            self._contest = Contest(calls.fn, self._parts, calls.learning)
            calls.native = self._contest.call

    def _may_have_parts(self) -> bool:
        try:
            target, _ = underlying(self._part.calls.fn)
        except Unsupported:
            return False
        return not is_installed(target.__code__.co_filename)

    # -- what it reports ------------------------------------------------------------------------------------------

    @property
    def _learning(self) -> Learning:
        return self._part.learning

    @property
    def _calls(self) -> Calls:
        return self._part.calls

    @property
    def _execution_policy(self) -> ExecutionPolicy:
        return self._part.execution_policy

    @property
    def entries(self) -> list[Entry]:
        """The graphs in use, the latest first."""
        return self._learning.routes.entries

    def path_to(self, entry: Entry) -> list[Assertion]:
        """Return the decisions by tensors that lead to ``entry``, where several graphs form one path tree."""
        return next((r.path_to(entry) for r in self._learning.routes if any(e is entry for e in r.entries)), [])

    @property
    def regions(self) -> list[Region]:
        """The parts that are, or have been, speculated on by themselves."""
        return [] if self._parts is None else list(self._parts.regions)

    @property
    def coexecution(self) -> CoexecutionReport | None:
        """The outcome of co-execution; None where it was neither asked for nor tried."""
        if self._coexecution is not None:
            return self._coexecution.report()
        found = None if self._contest is None else self._contest.coexecution.report()
        return found if found is not None and found.recorded else None

    @property
    def contest(self) -> Standing | None:
        """Who makes the calls that no graph of the whole serves, by the last measurement."""
        return None if self._contest is None else self._contest.standing

    @property
    def refusals(self) -> list[Refusal]:
        """What could not be speculated on."""
        return self._learning.event_log.refusals

    @property
    def remarks(self) -> list[Remark]:
        """Loops, branches and recursive calls that are not optimised, and why."""
        learning = self._learning
        watched = (one for one in learning.event_log.remarks if not learning.recursion.batches(one.place))
        lowered = (one for entry in self.entries for one in entry.whole.remarks)
        return list(dict.fromkeys((*watched, *lowered)))

    @property
    def events(self) -> list[Event]:
        """What happened, in order; only the latest events if there were many."""
        return list(self._learning.event_log.events)

    @property
    def being_made(self) -> str:
        """What another process is making before calls can be speculated, or ""."""
        return str(self._learning.pending_graphs)

    @property
    def given_up(self) -> str:
        """Why Python makes all calls from now on, or ""."""
        return self._learning.policy.given_up

    @property
    def pass_log(self) -> PassLog | None:
        """The log of its passes; None unless it was asked for."""
        return self._learning.passes

    @property
    def share(self) -> float | None:
        """The time of a call by graphs, as a share of that of a call by Python, by the last measurement; None if there
        was none."""
        return self._execution_policy.found

    @property
    def is_pythons(self) -> bool:
        """Whether Python makes the calls because it was faster by measure."""
        return self._execution_policy.eager

    @property
    def overhead(self) -> Overhead:
        """The time that its calls took beyond eager's because of learning."""
        return self._learning.budget.overhead

    @property
    def __janus_target__(self) -> Callable[P, R]:
        """The function that another function's watching enters in place of this object."""
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
        return _again, (self.fn, self.watch, self.executor, self.verify)

    def __deepcopy__(self, memo: dict[int, Any]) -> Speculated[P, R]:
        # The copy's entries would refer to the original's objects, so the copy has none.
        return Speculated(_deepcopy(self.fn, memo), watch=self.watch, executor=self.executor, verify=self.verify)

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        return Statistics(**self._learning.event_log.totals(), entries=len(self.entries))

    def reset(self) -> None:
        """Forget what was learnt of the function: its graphs, counts and events. What has been compiled stays on disk.
        Marks stay, too."""
        before, parts = self._part, self._parts
        self._part = self._begin()
        before.learning.end()
        if parts is not None:
            parts.end()

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write what was learnt and compiled to a file, for ``load`` in another process. Returns its SHA-256.

        The file has the graphs in use as the store keeps them, their compiled code, its measurements, and the names of
        numbers and sizes that vary. It has no contents of tensors, no assumptions and no source. Raises Unsupported if
        there is no graph yet, or no store (TORCHJANUS_CACHE).
        """
        return save(self._name, home_of(self._body).file, self.entries, Path(path))

    def record_earlier_calls(self, calls: int, seconds: float, each: float | None = None) -> None:
        """Note calls that Python has made before the function was speculated on, and how long they took. ``each``: the
        time of a typical one."""
        self.times.before = calls, seconds
        self._learning.budget.record_earlier_calls(calls, seconds, each)

    def limit(self, horizon: Horizon, spent: float) -> None:
        """Let learning take no more than a small share of the time that all calls take, and of what graphs save.
        ``spent``: seconds that it has taken already."""
        budget = self._learning.budget

        def expected() -> float:
            return horizon.calls(self.times.before[0] + self._learning.event_log.number) * budget.eager

        budget.bound.expect(expected, spent)

    @property
    def eager(self) -> float:
        """Seconds of a call in eager; 0.0 as long as that is unknown."""
        return self._learning.budget.eager

    @property
    def rest_of_price(self) -> float:
        """Seconds that it took after the first watched call until there was a graph; without one, what is expected."""
        return self._learning.payback.seconds_to_graph

    def learnt(self) -> tuple[list[str], dict[str, Any]] | None:
        """Return what ``expect`` takes in a later run: the names of what varies, and the graphs in use; None if there
        are none."""
        return learnt_of(self.entries) if self.entries else None

    def expect(self, varying: Iterable[str], graphs: SavedGraphs) -> None:
        """Begin with what was saved: names of what varies, and graphs that the store has."""
        self._marks.add(varying)
        self._learning.saved = graphs

    def wait(self) -> None:
        """Return when no compilation is pending. The next calls try what has been compiled, and make graphs whatever
        they cost."""
        self._part.wait()
        for region in self.regions:
            region.wait()

    def profile(self, /, *args: P.args, **kwargs: P.kwargs) -> Profile | None:
        """Make one call, as ``step(*args)`` does, and return the median times of all profiled calls, by phase.

        Returns None as long as no profiled call was speculated. The call's own result is dropped.
        """
        return self._part.profile(args, {**self._keywords, **kwargs})


def _again(fn: Callable[..., Any], watch: int, executor: str | None, verify: int) -> Speculated[Any, Any]:
    return Speculated(fn, watch=watch, executor=executor, verify=verify)


def _without_keywords(fn: Any) -> tuple[Any, dict[str, Any]]:
    if type(fn) is not functools.partial or not fn.keywords:
        return fn, {}
    return functools.partial(fn.func, *fn.args) if fn.args else fn.func, fn.keywords


def _deepcopy(fn: Any, memo: dict[int, Any]) -> Any:
    return copy.deepcopy(fn, memo)

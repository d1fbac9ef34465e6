"""Co-executes the calls of one function: a graph does the tensor work of a Python skeleton (Terra, sections 3 and 4).

In: the arguments of a call. Out: its result, by co-execution or by plain Python. It records paths of the function,
tries their graphs, serves calls by the one that matches, and reports the outcome.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.default_device import default_device
from torchjanus.core.errors import Place, Refusal, Refused
from torchjanus.core.trees import leaves_of
from torchjanus.rewrite.hooks import current
from torchjanus.runtime.coexecution.graphs.path import Path
from torchjanus.runtime.coexecution.graphs.run import GraphRun, LazyRun, OverlappedRun, restored, saved
from torchjanus.runtime.coexecution.graphs.served import Served
from torchjanus.runtime.coexecution.graphs.trial import differences
from torchjanus.runtime.coexecution.graphs.worker import Worker
from torchjanus.runtime.coexecution.merging.merged_run import MergedRun
from torchjanus.runtime.coexecution.merging.merging import Merging
from torchjanus.runtime.coexecution.recording.composites import ACTIVE
from torchjanus.runtime.coexecution.recording.events import Kind, Trace
from torchjanus.runtime.coexecution.recording.recorder import REMEDY, Recorder
from torchjanus.runtime.coexecution.recording.settings import settings
from torchjanus.runtime.coexecution.recording.unnoticed import Unnoticed
from torchjanus.runtime.coexecution.report import CoexecutionReport
from torchjanus.runtime.coexecution.skeleton import Run
from torchjanus.runtime.runs.records import EventLog
from torchjanus.semantics.torch.torch_state import hindrance

__all__ = ["Coexecution"]

_PATHS = 16  # at most
_DIVERGED = 4  # calls in a row that have left a path before it is taken up no more, until a recorded call takes it
_VARIED = 12  # calls recorded before operators are merged, if fewer than half as many were served
_RECORDED = 30  # calls that may be recorded beyond the number of served calls


@dataclass(slots=True)
class _Counts:
    served: int = 0
    recorded: int = 0
    transitions: int = 0
    operators: int = 0
    by_graph: int = 0
    skeleton: float = 0.0
    graph: float = 0.0
    beside: int = 0  # served calls whose graph ran in a thread beside the skeleton
    merged: int = 0
    points: dict[tuple[Place, str], list[float]] = field(default_factory=dict)  # times, seconds

    def wait(self, place: Place, what: str, seconds: float) -> None:
        """Note that Python has waited somewhere."""
        point = self.points.setdefault((place, what), [0, 0.0])
        point[0] += 1
        point[1] += seconds


class Coexecution:
    """Makes the calls of ``fn``. ``merges``: whether to go on where each call takes a new path, which is never faster
    than eager."""

    def __init__(self, fn: Callable[..., Any], event_log: EventLog, *, merges: bool = False) -> None:
        self.fn = fn
        self.event_log = event_log
        self.counts = _Counts()
        self._paths: dict[Any, Path] = {}
        self._served: dict[Any, Served] = {}
        self._hopeless: set[Any] = set()
        self._last: dict[Any, Served] = {}
        self._lock = threading.Lock()
        self._worker = Worker()
        self._merging = Merging()
        self._merges = merges
        self._settings: tuple[Any, ...] = ()  # of torch, at the beginning of the call

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one call: by a skeleton and a graph, recorded, or as it is."""
        counts = self.event_log.counts
        counts.calls += 1
        semantics: Any = current()
        if semantics is not None:
            counts.imperative += 1
            return semantics.call(None, self.fn, args, kwargs)
        if not self._may() or not self._lock.acquire(blocking=False):
            counts.imperative += 1
            return self.fn(*args, **kwargs)
        try:
            with Unnoticed():
                return self._call(args, kwargs)
        finally:
            self._lock.release()

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._varies:
            return self._merge(args, kwargs)
        self._settings = settings()
        arguments = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        begun = self._begun(arguments)
        if begun is not None:
            return self._serve(*begun, arguments, args, kwargs)
        if self.counts.recorded >= _RECORDED + self.counts.served:
            self.event_log.counts.imperative += 1
            return self.fn(*args, **kwargs)
        return self._record(arguments, args, kwargs)

    def _may(self) -> bool:
        """Whether torch's state allows co-execution."""
        if what := hindrance():
            self._refuse(f"the step runs under {what}")
            return False
        if torch._C._len_torch_dispatch_stack() or default_device() is not None:
            self._refuse("the step runs under a dispatch mode or a default device")
            return False
        return not (torch.is_inference_mode_enabled() or torch._C._is_any_autocast_enabled())

    def _refuse(self, what: str) -> None:
        why = "it sees or changes calls of torch, of which a skeleton makes none."
        self.event_log.refuse(Refusal("coexecution-modes", f"no call is co-executed: {what}", why, REMEDY))

    def _begun(self, arguments: list[torch.Tensor]) -> tuple[Served, list[Any]] | None:
        """Return the path that a call with these arguments probably takes, with the tensors known at its beginning: the
        one taken last, or another one that may begin so."""
        last = self._last.get(self._key(arguments))
        for served in (last, *(one for one in self._alike() if one is not last)):
            if served is None or served.diverged >= _DIVERGED:
                continue
            values = served.begin()
            if values is not None and served.separate(values):
                return served, values
        return None

    def _alike(self) -> list[Served]:
        """Return the paths that were recorded under the settings of torch that are in force."""
        return [served for (under, _), served in self._served.items() if under == self._settings]

    def _key(self, arguments: list[torch.Tensor]) -> Any:
        """Return what is equal for calls that may begin as calls of one path."""
        return self._settings, _shapes(arguments)

    # -- served calls ---------------------------------------------------------------------------------------------

    def _serve(
        self, served: Served, values: list[Any], arguments: list[torch.Tensor], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        others = [one for one in self._alike() if one is not served]
        begun = time.perf_counter()
        run = Run(served, values, others, arguments, self._graph_run)
        ACTIVE.composer = run
        try:
            with run:
                result = self.fn(*args, **kwargs)
        except BaseException:
            run.fail()
            self._count(run)
            raise
        finally:
            ACTIVE.composer = None
        trace = run.finish()
        served.diverged = 0 if run.recorder is None else served.diverged + 1
        self._count(run)
        if run.recorder is None:
            seconds = time.perf_counter() - begun
            self.counts.graph += run.graph.seconds
            self.counts.skeleton += seconds - run.graph.waited
            self.counts.beside += isinstance(run.graph, OverlappedRun)
            if run.served is served:
                served.evaluation.record_time(isinstance(run.graph, OverlappedRun), seconds)
            self._last[self._key(arguments)] = run.served
        elif run.recorder.refusal is not None:
            self.event_log.refuse(run.recorder.refusal)
        elif trace is not None:
            self._learn(trace, run.recorder, run.states, arguments)
        return result

    # -- calls of ever other paths ----------------------------------------------------------------------------------

    @property
    def _varies(self) -> bool:
        """Whether so many calls have taken a new path that operators are merged, not whole paths."""
        counts = self.counts
        varies = counts.recorded >= _VARIED and 2 * counts.served < counts.recorded
        return self._merges and self._merging.is_possible and (varies or counts.merged > 0)

    def _merge(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun = time.perf_counter()
        run = self._merging.begin()
        ACTIVE.composer = run
        try:
            with run:
                result = self.fn(*args, **kwargs)
            run.finish()
        finally:
            ACTIVE.composer = None
            run.close()
            self._count_merged(run, time.perf_counter() - begun)
        return result

    def _count_merged(self, run: MergedRun, seconds: float) -> None:
        counts, log = self.counts, self.event_log
        merged = run.deferred > 0
        counts.served += merged
        counts.merged += merged
        log.counts.speculated += merged
        log.counts.imperative += not merged
        counts.by_graph += run.deferred
        counts.operators += run.deferred + run.native
        counts.graph += run.seconds
        counts.skeleton += seconds - run.seconds
        for place, what, waited in run.points:
            counts.wait(place, f"{what} waits for operators", waited)
        if run.refusal is not None:
            self._merging.is_possible = False
            self._refuse_code(*run.refusal)

    def _refuse_code(self, reason: str, what: str, why: str, place: Place) -> None:
        """Report code of the program's that a placeholder cannot answer."""
        self.event_log.refuse(Refusal(reason, what, why, REMEDY, place))

    def _graph_run(self, served: Served) -> GraphRun:
        if served.evaluation.is_overlapped and torch.get_default_dtype() is served.lowered.default_dtype:
            if self._worker.treats_denormals_alike():
                return OverlappedRun(served, self._worker)
        return LazyRun(served)

    def _count(self, run: Run) -> None:
        counts, log = self.counts, self.event_log
        made = sum(event.kind is Kind.OPERATOR for event in run.served.events[: run.position])
        if run.recorder is None:
            counts.served += 1
            log.counts.speculated += 1
            counts.by_graph += made
            counts.operators += made
            for k, seconds in run.waits:
                event = run.served.events[k]
                counts.wait(event.place, f"fetch by {event.name}", seconds)
            return
        self._merging.recorded(run.recorder)
        counts.transitions += 1
        counts.recorded += 1
        counts.operators += sum(event.kind is Kind.OPERATOR for event in run.recorder.events)
        log.counts.watched += 1
        log.counts.missed += 1
        log.record("diverged", f"co-execution: {run.diverged_at}")
        if run.fault is not None:
            log.record("fault", f"co-execution: the graph raised {type(run.fault).__name__}: {run.fault}")
            self._drop(run.served)

    def _drop(self, served: Served) -> None:
        for token in [token for token, one in self._served.items() if one is served]:
            del self._served[token]
            self._hopeless.add(token)
        self._last = {key: one for key, one in self._last.items() if one is not served}

    # -- recorded calls -------------------------------------------------------------------------------------------

    def _record(self, arguments: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.counts.recorded += 1
        self.event_log.counts.watched += 1
        states = saved()
        recorder = Recorder(arguments, copies=bool(self._paths))
        recorder.observer.start()
        ACTIVE.composer = recorder
        try:
            with recorder:
                result = self.fn(*args, **kwargs)
        except BaseException:
            self._merging.recorded(recorder)
            raise
        finally:
            ACTIVE.composer = None
            recorder.observer.stop()
        self.counts.operators += sum(event.kind is Kind.OPERATOR for event in recorder.events)
        trace = recorder.finish()
        self._merging.recorded(recorder)
        if trace is None:
            assert recorder.refusal is not None
            self.event_log.refuse(recorder.refusal)
            self.event_log.counts.refused += 1
        else:
            self._learn(trace, recorder, states, arguments)
        return result

    def _learn(
        self, trace: Trace, recorder: Recorder, states: list[torch.Tensor], arguments: list[torch.Tensor]
    ) -> None:
        """Merge the trace into its path, and make and try the path's graph."""
        token = self._settings, trace.token
        if token in self._hopeless or (token not in self._paths and len(self._paths) >= _PATHS):
            return
        path = self._paths.get(token)
        if path is None:
            self._paths[token] = Path(trace)
            return
        varies = path.add(trace)
        served = self._served.get(token)
        if (served is None or varies) and recorder.copies is not None:
            self._last = {key: one for key, one in self._last.items() if one is not served}
            self._served.pop(token, None)
            served = self._made(token, path)
            if served is None:
                return
            after = saved()
            try:
                found = differences(served, trace, recorder, states, after)
            finally:
                restored(after)
            if found:
                what = f"the graph's results differ from eager's ({found[0]})"
                self._give_up(token, Refusal("coexecution-differs", what, "something is not in torch's calls.", REMEDY))
                return
            self._served[token] = served
        if served is not None:
            served.diverged = 0
            self._last[self._key(arguments)] = served

    def _made(self, token: Any, path: Path) -> Served | None:
        begun = time.perf_counter()
        try:
            served = Served(path)
        except Refused as error:
            self._give_up(token, error.refusal)
            return None
        except Exception as error:
            what = f"no graph can be made of the path ({type(error).__name__}: {error})"
            self._give_up(token, Refusal("trace-failed", what, "It cannot be traced.", REMEDY))
            return None
        self.event_log.counts.compiles += 1
        seconds = time.perf_counter() - begun
        self.event_log.record("compiled", f"co-execution: a path of {len(served.events)} calls, {seconds:.2f} s")
        return served

    def _give_up(self, token: Any, refusal: Refusal) -> None:
        self._hopeless.add(token)
        self.event_log.refuse(refusal)
        self.event_log.counts.refused += 1

    @property
    def expects_graph(self) -> bool:
        """Whether a graph will probably be made of one of the next calls that are recorded."""
        return any(token not in self._served and token not in self._hopeless for token in self._paths)

    @property
    def hopes(self) -> bool:
        """Whether any path is served, or may be."""
        return bool(self._served) or self.expects_graph

    # -- what it tells --------------------------------------------------------------------------------------------

    def report(self) -> CoexecutionReport:
        """Return the outcome so far."""
        counts = self.counts
        points = tuple(
            (place, what, int(times), seconds / times)
            for (place, what), (times, seconds) in sorted(counts.points.items(), key=str)
        )
        matched = counts.by_graph / counts.operators if counts.operators else 0.0
        served = max(counts.served, 1)
        return CoexecutionReport(
            len(self._served),
            counts.served,
            counts.recorded,
            counts.transitions,
            matched,
            points,
            counts.skeleton / served,
            counts.graph / served,
            sum(seconds for _, seconds in counts.points.values()) / served,
            counts.beside,
            counts.merged,
            len(self._merging.operators),
        )


def _shapes(arguments: list[torch.Tensor]) -> Any:
    return tuple(tuple(tensor.shape) for tensor in arguments)

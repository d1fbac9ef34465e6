"""Which executor runs an entry's graph: replay at once, a compiled artifact once it is trusted, the fastest by measure.

With "auto" no call waits for a compiler: replay runs them until the artifact is there. "inductor" compiles in the call.
Knows nothing of guards or of the user's program.
"""

from __future__ import annotations

import statistics
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchjanus.errors import Unsupported
from torchjanus.execute.background import Ticket, submit
from torchjanus.execute.base import Executable, Violated
from torchjanus.execute.inductor import Inductor
from torchjanus.execute.loading import ready_to_load
from torchjanus.execute.memory import give_back
from torchjanus.execute.orders import hand_on, order_of
from torchjanus.execute.replay import Replay
from torchjanus.execute.staged import Staged
from torchjanus.execute.store import look_around
from torchjanus.execute.trust import Trial
from torchjanus.graph.lowered import Lowered
from torchjanus.graph.parting import tail_of

__all__ = ["EXECUTORS", "Engine", "check_executor", "default_executor", "make_ready"]

EXECUTORS = ("auto", "replay", "inductor")
_TIMED_CALLS = 6
_TRIED = 3  # calls on trial
_TRIED_SIZES = 7  # where sizes change: Inductor was seen to be wrong for some batches only
_TRIED_AGAIN = 1  # where the very artifact has passed its trial in an earlier run
# A call on trial takes two to three times as long as another. Behind one that anybody would notice nothing is tried for
# so many times as long, of any graph: throughput is to stay at 80 % of eager's meanwhile, and a graph that makes one
# call in eight is tried as soon as another. What passed in an earlier run is tried at once: it takes a call or two.
_LONG = 0.05  # seconds
_REST = 3
# So many times faster than replay is no matter of luck: a later run need not measure it again. A race takes twelve
# calls, half of them by the slower one; where a call takes long, those are seconds.
_LEAD = 1.1

_default_executor = "auto"

Run = Callable[[Sequence[torch.Tensor], Sequence[float | int]], list[torch.Tensor] | Violated]


def check_executor(name: str) -> str:
    """The name, if there is such an executor. Raises Unsupported."""
    if name not in EXECUTORS:
        raise Unsupported(f"executor={name!r}: torchjanus has {', '.join(map(repr, EXECUTORS))}.")
    return name


def default_executor(name: str | None = None) -> str:
    """The executor of functions that name none; given a name, sets it (the command line's --executor)."""
    global _default_executor
    if name is not None:
        _default_executor = check_executor(name)
    return _default_executor


def make_ready(executor: str) -> None:
    """Import what compiling and loading need. It takes a second: where a call takes long anyway."""
    if executor != "replay":
        look_around()
        ready_to_load()


class _Trials:
    """When the next call may be on trial, of all graphs there are."""

    def __init__(self) -> None:
        self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether this call may."""
        return time.perf_counter() >= self._next

    def took(self, seconds: float) -> None:
        """A call on trial has just been made."""
        if seconds > _LONG:
            self._next = time.perf_counter() + _REST * seconds


_trials = _Trials()


class Engine:
    """Runs one lowered graph; ``exchange`` is told what runs it: a Run, or for a graph with cuts what begins one.

    ``notes`` says what became of each candidate, for the report."""

    def __init__(self, lowered: Lowered, executor: str, exchange: Callable[[Callable[..., Any]], None]) -> None:
        self.lowered = lowered
        self._asked = False
        self._trial: Trial | None = None
        self._racing = False
        self._passed = False  # whether what is on trial has passed one in an earlier run
        self._notes: list[str] = []
        self.current = "replay"
        self._ticket: Ticket | None = None  # of a compilation that is not over, or that no call has looked at since
        if lowered.program.cuts:
            parts = len(lowered.program.cuts) + 1
            self._notes.append(f"runs in {parts} parts, with extern calls in between: only the last one is compiled")
            tail = tail_of(lowered)
            staged = Staged(lowered, tail)
            exchange(staged.begin)
            hand_on(lowered, tail.lowered)
            lowered, exchange = tail.lowered, staged.use
        self._compiled = lowered
        self.replay = Replay.of(lowered)
        self._executor = executor
        self._exchange = exchange
        self._adopting = threading.Lock()
        self.compiled: Executable | None = None  # the trusted artifact, while it runs calls
        exchange(self.replay.run)

    @property
    def notes(self) -> list[str]:
        """What became of each candidate."""
        ticket = self._ticket
        if ticket is None:
            return [*self._notes]
        return [*self._notes, "inductor has compiled: the next call takes it" if ticket.over else f"inductor {ticket}"]

    @property
    def trying(self) -> bool:
        """Whether calls are about to find out what runs the graph best."""
        return self._racing or self._trial is not None or (self._ticket is not None and self._ticket.over)

    @property
    def is_ready(self) -> bool:
        """Whether its compilation is over, or it has none: the next call by it takes what there is."""
        return self._executor == "replay" or (self._asked and (self._ticket is None or self._ticket.over))

    def compile(self) -> None:
        """Have the graph compiled, if the executor asks for it and it was not done yet."""
        if self._executor == "replay" or self._asked:
            return
        self._asked = True
        started = time.perf_counter()
        make_ready(self._executor)
        try:
            if self._executor == "auto":
                self._ticket = submit(order_of(self._compiled).start)
                weakref.finalize(self, self._ticket.cancel)
                self._exchange(self._meanwhile)
                return
            candidate = Inductor(self._compiled)
        except Exception as error:  # an artifact that cannot be made is no reason to fail a call
            self._not_compiled(error)
        else:
            self._take(candidate, time.perf_counter() - started)

    def wait(self) -> None:
        """Return when no compilation is under way. The next call takes what has been compiled."""
        ticket = self._ticket
        if ticket is not None:
            ticket.wait()

    def close(self) -> None:
        """The graph is not used any more, and so no artifact is either."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.cancel()

    def _meanwhile(self, inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> Any:
        ticket = self._ticket
        if ticket is not None and ticket.over:
            with self._adopting:  # calls may come from several threads
                if self._ticket is ticket:
                    self._ticket = None
                    self._exchange(self.replay.run)
                    if ticket.candidate is not None:
                        self._take(ticket.candidate, ticket.seconds)
                    elif ticket.failure is not None:
                        self._not_compiled(ticket.failure)
        return self.replay.run(inputs, slots)

    def _not_compiled(self, error: BaseException) -> None:
        self._notes.append(f"inductor could not compile the graph: {type(error).__name__}: {_first_line(error)}")

    def _take(self, candidate: Executable, seconds: float) -> None:
        kept = getattr(candidate, "kept", False)
        done = "loaded what an earlier run had compiled" if kept else "compiled the graph"
        self._notes.append(f"inductor {done} in {seconds:.1f} s")
        verdict = getattr(candidate, "verdict", None)
        self._passed = kept and verdict is not None and verdict.passed()
        needed = _TRIED_SIZES if self.lowered.program.dimensions else _TRIED
        self._trial = Trial(candidate, self.replay, _TRIED_AGAIN if self._passed else needed)
        self.current = "replay, inductor on trial"
        self._exchange(self._try)

    def _try(self, inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> list[torch.Tensor] | Violated:
        trial = self._trial
        if trial is None:  # a call in another thread has decided it
            return self.replay.run(inputs, slots)
        sparing = self._executor == "auto" and not self._passed
        if sparing and not _trials.due:
            return self.replay.run(inputs, slots)
        started = time.perf_counter()
        values = trial.run(inputs, slots)
        if sparing:
            _trials.took(time.perf_counter() - started)
        if trial.decided and self._trial is trial:
            if trial.trusted:
                calls = "a call, as it did in an earlier run" if self._passed else f"{trial.agreed} calls"
                self._notes.append(f"inductor agreed with replay on {calls}")
                self.compiled = trial.candidate
                verdict = getattr(trial.candidate, "verdict", None)
                if verdict is not None and not self._passed:
                    verdict.keep()
                if self._executor == "auto" and verdict is not None and self._passed and verdict.leads():
                    self._notes.append("faster than replay by what an earlier run has measured")
                    self._settle(trial.candidate)
                elif self._executor == "auto":
                    self._racing = True
                    self._exchange(_Race(self, (self.replay, trial.candidate)))
                else:
                    self._settle(trial.candidate)
            else:
                self._notes.extend(f"not used: {disagreement}" for disagreement in trial.disagreements)
                self._settle(self.replay)
            self._trial = None
        return values

    def _settle(self, chosen: Executable) -> None:
        self._racing = False
        self.current = chosen.name
        self.compiled = None if chosen is self.replay else chosen
        self._exchange(chosen.run)
        give_back()  # what compiling in the call, loading and trials have left

    def chosen(self, best: Executable, times: Sequence[tuple[Executable, float]]) -> None:
        """The race is over."""
        spoken = ", ".join(f"{who.name} {seconds * 1e6:.0f} us" for who, seconds in times)
        self._notes.append(f"fastest by measure: {best.name} ({spoken})")
        (_, least), (_, next_best), *_ = sorted(times, key=lambda pair: pair[1])
        verdict = getattr(best, "verdict", None)
        if verdict is not None and next_best >= _LEAD * least:
            verdict.keep(leads=True)
        self._settle(best)


class _Race:
    """Runs the candidates by turns on live calls, and settles on the one with the best median."""

    def __init__(self, engine: Engine, candidates: tuple[Executable, ...]) -> None:
        self._engine = engine
        self._candidates = candidates
        self._times: list[list[float]] = [[] for _ in candidates]
        self._turn = 0

    def __call__(self, inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> Any:
        number = self._turn % len(self._candidates)
        self._turn += 1
        candidate = self._candidates[number]
        started = time.perf_counter()
        values = candidate.run(inputs, slots)
        self._times[number].append(time.perf_counter() - started)
        if self._turn >= _TIMED_CALLS * len(self._candidates):
            # The first run of each warms up its caches.
            medians = [statistics.median(times[1:]) for times in self._times]
            times = [*zip(self._candidates, medians, strict=True)]
            self._engine.chosen(min(times, key=lambda pair: pair[1])[0], times)
        return values


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]

"""Chooses the executor of an entry's graph: replay at first, a compiled artifact once it is trusted, the faster by
measurement.

With "auto" no call waits for a compiler: replay runs calls until the artifact is there. "inductor" compiles in the
call. This module knows neither guards nor the user's program.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchjanus.core.errors import Refused, Unsupported
from torchjanus.execute.backends.dynamo import OTHER, ByBackend, backend_named
from torchjanus.execute.compiled.duty_cycle import DUTY
from torchjanus.execute.compiled.inductor import Inductor
from torchjanus.execute.compiled.loading import ready_to_load
from torchjanus.execute.compiled.store import Verdict
from torchjanus.execute.cuda_graph.beside import Beside
from torchjanus.execute.cuda_graph.device import Device, device_of
from torchjanus.execute.cuda_graph.executor import CudaGraph
from torchjanus.execute.memory import give_back
from torchjanus.execute.processes.background import Ticket, prepare, submit
from torchjanus.execute.processes.orders import CompileOrder, order_of, transfer_order
from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Executable, Violated
from torchjanus.execute.staged import Staged
from torchjanus.graph.aten.host_part import host_part_of
from torchjanus.graph.aten.segments import tail_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.graph_bytes import ready_to_read
from torchjanus.runtime.entries.middles import compiled_once, is_one_of_several, middles_to_compile, which_are_compiled
from torchjanus.runtime.entries.race import Race
from torchjanus.runtime.entries.trial_calls import TrialCalls
from torchjanus.runtime.runs.budget import Budget
from torchjanus.runtime.runs.payback import Prospect, compiled
from torchjanus.runtime.runs.registry import executor_in_use, use_executor

__all__ = ["EXECUTORS", "Engine", "check_executor", "default_executor", "make_ready"]

EXECUTORS = ("auto", "replay", "inductor", "cudagraph", "coexecute")
# Calls that a graph makes before it is compiled, unless an earlier run has done that: compiling takes the processor
# time of thousands of calls, and a graph of the first calls' path may never be needed again.
PROVEN = 8

Run = Callable[[Sequence[torch.Tensor], Sequence[float | int]], list[torch.Tensor] | Violated]
Exchange = Callable[[Callable[..., Any]], None]


def check_executor(name: str) -> str:
    """Return the name, if there is such an executor. Raises Unsupported."""
    if isinstance(name, str) and name.startswith(OTHER):
        backend_named(name)
    elif name not in EXECUTORS:
        raise Unsupported(f"executor={name!r}: torchjanus has {', '.join(map(repr, EXECUTORS))}.")
    return name


check_executor(executor_in_use())


def default_executor(name: str | None = None) -> str:
    """Return the executor of functions that name none. With a name, set it first (the command line's --executor)."""
    if name is not None:
        use_executor(check_executor(name))
    return executor_in_use()


def make_ready(executor: str, budget: Budget, *, graphs: bool) -> None:
    """Let the server of children import what they need. ``graphs``: a graph is made of this call; import what reading
    it takes, which is a second, in this call: it is slow anyway. With a thread on each core the server waits for that,
    too: it takes time of the program's. What compilers need waits where compiling is too dear for the program."""
    if executor in ("auto", "inductor"):
        if graphs or not DUTY.is_full():
            prepare(compiles=budget.bound.affords(compiled(0, beside=True).price))
        if graphs:
            ready_to_read()


class Engine:
    """Runs one lowered graph. ``exchange`` receives the function that runs it: a Run, or one that begins a staged run
    if the graph has cuts."""

    def __init__(self, lowered: Lowered, executor: str, exchange: Exchange, private: bool = False) -> None:
        """``private``: what it gives goes to other processes, and they all use what they compute from it together."""
        self.lowered = lowered
        self.staged: Staged | None = None  # runs a graph with cuts
        self.middles: tuple[Engine, ...] = ()  # run what is compiled before the last cut
        self.budget: Budget | None = None  # pays for trials
        self.keys: tuple[str, ...] = ()  # of its compiled code in the store
        self._asked = False
        self._trial: TrialCalls | None = None
        self._racing = False
        self._leads = False  # whether the artifact on trial was clearly faster than replay in an earlier run
        self._verdict: Verdict | None = None  # stores the outcome of the trial and the race for later runs
        self._notes: list[str] = []
        self.reasons: list[str] = []  # the codes of the notes
        several = is_one_of_several()
        asked = executor
        if executor == "auto" and several and not private:
            # Parameters that are kept equal on all ranks must be updated by the same code on all of them.
            self._notes.append("not compiled: each rank would choose for itself, and compiled code rounds differently")
            executor = "replay"
        self.current = "replay"
        self._ticket: Ticket | None = None  # of a compilation that is not over, or whose result no call has taken yet
        self._order: CompileOrder | None = None  # what is compiled once the graph has made PROVEN calls
        self._unproven = 0  # calls until then
        if lowered.program.cuts:
            tail = tail_of(lowered)
            middles = middles_to_compile(lowered, tail, asked) if several else []
            staged = self.staged = Staged(lowered, tail, middles)
            self.middles = tuple(
                Engine(one.lowered, asked, functools.partial(staged.use, stage=one.stage), private=True)
                for one in middles
            )
            self._notes.append(which_are_compiled(len(lowered.program.cuts) + 1, len(middles), executor))
            exchange(staged.begin)
            transfer_order(lowered, tail.lowered)
            lowered, exchange = tail.lowered, staged.use
        self._device: Device | None = None  # on which the graph can be captured
        if executor in ("auto", "cudagraph"):
            lowered, exchange = self._beside(lowered, exchange)
        self._compiled = lowered
        self.replay = Replay.of(lowered)
        self._best: Executable = self.replay  # of what has been tried so far
        self._executor = executor
        self._who = executor.removeprefix(OTHER) if executor.startswith(OTHER) else "inductor"  # makes the candidate
        self._exchange = exchange
        self._adopting = threading.Lock()
        self.compiled: Executable | None = None  # the trusted artifact, while it runs calls
        exchange(self.replay.run)

    def _beside(self, lowered: Lowered, exchange: Exchange) -> tuple[Lowered, Exchange]:
        """Take the host's part off a graph that works on a device, since only the rest can be captured."""
        device = device_of(lowered.graph.graph)
        if device is None:
            return lowered, exchange
        try:
            part = host_part_of(lowered, device.holds)
        except Refused as refusal:
            self._not_compiled(refusal, "cudagraph")
            return lowered, exchange
        self._device = device
        if part is None:
            return lowered, exchange
        beside = Beside(lowered, part)
        exchange(beside.run)
        return part.device, beside.use

    @property
    def asked(self) -> bool:
        """Whether compiling has been asked for."""
        return self._asked

    @property
    def notes(self) -> list[str]:
        """Return the outcome of each candidate, for the report."""
        middles = zip(self.staged.middles, self.middles, strict=True) if self.staged else ()
        return [*self._own_notes, *(f"part {one.stage + 1}: {note}" for one, made in middles for note in made.notes)]

    @property
    def _own_notes(self) -> list[str]:
        ticket = self._ticket
        if self._order is not None:
            return [*self._notes, self._when_compiled()]
        if ticket is None:
            return [*self._notes]
        return [*self._notes, "inductor has compiled: the next call takes it" if ticket.over else f"inductor {ticket}"]

    def _when_compiled(self) -> str:
        if self._is_compiled_now:
            return f"is compiled once it has made {PROVEN} calls"
        if self.budget is not None and self.budget.bound.is_set:
            needed = self.budget.bound.needed_for(self._compilation.price)
            return f"is compiled once the calls are expected to take {needed:.0f} s in all, or graphs have saved enough"
        after = self._compilation.after
        return f"is compiled once its step has run for {after:.0f} s: with a thread on each core that takes its time"

    @property
    def _compilation(self) -> Prospect:
        """What is expected of compiled code."""
        return compiled(len(self._compiled.graph.graph.nodes), beside=not DUTY.is_full())

    @property
    def _is_compiled_now(self) -> bool:
        """Whether the graph may be compiled now. If learning is limited, a bound of the loss must allow the price, or,
        without a bound, compiling must take no time of the program or be due."""
        if self.budget is None or not self.budget.limited:
            return True
        if self.budget.bound.is_set:
            return self.budget.bound.affords(self._compilation.price)
        return not DUTY.is_full() or self.budget.seconds_in_eager >= self._compilation.after

    @property
    def trying(self) -> bool:
        """Whether calls are about to find out which executor is the fastest."""
        return self._racing or self._trial is not None or (self._ticket is not None and self._ticket.over)

    @property
    def is_ready(self) -> bool:
        """Whether no compilation is pending: the next call takes its result, if there is one."""
        over = self._order is None and (self._ticket is None or self._ticket.over)
        return self._executor == "replay" or (self._asked and over)

    def compile(self) -> None:
        """Start compiling the graph, once, if the executor asks for it."""
        if self._executor == "replay" or self._asked:
            return
        self._asked = True
        started = time.perf_counter()
        try:
            if self._executor == "auto":
                self._order = order_of(self._compiled)
                self._unproven = 0 if self._order.is_stored else PROVEN
                if not self._unproven:
                    self.ask()
                self._exchange(self._meanwhile)
                if self._device is not None:
                    self._capture(started)
                return
            if self._executor == "cudagraph":
                self._capture(started)
                return
            other = self._executor.startswith(OTHER)
            candidate = ByBackend(self._compiled, self._executor) if other else compiled_once(self._compiled)
        except Exception as error:  # an artifact that cannot be made must not fail the call
            self._not_compiled(error)
        else:
            self._take(candidate, time.perf_counter() - started)

    def ask(self) -> None:
        """Let another process compile the graph, or load what an earlier run has stored, without waiting for calls."""
        with self._adopting:
            order, self._order = self._order, None
            if order is not None:
                if order.needs_inductor:
                    ready_to_load()
                self._ticket = submit(order.start_once if is_one_of_several() else order.start)
                weakref.finalize(self, self._ticket.cancel)

    def _capture(self, started: float) -> None:
        """Try the graph as it is, captured."""
        try:
            candidate = CudaGraph.of(self._compiled, self._device)
        except Refused as refusal:
            self._not_compiled(refusal, "cudagraph")
        else:
            self._take(candidate, time.perf_counter() - started)

    def wait(self) -> None:
        """Return when no compilation is pending. The next call takes the result."""
        if self._order is not None:
            self.ask()
        ticket = self._ticket
        if ticket is not None:
            ticket.wait()

    def close(self) -> None:
        """Cancel a pending compilation: the graph is not used any more."""
        ticket, self._ticket, self._order = self._ticket, None, None
        if ticket is not None:
            ticket.cancel()

    def _meanwhile(self, inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> Any:
        ticket = self._ticket
        if self._order is not None:
            self._unproven -= 1
            if self._unproven <= 0:
                self._unproven = PROVEN  # until the next look
                if self._is_compiled_now:
                    if self.budget is not None:
                        self.budget.record_cost_outside(self._compilation.price)
                    self.ask()
        elif ticket is not None and ticket.over:
            with self._adopting:  # calls may come from several threads
                if self._ticket is ticket:
                    self._ticket = None
                    self._exchange(self._best.run)
                    if ticket.candidate is not None:
                        self._take(ticket.candidate, ticket.seconds)
                    elif ticket.failure is not None:
                        self._not_compiled(ticket.failure)
        return self._best.run(inputs, slots)

    def _not_compiled(self, error: BaseException, who: str = "") -> None:
        if isinstance(error, Refused):
            self.reasons.append(error.refusal.reason)
        failed = f"{who or self._who} could not compile the graph"
        self._notes.append(f"{failed}: {type(error).__name__}: {_first_line(error)}")

    def _take(self, made: Inductor | CudaGraph, seconds: float) -> None:
        candidate: Executable = made
        kept = False
        if isinstance(made, CudaGraph):
            self._notes.append("cudagraph prepared the graph for capture")
            self._verdict = None
        else:
            kept, self.keys = made.kept, made.keys
            done = "loaded what an earlier run had compiled" if kept else "compiled the graph"
            self._notes.append(f"{self._who} {done} in {seconds:.1f} s")
            self._verdict = made.verdict
            candidate = self._captured(made)
        verdict = self._verdict.kept() if kept and self._verdict is not None else ""
        if verdict == "trails" and self._executor == "auto":
            self._notes.append("slower than replay by what an earlier run has measured")
            self._settle(self._best)
            return
        self._leads = verdict == "leads"
        name = candidate.name if isinstance(candidate, CudaGraph) else self._who
        self._trial = TrialCalls(
            self,
            candidate,
            self.replay,
            self._best,
            name,
            sizes_vary=bool(self.lowered.program.dimensions),
            passed=verdict in ("passed", "leads"),
            sparing=self._executor == "auto",
            # On a device a run returns before its work is done: only a race, which waits, measures it.
            timed=self._executor == "auto" and self._device is None,
        )
        self.current = f"replay, {name} on trial"
        self._exchange(self._trial)

    def _captured(self, artifact: Inductor) -> Executable:
        """Return the artifact as a CUDA graph, where it can be captured."""
        if self._device is None or not isinstance(artifact, Inductor):
            return artifact
        try:
            return CudaGraph.around(artifact, self._device)
        except Refused as refusal:
            self._not_compiled(refusal, "cudagraph")
            return artifact

    def finish(self) -> None:
        """Wait until the device is done, if there is one: for measurements."""
        if self._device is not None:
            self._device.finish()

    def allows(self, kind: str) -> bool:
        """Whether the budget has time for a call that measures executors."""
        return self.budget is None or self.budget.allows(kind)

    def charge(self, kind: str, seconds: float) -> None:
        """Charge the budget for a call of ``seconds`` that measured executors, less eager's time."""
        if self.budget is not None:
            self.budget.charge(kind, max(0.0, seconds - self.budget.eager))

    def tried(self, trial: TrialCalls) -> None:
        """Decide by the outcome of a trial."""
        self._trial, candidate = None, trial.candidate
        self._notes += trial.notes
        if trial.trial.disagreements:
            self._settle(self._best)
            return
        if trial.trial.trusted and self._verdict is not None and not trial.passed:
            self._verdict.keep("passed")
        if not trial.gains:
            self.chosen(self.replay, trial.medians, trial.trails, "on trial")
            return
        self.compiled = candidate
        if isinstance(candidate, CudaGraph):
            candidate.trust()
        if self._executor != "auto":
            self._settle(candidate)
        elif self._leads and self._best is self.replay:
            self._notes.append("faster than replay by what an earlier run has measured")
            self._settle(candidate)
        elif trial.leads:
            self.chosen(candidate, trial.medians, True, "on trial")
        else:
            self._racing = True
            self._exchange(Race(self, self._best, candidate, trial.times))

    def _settle(self, chosen: Executable) -> None:
        self._racing = False
        self._best, self.current = chosen, chosen.name
        self.compiled = None if chosen is self.replay else chosen
        self._exchange(chosen.run if self._ticket is None and self._order is None else self._meanwhile)
        give_back()  # compiling in the call, loading and trials leave memory behind

    def chosen(
        self, best: Executable, times: Sequence[tuple[Executable, float]], clear: bool, where: str = "by measure"
    ) -> None:
        """Settle on ``best`` by these times. ``clear``: whether the outcome is kept for later runs."""
        spoken = ", ".join(f"{who.name} {seconds * 1e6:.0f} us" for who, seconds in times)
        self._notes.append(f"fastest {where}: {best.name} ({spoken})")
        if self._verdict is not None and clear:
            self._verdict.keep("trails" if best is self.replay else "leads")
        self._settle(best)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]

"""Runs a path's graph once, stage by stage: when Python waits for it, or beside the skeleton. No other code may draw
from its generators during the run.

Knows neither placeholders nor what makes a path.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchjanus.execute.running.base import Violated
from torchjanus.runtime.coexecution.graphs.served import Served
from torchjanus.runtime.coexecution.graphs.worker import Order, Worker
from torchjanus.semantics.torch.torch_state import generator_state

__all__ = ["GraphRun", "LazyRun", "OverlappedRun", "restored", "saved"]

_NEVER = sys.maxsize
_SWITCH_INTERVAL = 2e-5  # seconds: between two kernels the graph's thread needs the interpreter for a moment


def restored(states: Sequence[torch.Tensor]) -> None:
    """Put the generators into these states (see ``saved``)."""
    for generator, state in zip(_generators(), states, strict=False):
        generator.set_state(state)


def saved() -> list[torch.Tensor]:
    """Return the states of torch's generators."""
    return [generator.get_state() for generator in _generators()]


def _generators() -> list[torch.Generator]:
    return [torch.default_generator]


class GraphRun(ABC):
    """One run. ``seconds``: the graph's own time; ``waited``: how long Python has waited for it; ``due``: how many
    events have to have matched before ``proceed`` can do something."""

    def __init__(self, served: Served) -> None:
        self.seconds = self.waited = 0.0
        self.due = _NEVER
        self._served = served
        self._drawn = generator_state() if served.draws else b""  # the state that no other code may have changed

    @abstractmethod
    def advance(
        self, cut: int, values: Sequence[Any], private: Mapping[int, torch.Tensor], numbers: Sequence[Any]
    ) -> list[torch.Tensor]:
        """Run the graph up to this cut of the path's, the last one being its end, and return what it gives there.
        ``values``: the tensors by number, of which those in ``private`` have copies; ``numbers``: the slots."""

    @abstractmethod
    def proceed(
        self, matched: int, values: Sequence[Any], private: Mapping[int, torch.Tensor], numbers: Sequence[Any]
    ) -> None:
        """Begin what can be begun now that so many events have matched."""

    def reseeded(self) -> bool:
        """Whether somebody else has moved the generators that the graph draws from."""
        return self._served.draws and generator_state() != self._drawn

    def record_draws(self) -> None:
        """Record the states of the generators: the graph, or the skeleton for it, has drawn."""
        if self._served.draws:
            self._drawn = generator_state()

    @abstractmethod
    def abandon(self) -> None:
        """Drop the run. It has written nothing."""

    def _require_unmoved(self) -> None:
        if self.reseeded():
            raise RuntimeError("the generator was moved by somebody else")


class LazyRun(GraphRun):
    """Computes in the thread of the skeleton, when Python waits for it (lazy evaluation in Terra's table 2)."""

    def __init__(self, served: Served) -> None:
        super().__init__(served)
        self._run = served.begin_graph()
        self._stage = 0

    def advance(
        self, cut: int, values: Sequence[Any], private: Mapping[int, torch.Tensor], numbers: Sequence[Any]
    ) -> list[torch.Tensor]:
        served = self._served
        inputs = served.plan.inputs
        made: list[torch.Tensor] | Violated = []
        begun = time.perf_counter()
        try:
            while self._stage <= cut:
                self._require_unmoved()
                given = [private.get(inputs[index], values[inputs[index]]) for index in served.inputs[self._stage]]
                slots = [numbers[index] for index in served.slots[self._stage]]
                made = self._run.advance(given, slots, self._stage)
                assert not isinstance(made, Violated)
                self._stage += 1
                self.record_draws()
        finally:
            self.seconds += time.perf_counter() - begun
            self.waited = self.seconds
        assert not isinstance(made, Violated)
        return made

    def proceed(
        self, matched: int, values: Sequence[Any], private: Mapping[int, torch.Tensor], numbers: Sequence[Any]
    ) -> None:
        """Begin nothing: Python does not wait yet."""

    def abandon(self) -> None:
        self._run.abandon()


class OverlappedRun(GraphRun):
    """Computes in the thread of a worker, as soon as what a stage takes is known. Draws, and what is written at the
    end, are the skeleton's thread's."""

    def __init__(self, served: Served, worker: Worker) -> None:
        super().__init__(served)
        staged, stages = served.overlapped
        self._staged, self._stages, self._worker = staged, stages, worker
        self._run = staged.begin()
        self._orders: list[Order | None] = []  # by stage; None for draws
        self._versions: list[tuple[torch.Tensor, int]] = []  # of inputs that the worker reads
        self._last = len(stages.due) - 1
        self._interval: float | None = None  # the interpreter's switch interval, while it is another
        self.due = stages.due[0]

    def advance(
        self, cut: int, values: Sequence[Any], private: Mapping[int, torch.Tensor], numbers: Sequence[Any]
    ) -> list[torch.Tensor]:
        of_cut = self._stages.of_cut
        stage = of_cut[cut] if cut < len(of_cut) else self._last
        begun = time.perf_counter()
        try:
            for number in range(len(self._orders), min(stage + 1, self._last)):
                if number in self._stages.draws:
                    self._wait_for(number)
                self._begin(number, values, private, numbers)
            if stage < self._last:
                _, made = self._wait_for(stage + 1)
                return made  # type: ignore[no-any-return]
            self._wait_for(self._last)
            self._require_unmoved()
            self._require_unchanged()
            self._restore_interval()
            found = self._run.advance([], [], self._last)
            assert not isinstance(found, Violated)
            return found
        finally:
            self.waited += time.perf_counter() - begun
            self.seconds = sum(order.seconds for order in self._orders if order is not None)

    def proceed(
        self, matched: int, values: Sequence[Any], private: Mapping[int, torch.Tensor], numbers: Sequence[Any]
    ) -> None:
        begun = time.perf_counter()
        while (stage := len(self._orders)) < self._last and matched >= self._stages.due[stage]:
            # The graph's code is one generator, so draws are made between two orders.
            if stage in self._stages.draws and not self._is_idle:
                break
            self._begin(stage, values, private, numbers)
        stage = len(self._orders)
        self.due = self._stages.due[stage] if stage < self._last else _NEVER
        self.waited += time.perf_counter() - begun

    @property
    def _is_idle(self) -> bool:
        """Whether all orders are done. Raises what one has raised."""
        done = all(order is None or order.is_done for order in self._orders)
        if done:
            self._wait_for(len(self._orders))
        return done

    def _wait_for(self, count: int) -> Any:
        """Wait for the first ``count`` stages, and return what the last one gives."""
        made: Any = None
        for order in self._orders[:count]:
            made = None if order is None else order.wait()
        return made

    def _begin(
        self, stage: int, values: Sequence[Any], private: Mapping[int, torch.Tensor], numbers: Sequence[Any]
    ) -> None:
        inputs = self._served.plan.inputs
        given = [private.get(inputs[index], values[inputs[index]]) for index in self._staged.inputs[stage]]
        slots = [numbers[index] for index in self._staged.slots[stage]]
        if stage in self._stages.draws:
            self._require_unmoved()
            self._run.compute(given, slots, stage)
            self.record_draws()
            self._orders.append(None)
            return
        with torch._C.DisableTorchFunction():
            self._versions += ((tensor, tensor._version) for tensor in given)
        if self._interval is None:
            self._interval = sys.getswitchinterval()
            sys.setswitchinterval(min(_SWITCH_INTERVAL, self._interval))
        run = self._run
        self._orders.append(self._worker.order(lambda: run.compute(given, slots, stage)))

    def _require_unchanged(self) -> None:
        """Check that nothing has written to a tensor that the worker has read at an unknown time."""
        with torch._C.DisableTorchFunction():
            if any(tensor._version != version for tensor, version in self._versions):
                raise RuntimeError("a tensor that the graph reads was written to by somebody else")

    def _restore_interval(self) -> None:
        if self._interval is not None:
            sys.setswitchinterval(self._interval)
            self._interval = None

    def abandon(self) -> None:
        for order in self._orders:
            if order is not None:
                order.end()
        self._restore_interval()
        self._run.abandon()

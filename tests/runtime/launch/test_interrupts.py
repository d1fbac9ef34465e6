"""Ctrl-C at any moment of a step leaves the state of before the call or of after it, and nothing in between."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.runtime.launch.interrupts import hold_interrupts, release_interrupts


@pytest.fixture(autouse=True)
def python_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "a call left its handler behind"
    signal.signal(signal.SIGINT, before)


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.losses: list[float] = []
        self.count = 0
        self.last: Any = None

    def step(self, x: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = (self.model(x) + torch.rand(2)).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.count += 1
        self.losses.append(loss.item())
        self.last = loss.detach()
        return self.losses[-1]

    def state(self) -> str:
        parameters = list(self.model.parameters())
        momenta = [self.optimizer.state[p]["momentum_buffer"] for p in parameters]
        gradients = [p.grad for p in parameters]
        drawn = torch.get_rng_state().sum().item()
        return repr((parameters, momenta, gradients, self.losses, self.count, self.last, drawn))


X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Interrupter:
    """Sends this process SIGINT when the given number of lines and opcodes of a call have run."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.sent = False

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        self.left -= 1
        if self.left == 0:
            self.sent = True
            os.kill(os.getpid(), signal.SIGINT)
        return self.trace


def interrupted(training: Training, step: Any, at: int) -> tuple[bool, bool]:
    """Make a call that is interrupted after ``at`` instructions. Whether the signal was sent, and whether it raised."""
    interrupter = Interrupter(at)
    raised = False
    sys.settrace(interrupter.trace)
    try:
        step(X)
    except KeyboardInterrupt:
        raised = True
    finally:
        sys.settrace(None)
    return interrupter.sent, raised


def test_an_interrupt_at_any_instruction_is_before_the_call_or_after_it() -> None:
    training, other = Training(), Training()
    torch.manual_seed(1)
    step = torchjanus.speculate(training.step, executor="replay")
    for _ in range(5):
        step(X)
    torch.manual_seed(1)
    for _ in range(5):
        other.step(X)
    assert training.state() == other.state()
    at, points, early, late = 1, 0, 0, 0
    while True:
        drawn = torch.get_rng_state()
        before = other.state()
        other.step(X)
        after = other.state()
        torch.set_rng_state(drawn)
        sent, raised = interrupted(training, step, at)
        assert raised is sent, f"after {at} instructions"
        now = training.state()
        assert now in (before, after), f"after {at} instructions"
        if not sent:
            break
        points += 1
        if now == before:
            early += 1
            torch.set_rng_state(drawn)
            step(X)  # the very same call again
        else:
            late += 1
        assert training.state() == after, f"after {at} instructions"
        at += 7
    assert points > 20
    assert early > 0
    assert late > 0
    assert step.statistics().watched == 3  # all of it happened to the graph
    assert step.statistics().imperative == 0


def test_the_programs_own_handler_is_called_once() -> None:
    called: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        called.append(number)

    signal.signal(signal.SIGINT, handler)
    waiting = hold_interrupts()
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGINT)
    assert called == []
    release_interrupts(waiting)
    assert called == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handler
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("disposition", [signal.SIG_IGN, signal.SIG_DFL])
def test_dispositions_that_are_no_handlers_stay(disposition: Any) -> None:
    signal.signal(signal.SIGINT, disposition)
    waiting = hold_interrupts()
    assert waiting is None
    assert signal.getsignal(signal.SIGINT) is disposition
    release_interrupts(waiting)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_leave_signals_alone() -> None:
    training = Training()
    step = torchjanus.speculate(training.step, executor="replay")
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(6):
                step(X)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert step.statistics().speculated == 3

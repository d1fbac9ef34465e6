"""Graphs that run in a thread beside the skeleton give what eager gives, bit by bit, whatever happens meanwhile."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchjanus
from tests.runtime.coexecution.programs import PROGRAMS, Made, Twins
from tests.sampling import every
from torchjanus.core.settings import COEXECUTION
from torchjanus.execute.staged import StagedRun
from torchjanus.runtime.coexecution.graphs import evaluation
from torchjanus.runtime.coexecution.graphs.evaluation import Evaluation
from torchjanus.runtime.coexecution.graphs.matching import MISS
from torchjanus.runtime.coexecution.graphs.worker import Worker


@pytest.fixture(autouse=True)
def overlapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COEXECUTION.name, "overlapped")


def coexecuted(step: Any) -> Any:
    return torchjanus.speculate(step, executor="coexecute")


def layers_with_dropout() -> Made:
    """A deeper net: masks are drawn before the forward pass, the labels are met in the middle, the rate varies."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5))]
    net = nn.Sequential(*layers, nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses: list[float] = []

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item() + torch.rand(()).item())
        return losses[-1]

    calls = [(torch.randn(5, 8), torch.randint(3, (5,))) for _ in range(14)]
    return Made(step, calls, [net, optimizer, losses])


EVERY = {**PROGRAMS, "layers_with_dropout": layers_with_dropout}
QUICK = ("adam", "numpy_in_the_middle", "branch", "feedback", "sentences", "layers_with_dropout")


def served_by(step: Any) -> Any:
    return next(iter(step._coexecution._last.values()))


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one not in QUICK else ()) for one in EVERY]
)
def test_results_state_and_generators_are_eagers(name: str) -> None:
    twins = Twins(EVERY[name], coexecuted)
    twins.run()
    step = twins.steps[1]
    assert [event.text for event in step.events if event.kind == "fault"] == []
    report = step.coexecution
    assert report.served >= len(twins.made[0].calls) / 2
    assert report.beside == (report.served if served_by(step).stages is not None else 0)


def test_stages_begin_when_what_they_take_is_known() -> None:
    twins = Twins(layers_with_dropout, coexecuted)
    twins.run()
    served = served_by(twins.steps[1])
    stages, names = served.stages, [event.name for event in served.events]
    assert 0 in stages.draws
    met = {name: k for k, name in reversed([*enumerate(names)])}
    # Masks and the forward pass begin with the input, the loss with the labels, the update with its rate.
    assert stages.due[0] == stages.due[1] == met["F.linear"] + 1
    assert stages.due[2] == met["F.cross_entropy"] + 1
    assert stages.due[3] > met["Tensor.add_"]
    assert twins.steps[1].coexecution.beside > 0


@pytest.mark.parametrize("name", ["layers_with_dropout", "feedback"])
def test_divergence_at_many_events(name: str) -> None:
    twins = Twins(EVERY[name], coexecuted)
    twins.run()
    last = len(twins.made[0].calls) - 1
    count = len(served_by(twins.steps[1]).matchers)
    before = twins.steps[1].coexecution.transitions
    for k in range(0, count, 1 + count // 12):
        served = served_by(twins.steps[1])
        matcher, composites = served.matchers[k], served.composites
        served.composites, served.matchers[k] = {}, lambda *_: MISS
        twins.call(last)
        served.matchers[k], served.composites = matcher, composites
        twins.call(last)
    assert twins.steps[1].coexecution.transitions > before
    assert [event.text for event in twins.steps[1].events if event.kind == "fault"] == []


@pytest.mark.parametrize("stage", every(3, range(4)))
def test_an_error_in_the_thread_is_eagers_call(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(layers_with_dropout, coexecuted)
    twins.run()
    compute, interval = StagedRun.compute, sys.getswitchinterval()

    def failing(run: StagedRun, inputs: Any, slots: Any, at: int) -> Any:
        if at == stage:
            raise RuntimeError("no memory")
        return compute(run, inputs, slots, at)

    last = len(twins.made[0].calls) - 1
    with monkeypatch.context() as patched:
        patched.setattr(StagedRun, "compute", failing)
        twins.call(last)
    twins.call(last)
    assert any("no memory" in event.text for event in twins.steps[1].events if event.kind == "fault")
    assert sys.getswitchinterval() == interval


def touching(count: int) -> None:
    """Calls in which two threads touch a placeholder at once, while the graph computes. Each second call has none."""
    gates = [threading.Semaphore(0) for _ in range(2)]
    done = threading.Semaphore(0)
    found: list[Any] = [None, None]
    held: list[Any] = [None]
    over = threading.Event()

    def touch(place: int) -> None:
        while True:
            gates[place].acquire()
            if over.is_set():
                return
            found[place] = held[0].sum().item()
            done.release()

    w = torch.randn(4, 4, requires_grad=True)
    threaded = [False]

    def step(x: torch.Tensor) -> float:
        w.grad = None
        h = (x @ w).tanh()
        held[0] = h.detach()
        if threaded[0]:
            for gate in gates:
                gate.release()
            for _ in gates:
                done.acquire()
        h.square().mean().backward()
        held[0] = None
        return float(w.grad.sum())  # type: ignore[union-attr]

    threads = [threading.Thread(target=touch, args=(place,), daemon=True) for place in range(2)]
    for thread in threads:
        thread.start()
    speculated = coexecuted(step)
    xs = [torch.randn(4, 4) for _ in range(8)]
    expected = [step(x) for x in xs]
    sums = [(x @ w).tanh().sum().item() for x in xs]
    for number in range(2 * count + 4):
        place = number % len(xs)
        threaded[0] = number >= 4 and number % 2 == 1
        found[:] = [None, None]
        assert speculated(xs[place]) == expected[place]
        assert found == ([sums[place]] * 2 if threaded[0] else [None, None])
    over.set()
    for gate in gates:
        gate.release()
    for thread in threads:
        thread.join()
    assert speculated.coexecution.transitions == count


def test_two_threads_touch_placeholders_at_once() -> None:
    touching(100)


@pytest.mark.slow
def test_two_threads_touch_placeholders_ten_thousand_times() -> None:
    touching(10_000)


def test_a_thread_that_flushes_denormals_computes_by_itself() -> None:
    """The processor's mode is one thread's alone, so the worker would give other bits."""
    twins = Twins(layers_with_dropout, coexecuted)
    twins.run()
    before = twins.steps[1].coexecution
    if not torch.set_flush_denormal(True):
        pytest.skip("the processor has no such mode")
    try:
        twins.call(13)
    finally:
        torch.set_flush_denormal(False)
    after = twins.steps[1].coexecution
    assert after.served == before.served + 1
    assert after.beside == before.beside > 0


def test_a_worker_keeps_errors_for_who_waits_and_ends_what_has_not_begun() -> None:
    worker, gate = Worker(), threading.Event()
    blocked = worker.order(gate.wait)
    failing = worker.order(lambda: 1 // 0)
    dropped: list[int] = []
    never = worker.order(lambda: dropped.append(1))
    assert not blocked.is_done
    threading.Timer(0.05, gate.set).start()
    never.end()
    assert blocked.wait() is True
    assert failing.is_done
    with pytest.raises(ZeroDivisionError):
        failing.wait()
    assert dropped == []
    assert worker.order(lambda: torch.is_grad_enabled()).wait() is False


def test_the_faster_kind_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COEXECUTION.name, "auto")
    monkeypatch.setattr(evaluation.DUTY, "is_full", lambda: False)
    for beside_takes, chosen in ((1.0, True), (3.0, False)):
        choice = Evaluation(lambda: True)
        for _ in range(40):
            kind = choice.is_overlapped
            choice.record_time(kind, beside_takes if kind else 2.0)
        assert choice.is_overlapped is chosen
    assert not Evaluation(lambda: False).is_overlapped
    monkeypatch.setattr(evaluation.DUTY, "is_full", lambda: True)
    full = Evaluation(lambda: True)
    for _ in range(4):
        assert not full.is_overlapped
        full.record_time(False, 1.0)

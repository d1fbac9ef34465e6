"""Shadow checks: ``speculate(..., verify=N)`` catches a graph that differs from eager, and blames no other."""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import torchjanus
from tests.programs import harness
from torchjanus import Unsupported
from torchjanus.execute.compiled.inductor import Inductor
from torchjanus.execute.replay import Replay


class Training:
    """A step with every kind of effect."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.count = 0
        self.losses: list[float] = []
        self.recent: collections.deque[float] = collections.deque(maxlen=3)
        self.best: dict[str, Any] = {}

    def step(self, x: torch.Tensor) -> tuple[float, torch.Tensor]:
        self.count += 1
        self.optimizer.zero_grad()
        noise = torch.rand(2)
        loss = (self.model(x) + noise).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        value = loss.item()
        self.losses.append(value)
        self.recent.append(value)
        self.best["last"] = {"loss": value, "noise": noise}
        print("step", self.count)
        return value, noise

    def state(self) -> str:
        return repr((self.count, self.losses, self.recent, self.best, list(self.model.parameters())))


def inputs(call: int) -> torch.Tensor:
    return torch.full((3, 4), float(call + 1)) / 7


def run(calls: int = 14, **options: Any) -> tuple[Training, Any]:
    training = Training()
    step = torchjanus.speculate(training.step, **{"executor": "replay", **options})
    for call in range(calls):
        step(inputs(call))
    return training, step


def eager(calls: int = 14) -> str:
    training = Training()
    for call in range(calls):
        training.step(inputs(call))
    return training.state()


@pytest.mark.parametrize(("every", "verified"), [(1, 11), (2, 5), (3, 3), (5, 2), (0, 0)])
def test_every_nth_call_is_made_both_ways(every: int, verified: int, capsys: pytest.CaptureFixture[str]) -> None:
    training, step = run(verify=every)
    assert capsys.readouterr().out.splitlines() == [f"step {n + 1}" for n in range(14)]  # none of them twice
    assert training.state() == eager()
    counts = step.statistics()
    assert (counts.verified, counts.speculated, counts.watched) == (verified, 11 - verified, 3)
    assert counts.calls == counts.watched + counts.speculated + counts.imperative
    assert not [event for event in step.events if event.kind == "verify"]


def wrong_value(updated: torch.Tensor, values: list[torch.Tensor]) -> None:
    values[0] += 1e-6


def wrong_update(updated: torch.Tensor, values: list[torch.Tensor]) -> None:
    updated *= 1 + 1e-6


def too_many_draws(updated: torch.Tensor, values: list[torch.Tensor]) -> None:
    torch.rand(1)


def failing(monkeypatch: pytest.MonkeyPatch, fault: Callable[..., None]) -> None:
    """From now on, replay gets the call wrong."""
    real = Replay.run

    def faulty(self: Replay, inputs: Sequence[torch.Tensor], slots: Any) -> Any:
        values = real(self, inputs, slots)
        with torch.no_grad():
            fault(inputs[self.lowered.mutated[0]], values)
        return values

    monkeypatch.setattr(Replay, "run", faulty)


@pytest.mark.parametrize("fault", [wrong_value, wrong_update, too_many_draws])
def test_a_wrong_executor_is_caught(
    fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, fault)
    with caplog.at_level(logging.WARNING, "torchjanus"):
        training, step = run(verify=1)
    assert training.state() == eager()
    assert [event.kind for event in step.events][:2] == ["verify", "dropped"]
    assert step.statistics().verified == 1
    assert step.entries == []
    assert "differs from eager" in caplog.text
    assert "differs from eager" in str(torchjanus.explain(step, detail=True))


def test_what_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, wrong_update)
    step = run(verify=1)[1]
    (event, *_) = [event for event in step.events if event.kind == "verify"]
    assert "the contents of" in event.text
    assert "param_groups[0]['params'][0]" in event.text


def test_a_tensor_that_would_lie_in_wrong_memory_is_named() -> None:
    weight = torch.nn.Parameter(torch.ones(3))

    def update(x: torch.Tensor) -> None:
        weight.data = weight.data * 0.5 + x

    step = torchjanus.speculate(update, executor="replay", verify=3)
    for _ in range(4):
        step(torch.ones(3))
    (entry,) = step.entries
    real = entry.launch.outcome

    def faulty(*given: Any) -> Any:
        *others, memory = real(*given)
        return *others, [(index, value + 1) for index, value in memory]

    entry.launch = _with(entry.launch, outcome=faulty)
    for _ in range(4):
        step(torch.ones(3))
    expected = torch.ones(3)
    for _ in range(8):
        expected = expected * 0.5 + 1
    assert torch.equal(weight.detach(), expected)
    assert any("the contents of weight" in event.text for event in step.events if event.kind == "verify")


def test_a_wrong_write_is_caught() -> None:
    """A fault in what the commit would write, not in the graph."""
    training = Training()
    step = torchjanus.speculate(training.step, executor="replay", verify=3)
    for call in range(4):
        step(inputs(call))
    (entry,) = step.entries
    real = entry.launch.outcome

    def faulty(*given: Any) -> Any:
        result, by_calls, effects, *others = real(*given)
        wrong = [tuple(v + 1 if type(v) is int else v for v in values) for values in effects]
        return result, by_calls, wrong, *others

    entry.launch = _with(entry.launch, outcome=faulty)
    for call in range(4, 8):
        step(inputs(call))
    assert training.state() == eager(8)
    assert any("count'] is 7" in event.text and "eager's 6" in event.text for event in step.events)


def _with(launch: Any, **changes: Any) -> Any:
    class Changed:
        def __getattr__(self, name: str) -> Any:
            return changes.get(name) or getattr(launch, name)

    return Changed()


def test_a_wrong_artifact_is_caught_after_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(8)

    def step(x: torch.Tensor) -> torch.Tensor:
        weight.add_(x.tanh(), alpha=0.5)
        return weight.sum()

    fast = torchjanus.speculate(step, executor="inductor", verify=4)
    other = torch.ones(8)
    real = Inductor.run
    for call in range(14):
        x = torch.linspace(0, 1, 8) * (call + 1)
        if call == 7:  # it is trusted by now
            assert fast.entries[0].engine.current == "inductor"

            def faulty(self: Inductor, tensors: Any, slots: Any) -> Any:
                values = real(self, tensors, slots)
                for index in self.lowered.mutated:
                    tensors[index].mul_(1.01)
                return values

            monkeypatch.setattr(Inductor, "run", faulty)
            verified = fast.statistics().verified
        fast(x)
        other.add_(x.tanh(), alpha=0.5)
        if call == 7:
            weight.copy_(other)  # it may have run unseen
    assert fast.statistics().verified > verified
    assert any(event.kind == "verify" and "inductor disagrees with replay" in event.text for event in fast.events)
    assert fast.entries == []


def test_inputs_that_share_memory_share_it_on_the_copies() -> None:
    whole = torch.arange(6.0)
    low, high = whole[:4], whole[2:]

    def step(k: float) -> torch.Tensor:
        low.mul_(k)
        return high.sum() + low.sum()

    fast = torchjanus.speculate(step, executor="replay", verify=1)
    results = [float(fast(1.0 + call / 8)) for call in range(8)]
    whole.copy_(torch.arange(6.0))
    assert results == [float(step(1.0 + call / 8)) for call in range(8)]
    assert not [event for event in fast.events if event.kind == "verify"]


def test_an_error_of_eager_alone_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph of a step whose error it has lost."""
    real = Replay.compute
    state = {"n": 0}

    def step(x: torch.Tensor) -> torch.Tensor:
        state["n"] += 1
        return torch.linalg.cholesky(x)

    fast = torchjanus.speculate(step, executor="replay", verify=1)
    for _ in range(5):
        fast(torch.eye(2))
    monkeypatch.setattr(Replay, "compute", lambda self, given, slots: real(self, [torch.eye(2)], slots))
    with pytest.raises(torch.linalg.LinAlgError):
        fast(-torch.eye(2))
    assert state["n"] == 6
    assert any(event.kind == "verify" and "eager raised _LinAlgError" in event.text for event in fast.events)


def test_errors_and_failed_assertions_of_a_verified_call_are_eagers() -> None:
    log: list[str] = []

    def step(x: torch.Tensor) -> float:
        log.append("before")
        if x.sum() > 10:
            log.append("large")
        return torch.linalg.cholesky(x).sum().item()

    fast = torchjanus.speculate(step, executor="replay", verify=1)
    for call in range(10):
        x = torch.eye(2) * (100 if call == 6 else -1 if call == 7 else 1)
        try:
            fast(x)
        except torch.linalg.LinAlgError:
            log.append("raised")
    assert log == ["before"] * 7 + ["large", "before", "raised"] + ["before"] * 2
    assert not [event for event in fast.events if event.kind in ("verify", "fault")]


@pytest.mark.parametrize("verify", [-1, 1.5, True, "2"])
def test_a_bad_rate_is_reported(verify: Any) -> None:
    with pytest.raises(Unsupported, match=r"speculate\(verify="):
        torchjanus.speculate(lambda x: x, verify=verify)


FOUND = [  # they were held against graphs that are right
    ("cached_functions", "what_is_kept_is_forgotten_and_changed_in_between"),
    ("counters_on_nodes", "calls_counted_from_nought"),
    ("memory_shared_with_arrays", "taken_in_and_then_filled"),
    ("memory_shared_with_arrays", "indices_shuffled_twice"),
    ("memory_shared_with_arrays", "tensor_of_before_used_before_the_array_is_changed"),
]
SAMPLE = sorted({*FOUND, *harness.programs()[::44]})
# For each run: those that are quick, and every third of them.
QUICK = frozenset([*FOUND, *[pair for pair in SAMPLE if pair not in harness.slow()][::3]])


@pytest.mark.parametrize(
    ("category", "name"),
    [pytest.param(*pair, id="-".join(pair), marks=() if pair in QUICK else pytest.mark.slow) for pair in SAMPLE],
)
def test_the_corpus_shows_no_difference(category: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torchjanus.speculate
    expected = harness.run(category, name, None)
    monkeypatch.setattr(torchjanus, "speculate", lambda fn, **options: real(fn, verify=1, **options))
    met = harness.run(category, name, "replay")
    spec = getattr(harness.load(category), name).spec
    assert harness.compare(expected, met, spec.close) == []
    events = [event for step in met.steps for event in step.events]
    assert [event.text for event in events if event.kind in ("verify", "fault")] == []

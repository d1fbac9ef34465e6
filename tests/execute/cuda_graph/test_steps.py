"""Whole steps by ``executor="cudagraph"``: the program's view, against eager, on the recorded device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchjanus
from torchjanus.execute.cuda_graph.device import substituted
from torchjanus.execute.cuda_graph.recorded import Recorded


@pytest.fixture
def device() -> Iterator[Recorded]:
    made = Recorded(holds=lambda tensor: tensor.dtype != torch.float64, lag=1)
    with substituted(made):
        yield made


class Training:
    """A network, an optimizer, and counters in the host's memory, which are float64 here."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.2), nn.Linear(12, 4))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9)
        self.count = torch.zeros((), dtype=torch.float64)
        self.seen: list[torch.Tensor] = []

    def plain(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def counted(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The host counts; the device takes what the count gives."""
        self.count += 1
        scale = (1 - 0.9**self.count).to(torch.float32)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y) * scale
        loss.backward()
        self.optimizer.step()
        return loss.detach(), self.count * 2

    def skipping(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
        """Rare batches are left out, and both halves have an assertion."""
        self.count += 1
        if self.count > 1000:
            raise ValueError("too many")
        loss = F.cross_entropy(self.net(x), y)
        if not torch.isfinite(loss):
            return None
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def logging(self, x: torch.Tensor, y: torch.Tensor) -> float:
        loss = self.plain(x, y)
        self.seen.append(loss)
        return loss.item()


def batches(count: int, sizes: tuple[int, ...] = (8,)) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    rows = [sizes[number % len(sizes)] for number in range(count)]
    return [(torch.randn(n, 6, generator=draw), torch.randint(4, (n,), generator=draw)) for n in rows]


def compared(
    name: str, data: list[Any], executor: str = "cudagraph", later: Callable[[Any], None] = lambda step: None
) -> torchjanus.Speculated[..., Any]:
    """Make all calls by Python and speculated, and compare results, states and generators after each."""
    eager = Training()
    other = copy.deepcopy(eager)
    step = torchjanus.speculate(getattr(other, name), executor=executor)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    for number, one in enumerate(data):
        torch.set_rng_state(state)
        expected = getattr(eager, name)(*one)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        met = step(*one)
        state = torch.get_rng_state()
        assert torch.equal(after, state), number
        torch.testing.assert_close(met, expected, rtol=0, atol=0, equal_nan=True, msg=f"result of call {number}")
        for mine, theirs in zip(other.net.parameters(), eager.net.parameters(), strict=True):
            assert torch.equal(mine, theirs), number
            assert (mine.grad is None) == (theirs.grad is None)
            assert mine.grad is None or torch.equal(mine.grad, theirs.grad)
        assert torch.equal(eager.count, other.count)
        assert all(map(torch.equal, eager.seen, other.seen))
        later(step)
    return step


def engine_of(step: Any) -> Any:
    (entry,) = step.entries
    return entry.engine


@pytest.mark.parametrize("name", ["plain", "counted", "logging"])
def test_a_step_is_one_launch(name: str, device: Recorded) -> None:
    step = compared(name, batches(14))
    assert step.statistics().speculated >= 9
    assert engine_of(step).current == "cudagraph"
    assert device.launches >= 8
    assert device.captures == 2  # on trial, and in the program's own memory
    assert device.waits == 0  # without assertions nobody waits for the device


def test_a_failed_assertion_is_pythons_call(device: Recorded) -> None:
    data = batches(16)
    for number in (9, 10, 13):
        data[number][0][0, 0] = float("inf")
    step = compared("skipping", data)
    assert device.launches >= 3
    assert device.waits == device.launches  # for the flags, once a launch
    assert step.statistics().violated >= 1


def test_each_size_has_a_capture(device: Recorded) -> None:
    step = compared("plain", batches(30, sizes=(8, 8, 5, 7)))
    assert engine_of(step).current == "cudagraph"
    assert 3 <= device.captures <= 7


def test_large_values_that_are_kept_survive_launches_for_other_sizes(device: Recorded) -> None:
    """Captures of different sizes share memory, and the oldest of them are dropped."""
    weight = torch.randn(6, 4000)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).tanh()

    step = torchjanus.speculate(plain, executor="cudagraph")
    kept = []
    for number, (x, _) in enumerate(batches(40, sizes=(8, 8, 8, 8, 8, 8, *range(6, 20)))):
        made = step(x)
        assert torch.equal(made, plain(x)), number
        if number in (9, 16, 24):
            kept.append((made, made.clone()))
    assert all(torch.equal(one, copied) for one, copied in kept)
    assert device.launches > 20


def test_auto_tries_the_capture_and_chooses_by_measure(device: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchjanus.runtime.entries.engine.submit", lambda start: Never())
    step = compared("plain", batches(40), "auto")
    notes = " ".join(engine_of(step).notes)
    assert "cudagraph agreed with replay" in notes
    assert "fastest by measure" in notes


class Never:
    """A compilation that is never over."""

    over, candidate, failure = False, None, None

    def __str__(self) -> str:
        return "waits"

    def cancel(self) -> None:
        pass


def test_without_a_device_there_is_nothing_to_capture() -> None:
    step = compared("plain", batches(8))
    assert engine_of(step).current == "replay"
    assert "no tensor of the step is on a CUDA device" in " ".join(engine_of(step).notes)
    assert engine_of(step).reasons == ["graph-not-captured"]

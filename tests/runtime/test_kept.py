"""A program that an earlier run has lowered is not lowered again, and gives eager's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchjanus
from torchjanus.execute.store import VARIABLE
from torchjanus.graph import loop_op
from torchjanus.runtime import kept


class Training:
    def __init__(self, rate: float = 0.1) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=rate, momentum=0.9)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.net(x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, step: Any) -> list[float]:
        draw = torch.Generator().manual_seed(1)
        return [step(torch.randn(3, 4, generator=draw)).item() for _ in range(8)]


@pytest.fixture
def lowerings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """The programs that are lowered; with a store."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    made: list[object] = []
    real = kept.lower_rolled

    def lower_rolled(program: Any) -> Any:
        made.append(program)
        return real(program)

    monkeypatch.setattr(kept, "lower_rolled", lower_rolled)
    return made


def train(rate: float = 0.1) -> Any:
    eager = Training(rate)
    expected = eager.run(eager.step)
    ours = Training(rate)
    step = torchjanus.speculate(ours.step, executor="replay")
    assert ours.run(step) == expected
    assert step.statistics().speculated == 5
    for one, other in zip(eager.net.parameters(), ours.net.parameters(), strict=True):
        assert torch.equal(one, other)
    return step


def test_a_second_run_lowers_nothing(lowerings: list[object]) -> None:
    train()
    assert len(lowerings) == 1
    train()
    assert len(lowerings) == 1
    train(rate=0.2)  # a constant of the graph
    assert len(lowerings) == 2


def rounds(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for row in x.unbind(0):
        w = torch.tanh(w @ row) + row
    return w


def test_loops_are_found_again_unless_their_keys_are_taken(
    lowerings: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        step = torchjanus.speculate(rounds, executor="replay")
        for length in (5, 7, 4, 6, 8):
            x = torch.randn(length, 3, 3)
            assert torch.equal(step(x, torch.ones(3, 3)), rounds(x, torch.ones(3, 3)))
        assert step.statistics().speculated >= 2

    monkeypatch.setattr(loop_op, "_next", 0)
    run()
    assert len(lowerings) == 1
    run()  # in this process the loop's keys are somebody's
    assert len(lowerings) == 2
    monkeypatch.setattr(loop_op, "_next", 0)  # as in a new one
    run()
    assert len(lowerings) == 2


def test_without_a_store_everything_is_lowered(lowerings: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    train()
    train()
    assert len(lowerings) == 2


def test_what_cannot_be_used_is_lowered_again(
    lowerings: list[object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train()

    def broken(*args: Any, **reserved: bool) -> Any:
        raise EOFError("it ends early")

    with monkeypatch.context() as patch:
        patch.setattr(kept, "unpack_made", broken)
        train()
    assert len(lowerings) == 2
    assert "EOFError: it ends early" in caplog.text


def test_other_source_of_ours_finds_nothing(lowerings: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    train()
    monkeypatch.setattr(kept, "_own_source", lambda: "of another version")
    train()
    assert len(lowerings) == 2

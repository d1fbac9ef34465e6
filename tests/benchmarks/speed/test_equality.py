"""The equality measurement notices every kind of wrong result: shown with ways to speculate that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import torchjanus
from benchmarks.programs.steps import make
from benchmarks.speed.equality import Run, compare, differences, relative, train


@dataclass(frozen=True)
class Counts:
    calls: int = 50
    speculated: int = 47
    compiles: int = 1


class Wrong:
    """Stands for a speculated step; ``damage(loss)`` is what it does to the loss of a call."""

    def __init__(
        self, step: Callable[..., torch.Tensor], damage: Callable[[torch.Tensor], torch.Tensor], counts
    ) -> None:
        self.step, self.damage, self.counts = step, damage, counts

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        return self.damage(self.step(*batch))

    def wait(self) -> None:
        pass

    def statistics(self):
        return self.counts


def draw(loss: torch.Tensor) -> torch.Tensor:
    torch.rand(())
    return loss


@pytest.mark.parametrize(
    ("damage", "counts", "faults"),
    [
        (lambda loss: loss, Counts(), []),
        (lambda loss: loss * (1 + 1e-6), Counts(), ["not bitwise eager's"]),
        (lambda loss: loss * 1.001, Counts(), ["not bitwise eager's", "losses differ"]),
        (lambda loss: loss * float("nan"), Counts(), ["not bitwise eager's", "losses differ"]),
        (draw, Counts(), ["random numbers differ"]),
        (lambda loss: loss, Counts(speculated=44), ["too few calls speculated"]),
        (lambda loss: loss, Counts(compiles=3), ["too many compilations"]),
    ],
)
def test_faults_are_found(monkeypatch: pytest.MonkeyPatch, damage, counts: Counts, faults: list[str]) -> None:
    monkeypatch.setattr(torchjanus, "speculate", lambda step, *, executor: Wrong(step, damage, counts), raising=False)
    found = compare("mlp", "sgd", "replay", dropout=0.0)
    assert found.faults == faults
    assert found.bitwise == (not any("bitwise" in fault for fault in faults))


def test_a_lost_update_is_found() -> None:
    """Losses that are right and parameters that are not."""
    eager = train(make("mlp", "sgd", batches=4), seed=0)
    damaged = dict(eager.state)
    name = next(name for name in damaged if name.startswith("parameter"))
    damaged[name] = damaged[name] * 0.9
    assert differences(eager, eager) == (0.0, 0.0, "")
    loss, state, worst = differences(eager, Run(eager.losses, eager.random, damaged))
    assert loss == 0.0
    assert state == pytest.approx(0.1, rel=1e-3)
    assert worst == name
    del damaged[name]
    assert differences(eager, Run(eager.losses, eager.random, damaged))[1:] == (float("inf"), name)


def test_relative() -> None:
    one = torch.tensor([1.0, -4.0])
    assert relative(one, one.clone()) == 0.0
    assert relative(one, torch.tensor([1.0, -3.0])) == 0.25
    assert relative(one, one.double()) == float("inf")
    assert relative(one, torch.tensor([1.0, float("nan")])) == float("inf")
    assert relative(torch.empty(0), torch.empty(0)) == 0.0
    assert relative(torch.tensor(3), torch.tensor(4)) == pytest.approx(1 / 3)


def test_a_tensor_of_mere_rounding_errors_does_not_count_alone() -> None:
    state = {
        "gradient big": torch.tensor([1.0]),
        "gradient tiny": torch.tensor([1e-9]),
        "parameter p": torch.tensor([5.0]),
    }
    one = torch.ones(())
    other = {**state, "gradient tiny": torch.tensor([-1e-9])}
    assert differences(Run([one], [], state), Run([one], [], other))[1:] == (pytest.approx(2e-6), "gradient tiny")

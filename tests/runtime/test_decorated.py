"""What ``speculate()`` takes beside plain functions: speculated functions and partial calls; reports of methods."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import torchjanus


def scaled(factor: float, x: torch.Tensor) -> torch.Tensor:
    return x * factor


def called(step: Any, *leading: Any) -> Any:
    for number in range(8):
        assert step(*leading, torch.full((2,), float(number))).tolist() == [2.0 * number] * 2
    return step


def test_a_function_that_is_speculated_already() -> None:
    once = torchjanus.speculate(scaled, executor="replay")
    twice = torchjanus.speculate(once, executor="replay")
    assert called(twice, 2.0).statistics().speculated == 5
    assert twice.fn is scaled and once.statistics().calls == 0


def test_a_partial_call() -> None:
    assert called(torchjanus.speculate(functools.partial(scaled, 2.0), executor="replay")).statistics().speculated == 5


def test_the_keywords_of_a_partial_call_are_arguments_of_each_call() -> None:
    def trained(speculated: bool) -> tuple[list[float], Any]:
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def train(x: torch.Tensor, model: Any, *, scale: float = 1.0, optimizer: Any) -> float:
            optimizer.zero_grad()
            loss = scale * model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        step: Any = functools.partial(train, model=net, scale=0.5, optimizer=optimizer)
        if speculated:
            step = torchjanus.speculate(step, executor="replay")
        losses = [step(torch.full((3, 4), n / 9), **({"scale": 2.0} if n % 5 == 4 else {})) for n in range(12)]
        step.keywords["scale"] = 3.0
        return [*losses, step(torch.ones(3, 4))], step

    losses, step = trained(True)
    assert losses == trained(False)[0]
    assert step.statistics().speculated >= 9
    assert str(torchjanus.explain(step)).startswith("train  (")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        step()


def test_the_report_of_a_method() -> None:
    class Trainer:
        @torchjanus.speculate(executor="replay")
        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    trainer = Trainer()
    assert "served" in str(torchjanus.explain(called(trainer.step)))
    with pytest.raises(torchjanus.Unsupported, match="takes a speculated function"):
        torchjanus.explain(trainer.__init__)


def test_an_executor_that_is_no_text() -> None:
    executor: Any = 3
    with pytest.raises(torchjanus.Unsupported, match="executor=3"):
        torchjanus.speculate(scaled, executor=executor)

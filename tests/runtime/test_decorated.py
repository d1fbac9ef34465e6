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


def test_a_partial_call_with_keywords_is_pythons() -> None:
    step = torchjanus.speculate(functools.partial(lambda x, factor: x * factor, factor=2.0), executor="replay")
    assert "has keywords" in str(torchjanus.explain(called(step), detail=True))


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

"""Warnings of torch's code in a step are shown once for each line of the program, as in eager."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchjanus


def trained() -> Callable[[torch.Tensor], Any]:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: torch.Tensor) -> Any:
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        alone = loss.detach()[None]
        first = alone.std()  # a warning of a kernel
        second = alone.std(dim=0)
        return (
            first,
            second,
            nn.functional.l1_loss(model(x), x[:, 0]).detach(),
        )  # a warning of a Python function of torch

    return step


def shown_by(step: Callable[[torch.Tensor], Any], filter_: Any) -> list[tuple[str, str, int]]:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(filter_)
        for _ in range(8):
            step(torch.ones(4, 3))
    return [(str(one.message)[:40], one.filename, one.lineno) for one in shown]


@pytest.mark.parametrize("filter_", ["default", "once", "ignore"])
def test_warnings_name_the_line_of_the_program_and_come_as_often_as_in_eager(filter_: Any) -> None:
    step: Any = torchjanus.speculate(trained(), executor="replay")
    assert shown_by(step, filter_) == shown_by(trained(), filter_)
    assert step.statistics().speculated >= 4


def test_a_warning_that_is_an_error_leaves_the_step() -> None:
    step = torchjanus.speculate(trained(), executor="replay")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="degrees of freedom"):
            step(torch.ones(4, 3))


def test_warnings_of_others_are_shown_as_they_are() -> None:
    shown_by(torchjanus.speculate(trained(), executor="replay"), "default")
    with pytest.warns(UserWarning, match="of the test") as shown:
        warnings.warn("of the test", stacklevel=1)
    assert shown[0].filename == __file__

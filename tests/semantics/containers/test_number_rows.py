"""Lists of numbers become tensors where loops take from them, and nothing else is made of what they give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.semantics.containers.number_rows import column_of


@pytest.mark.parametrize(
    ("numbers", "dtype"), [([1, -2, 3], torch.int64), ([0.1, 1e300], torch.float64), ((True, False), torch.bool)]
)
def test_a_column_holds_the_very_numbers(numbers: Any, dtype: torch.dtype) -> None:
    column = column_of(numbers)
    assert column.dtype == dtype
    assert column.tolist() == list(numbers)


@pytest.mark.parametrize("container", [[], [1, 2.0], [1, True], ["a"], {1: 2}, [2**70], [None], torch.ones(2)])
def test_what_is_no_column(container: Any) -> None:
    with pytest.raises(TypeError):
        column_of(container)


def _step(x: torch.Tensor, weights: Any) -> torch.Tensor:
    total = torch.zeros(3)
    for t in range(x.size(0)):
        total = total.tanh() + x[t] * weights[t]
    return total


def test_other_kinds_of_numbers_and_lengths() -> None:
    step = torchjanus.speculate(_step, executor="replay")
    torch.manual_seed(0)
    calls = [(torch.randn(n, 3), [0.5 * k for k in range(n)]) for n in (4, 6, 5, 7, 9, 4, 8, 11, 5)]
    for x, weights in calls:
        assert torch.equal(step(x, weights), _step(x, weights))
    assert step.statistics().speculated > 3
    x = torch.randn(6, 3)
    for weights in ([1, 2, 3, 4, 5, 6], [1.0, 2, 3, 4, 5, 6], (0.1,) * 6, [0.1] * 9):
        assert torch.equal(step(x, weights), _step(x, weights))
    with pytest.raises(IndexError):
        step(x, [0.1, 0.2])

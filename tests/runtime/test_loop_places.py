"""A loop that is no one node says where it is written."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import torchjanus


def retains(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(2, 4)
    for x in xs:
        h = torch.tanh(x + h)
        h.retain_grad()
    return h.sum()


def scales(xs: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for t in range(xs.shape[1]):
        total = total + xs[:, t].sum() * t
    return total


@pytest.mark.parametrize(("step", "line", "sizes"), [(retains, 3, ((5, 2), (7, 2))), (scales, 4, ((5, 6), (7, 8)))])
def test_the_report_names_the_line(step: Callable[..., torch.Tensor], line: int, sizes: tuple[tuple[int, int]]) -> None:
    speculated = torchjanus.speculate(step, executor="replay")
    for call in range(8):
        speculated(torch.randn(*sizes[call % 2], 4).requires_grad_(step is retains))
    told = re.search(r"cannot change: (\S+):(\d+): ", str(torchjanus.explain(speculated)))
    assert told is not None
    assert told[1].endswith("test_loop_places.py")
    assert abs(int(told[2]) - step.__code__.co_firstlineno - line + 1) <= 1

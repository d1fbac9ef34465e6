"""A loop that is no one node says where it is written."""

from __future__ import annotations

import re

import torch

import torchjanus


def retains(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(2, 4)
    for x in xs:
        h = torch.tanh(x + h)
        h.retain_grad()
    return h.sum()


def test_the_report_names_the_line() -> None:
    speculated = torchjanus.speculate(retains, executor="replay")
    for call in range(8):
        speculated(torch.randn(5 + call % 2 * 2, 2, 4).requires_grad_())
    reported = re.search(r"cannot change: (\S+):(\d+): ", str(torchjanus.explain(speculated, detail=True)))
    assert reported is not None
    assert reported[1].endswith("test_loop_places.py")
    assert abs(int(reported[2]) - retains.__code__.co_firstlineno - 2) <= 1

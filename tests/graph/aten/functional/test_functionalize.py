"""The functional form of a graph computes what the operations of the trace do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchjanus import speculate


@pytest.mark.parametrize("step", [
    lambda x: torch._foreach_mul([x], 0.3)[0] + x,
    lambda x: torch._foreach_mul([x, x], [0.3, 0.7])[1] + x,
    lambda x: (torch._foreach_mul_([y := x + 1], 0.3), y + x)[1],
])  # fmt: skip
def test_products_by_numbers_in_half_precision_have_eagers_bits(step: Callable[..., torch.Tensor]) -> None:
    fast = speculate(step, executor="replay")
    for _ in range(6):
        x = torch.randn(37).bfloat16()
        assert torch.equal(fast(x.clone()), step(x))
    assert fast.statistics().speculated == 3

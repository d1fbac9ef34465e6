"""Tensors of other kinds than graphs are made of: the call is eager's, and the report says which."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchjanus

pytestmark = pytest.mark.filterwarnings("ignore")


def _nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def _by_channel() -> torch.Tensor:
    return torch.quantize_per_channel(torch.ones(3, 2), torch.ones(3), torch.zeros(3), 0, torch.qint8)


def _padded(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.to_padded_tensor(x, 0.0) * 2


def _dequantized(x: torch.Tensor) -> torch.Tensor:
    return torch.dequantize(x) + 1


@pytest.mark.parametrize(
    ("make", "step", "layout"),
    [(_nested, _padded, "nested"), (_quantized, _dequantized, "quantized"), (_by_channel, _dequantized, "quantized")],
)
def test_the_call_is_eagers(
    make: Callable[[], torch.Tensor], step: Callable[[torch.Tensor], torch.Tensor], layout: str
) -> None:
    fast = torchjanus.speculate(step, executor="replay")
    for _ in range(5):
        assert torch.equal(fast(make()), step(make()))
    assert f"with layout {layout} is read" in str(torchjanus.explain(fast, detail=True))
    assert "fault" not in [event.kind for event in fast.events]

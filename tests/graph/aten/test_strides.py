"""Fake results of operators that were seen to differ lie as their kernels leave them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from torchjanus.graph.aten.strides import MeasuredStrides, laid_as
from torchjanus.trace.layout import result_layout_of

aten = torch.ops.aten
SIZE = (4, 6, 10)


def _ways_to_lie(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    yield tensor
    for order in ((0, 2, 1), (2, 1, 0), (1, 0, 2)):
        inverse = [order.index(dim) for dim in range(3)]
        yield tensor.permute(order).contiguous().permute(inverse)
    yield torch.stack([tensor, tensor], -1)[..., 0]
    yield tensor[:1].expand(tensor.shape)


OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "batch norm": lambda x, y: aten.native_batch_norm(x, x[0, :, 0], None, None, None, True, 0.1, 1e-5),
    "batch norm with statistics": lambda x, y: aten._native_batch_norm_legit_functional(
        x, None, None, x[0, :, 0].clone(), x[0, :, 0].clone(), True, 0.1, 1e-5
    ),
    "copysign": lambda x, y: torch.copysign(x, 1.0),
    "division": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor division": lambda x, y: torch.floor_divide(x, 2.0),
    "ldexp": torch.ldexp,
    "logaddexp": torch.logaddexp,
    "logical and": lambda x, y: torch.logical_and(x, y[0]),
    "power of a number": lambda x, y: torch.pow(2.0, x),
    "xlogy": lambda x, y: torch.xlogy(x, y[0]),
    "huber loss backward": lambda x, y: aten.huber_loss_backward(x, y, x, 0, 1.0),
    "log softmax backward": lambda x, y: aten._log_softmax_backward_data(x, y, 1, torch.float32),
    "dropout backward": lambda x, y: aten.native_dropout_backward(x, y > 0, 2.0),
    "normal": lambda x, y: torch.normal(x, y.abs()),
    "padding": lambda x, y: F.pad(x[None, None], (1, 1, 1, 1, 1, 1), mode="replicate"),
    "addition": torch.add,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fake_result_lies_as_the_real_one_does(name: str) -> None:
    operation = OPERATIONS[name]
    for one in _ways_to_lie(torch.randn(SIZE)):
        for other in _ways_to_lie(torch.randn(SIZE)):
            mode = MeasuredStrides(allow_non_fake_inputs=True)
            state = torch.get_rng_state()
            with mode:
                fake = operation(mode.from_tensor(one), mode.from_tensor(other))
            assert torch.equal(state, torch.get_rng_state())
            real = operation(one, other)
            pairs = zip(pytree.tree_leaves(fake), pytree.tree_leaves(real), strict=True)
            assert all(a.shape == b.shape and a.stride() == b.stride() for a, b in pairs)


def test_large_operands_are_not_made_to_measure_them() -> None:
    mode = MeasuredStrides(allow_non_fake_inputs=True)
    with mode:
        made = torch.logaddexp(torch.empty(1 << 20, 1, 1 << 14).transpose(0, 2), torch.empty(1 << 14, 1, 1))
    assert made.stride() == (1, 1 << 14, 1 << 14)


def test_what_lies_otherwise_than_it_was_watched_is_copied() -> None:
    with FakeTensorMode():
        x = torch.empty(2, 3, 1, 4)
        reversed_loops = torch.empty(4, 1, 3, 2).permute(3, 2, 1, 0)
        assert laid_as(x, result_layout_of(x)) is x
        assert laid_as(reversed_loops, result_layout_of(reversed_loops)) is reversed_loops
        assert laid_as(x, None) is x
        assert laid_as(x, result_layout_of(reversed_loops)).stride() == (1, 2, 24, 6)
        assert laid_as(reversed_loops, True).stride() == x.stride()
        assert laid_as(x[:, :2], True).stride() == x.stride()  # it has gaps

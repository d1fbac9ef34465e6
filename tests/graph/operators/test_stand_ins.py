"""Functions that stand for others in a graph give what the others give, and raise where those do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torchjanus.graph.operators.stand_ins import OF_NUMBERS, of_layers, rounding, stand_in, tensor_given


def same(one: Any, other: Any) -> None:
    """Two results are equal to the last bit, in values, shapes and dtypes."""
    if isinstance(one, tuple | list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
        return
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert torch.equal(one, other)


def agrees(func: Callable[..., Any], *args: Any, symbolic: bool = False, **kwargs: Any) -> None:
    made = stand_in(func, symbolic)
    assert made is not func, "nothing stands for it"
    same(func(*args, **kwargs), made(*args, **kwargs))


@pytest.mark.parametrize("data", [3, 2.5, [1, 2], [1, 2.5], [[1], [2]]], ids=str)
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.int32])
def test_tensors_of_numbers(data: Any, dtype: torch.dtype | None) -> None:
    for func in (torch.tensor, torch.as_tensor, torch.asarray):
        same(func(data, dtype=dtype), OF_NUMBERS[func](data, dtype=dtype))
    like = torch.ones(1, dtype=torch.float16)
    same(like.new_tensor(data, dtype=dtype), OF_NUMBERS[torch.Tensor.new_tensor](like, data, dtype=dtype))


def test_a_number_that_is_a_tensor_here_makes_the_tensor_that_a_float_makes() -> None:
    number = torch.tensor(0.5, dtype=torch.float64)
    same(OF_NUMBERS[torch.tensor]([number, 2]), torch.tensor([0.5, 2]))
    same(OF_NUMBERS[torch.full]((2,), number), torch.full((2,), 0.5))


def test_a_number_may_be_a_tensor_and_gets_no_gradient() -> None:
    x = torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
    made = tensor_given([1.0, x])
    assert made.tolist() == [1.0, 2.5]
    assert not made.requires_grad
    assert tensor_given([1, torch.tensor(2)]).dtype == torch.int64
    assert tensor_given([torch.ones(1, 1), 2]).tolist() == [1.0, 2.0]


def test_a_list_that_is_ragged_raises() -> None:
    with pytest.raises((ValueError, RuntimeError)):
        tensor_given([[torch.tensor(1.0)], [torch.tensor(1.0), torch.tensor(2.0)]])


@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_one_hot(shape: tuple[int, ...]) -> None:
    agrees(F.one_hot, torch.zeros(shape, dtype=torch.int64), 4)
    if 0 not in shape:
        agrees(F.one_hot, torch.full(shape, 3), 4)


def test_one_hot_of_a_class_that_there_is_not_raises() -> None:
    for func in (F.one_hot, stand_in(F.one_hot)):
        with pytest.raises(RuntimeError):
            func(torch.tensor([4]), 4)


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("func", "gates"), [(torch.lstm_cell, 4), (torch.gru_cell, 3), (torch.rnn_tanh_cell, 1), (torch.rnn_relu_cell, 1)]
)
def test_recurrent_cells(func: Callable[..., Any], gates: int, batch: int, bias: bool) -> None:
    torch.manual_seed(0)
    x, h = torch.randn(batch, 3), torch.randn(batch, 2)
    weights = [torch.randn(gates * 2, 3), torch.randn(gates * 2, 2)]
    weights += [torch.randn(gates * 2) for _ in range(2)] if bias else []
    state = (h, torch.randn(batch, 2)) if func is torch.lstm_cell else h
    made = stand_in(func, symbolic=True)
    assert made is not func
    expected, other = func(x, state, *weights), made(x, state, *weights)
    for a, b in zip(expected if gates == 4 else [expected], other if gates == 4 else [other], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("lengths", [[2], [1, 3], [0, 2], [3, 3]])
def test_padded_sequences(lengths: list[int], first: bool) -> None:
    sequences = [torch.arange(float(n * 2)).reshape(n, 2) for n in lengths]
    agrees(torch._C._nn.pad_sequence, sequences, first, -1.0, symbolic=True)


@pytest.mark.parametrize(
    "options",
    [
        {"size": 4},
        {"size": (4, 2)},
        {"scale_factor": 2.0},
        {"scale_factor": 0.5, "mode": "bilinear", "align_corners": False},
    ],
    ids=str,
)
def test_interpolation_of_images(options: dict[str, Any]) -> None:
    agrees(F.interpolate, torch.arange(24.0).reshape(1, 1, 4, 6), symbolic=True, **options)


def test_what_nothing_stands_for_is_itself() -> None:
    assert stand_in(torch.add) is torch.add
    assert stand_in(torch.tanh, symbolic=True) is torch.tanh


def test_which_functions_compute_recurrent_layers() -> None:
    assert not of_layers(torch.add)
    assert not of_layers(torch.lstm_cell)


def test_numbers_of_the_host_are_rounded_only_where_there_are_some() -> None:
    from tests.graph.recording import generalise, record
    from torchjanus.graph.ir.program import Slot

    def step(x: torch.Tensor, n: float) -> torch.Tensor:
        return x * torch.tensor(n, dtype=torch.float16)

    (fixed, *_) = generalise([record(step, torch.ones(2), 0.1)])[0].nodes
    assert rounding(fixed) is torch.tensor
    (changing, *_) = generalise([record(step, torch.ones(2), n) for n in (0.1, 0.2)])[0].nodes
    assert isinstance(changing.args[0], Slot)
    assert rounding(changing) is not torch.tensor
    same(rounding(changing)(0.1, dtype=torch.float16), torch.tensor(0.1, dtype=torch.float16))

"""Operations with a tensor in place of a number: they give what the number gives, to the last bit."""

import pytest
import torch

from torchjanus.core.errors import Refused
from torchjanus.graph.operators.number_operands import is_arithmetic, taking

SIZES = (1, 3, 8, 17, 1000)
NUMBERS = (0.1, -3.7e-5, 0.0, 1.0, float("inf"), 1e30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "key"),
    [("add", "alpha"), ("sub", "alpha"), ("addcmul", "value"), ("addcdiv", "value"), ("lerp", 2)],
)
def test_to_the_last_bit(name, key, dtype):
    for size in SIZES:
        x, y, z = (torch.randn(size, 2, dtype=dtype)[:, 0] for _ in range(3))
        others = {"add": (y,), "sub": (y,), "lerp": (y,)}.get(name, (y, z))
        for number in NUMBERS:
            held = torch.tensor(number, dtype=torch.float64)
            path, args, kwargs = ((0, 2), (number,), {}) if key == 2 else ((1, key), (), {key: number})
            merged = ((held,), {}) if key == 2 else ((), {key: held})
            wanted = getattr(torch, name)(x, *others, *args, **kwargs)
            made = taking(f"torch.{name}", path)(x, *others, *merged[0], **merged[1])
            assert torch.equal(made.nan_to_num(7), wanted.nan_to_num(7))
            assert torch.equal(made.signbit(), wanted.signbit()) or made.isnan().any()
            there = x.clone()
            assert taking(f"Tensor.{name}_", path)(there, *others, *merged[0], **merged[1]) is there
            assert torch.equal(there.nan_to_num(7), wanted.nan_to_num(7))


def test_what_would_be_rounded_twice_is_refused():
    x = torch.ones(2, dtype=torch.bfloat16)
    with pytest.raises(Refused, match=r"scales operands of torch\.bfloat16"):
        taking("Tensor.add_", (1, "alpha"))(x, x, alpha=torch.tensor(0.1))
    with pytest.raises(Refused):
        taking("Tensor.add_", (1, "alpha"))(torch.ones(2), 2.0, alpha=torch.tensor(0.1))


def test_where_a_number_may_stand():
    assert taking("Tensor.add_", (0, 1)) is None
    assert taking("torch.cat", (1, "dim")) is None
    assert is_arithmetic("Tensor.mul_")
    assert not is_arithmetic("Tensor.sqrt")

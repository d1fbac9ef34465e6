"""Operations with a number as an operand, for a tensor that holds it.

This is needed where the number differs between iterations or calls, or where the program fetches it from a tensor. Each
function returns bitwise what the operation returns for the number; where it cannot, it raises Refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.graph.aten.symbolic_sizes import key
from torchjanus.ops.calls import ARITHMETIC, IN_PLACE_ARITHMETIC

__all__ = ["is_arithmetic", "taking"]

_EXACT = (torch.float32, torch.float64)  # in lower precision a kernel rounds once, and these would round twice


def is_arithmetic(name: str) -> bool:
    """Whether this operation accepts a number beside a tensor, and so a one-element tensor, too."""
    name = name.rpartition(".")[2]
    return name in ARITHMETIC or name in IN_PLACE_ARITHMETIC


def taking(name: str, path: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return the function that takes a one-element tensor in place of a number; None if there is none.

    ``path``: (0, position) or (1, name) of the argument."""
    return _TAKING.get((name.rpartition(".")[2], path))


# -- functions that fill a tensor ----------------------------------------------------------------------------------


def full(size: Sequence[int], number: torch.Tensor, dtype: torch.dtype | None = None, **given: Any) -> torch.Tensor:
    """``torch.full`` of a number that a tensor holds."""
    wanted = dtype if dtype is not None else torch.get_default_dtype() if number.is_floating_point() else number.dtype
    return number.to(wanted).expand(tuple(size)).clone(memory_format=torch.contiguous_format)


def full_like(like: torch.Tensor, number: torch.Tensor, dtype: torch.dtype | None = None, **given: Any) -> torch.Tensor:
    """``torch.full_like`` of a number that a tensor holds."""
    return torch.empty_like(like, dtype=dtype, requires_grad=False).copy_(number)


def new_full(
    like: torch.Tensor, size: Sequence[int], number: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``Tensor.new_full`` of a number that a tensor holds."""
    return full(size, number, like.dtype if dtype is None else dtype)


def tensor(number: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.tensor`` of a number that a tensor holds."""
    return full((), number, dtype)


# -- functions that scale an operand -------------------------------------------------------------------------------


def add(x: torch.Tensor, y: torch.Tensor, *, alpha: torch.Tensor) -> torch.Tensor:
    """``x + alpha * y``, fused into one operation as ``torch.add`` does it."""
    return torch.addcmul(x, y, _scale(alpha, x, y))


def add_(x: torch.Tensor, y: torch.Tensor, *, alpha: torch.Tensor) -> torch.Tensor:
    """Return the in-place form of ``add``."""
    return x.addcmul_(y, _scale(alpha, x, y))


def sub(x: torch.Tensor, y: torch.Tensor, *, alpha: torch.Tensor) -> torch.Tensor:
    """``x - alpha * y``."""
    return torch.addcmul(x, y, -_scale(alpha, x, y))


def sub_(x: torch.Tensor, y: torch.Tensor, *, alpha: torch.Tensor) -> torch.Tensor:
    """Return the in-place form of ``sub``."""
    return x.addcmul_(y, -_scale(alpha, x, y))


def addcmul(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, value: torch.Tensor) -> torch.Tensor:
    """``x + value * y * z``; kernels multiply from the left."""
    return torch.addcmul(x, y * _beside(value, x, y, z), z)


def addcmul_(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, value: torch.Tensor) -> torch.Tensor:
    """Return the in-place form of ``addcmul``."""
    return x.addcmul_(y * _beside(value, x, y, z), z)


def addcdiv(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, value: torch.Tensor) -> torch.Tensor:
    """``x + value * y / z``."""
    return torch.addcdiv(x, y * _beside(value, x, y, z), z)


def addcdiv_(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, value: torch.Tensor) -> torch.Tensor:
    """Return the in-place form of ``addcdiv``."""
    return x.addcdiv_(y * _beside(value, x, y, z), z)


def lerp(x: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Linear interpolation from ``x`` to ``end``."""
    return torch.lerp(x, end, _beside(weight, x, end))


def lerp_(x: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the in-place form of ``lerp``."""
    return x.lerp_(end, _beside(weight, x, end))


def _beside(number: torch.Tensor, *others: Any) -> torch.Tensor:
    """Return the number in the precision in which kernels compute beside these tensors. Raises Refused."""
    kinds = {other.dtype if isinstance(other, torch.Tensor) else type(other) for other in others}
    if len(kinds) > 1 or kinds.isdisjoint(_EXACT):
        what = f"a number that changes scales operands of {', '.join(sorted(map(str, kinds)))}"
        raise refused("number-rounding", what, "A graph would round in another place.", "Multiply by the number first.")
    return number.detach().reshape(()).to(others[0].dtype)


def _scale(number: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the number as a factor of ``y`` beside ``x``. Raises Refused where one of them is broadcast.

    Kernels of two and of three operands vectorise broadcast operands differently, and so round differently."""
    if isinstance(y, torch.Tensor) and (*map(key, x.shape),) != (*map(key, y.shape),):
        what = f"a number that changes scales operands of sizes {tuple(x.shape)} and {tuple(y.shape)}"
        raise refused("number-rounding", what, "A graph would round in another place.", "Multiply by the number first.")
    return _beside(number, x, y)


_TAKING: dict[tuple[str, tuple[Any, ...]], Callable[..., Any]] = {
    **{(func.__name__, (0, 1)): func for func in (full, full_like)},
    **{(func.__name__, (0, 2)): func for func in (new_full, lerp, lerp_)},
    ("tensor", (0, 0)): tensor,
    **{(func.__name__, (1, "alpha")): func for func in (add, add_, sub, sub_)},
    **{(func.__name__, (1, "value")): func for func in (addcmul, addcmul_, addcdiv, addcdiv_)},
}

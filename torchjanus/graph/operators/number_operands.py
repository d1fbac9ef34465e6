"""What operations do with a number, done with a tensor that holds it: where each iteration of a loop, or each call, has
another one, or where the program fetches it from a tensor.

Each function gives what the operation gives of the number, to the last bit; where it cannot, it raises Refused. Knows
nothing of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.graph.aten.symbolic_sizes import key
from torchjanus.graph.ir.repetition import ARITHMETIC

__all__ = ["is_arithmetic", "taking"]

_IN_PLACE = frozenset("add_ sub_ mul_ div_ true_divide_ __iadd__ __isub__ __imul__ __itruediv__".split())
_EXACT = (torch.float32, torch.float64)  # in lower precision a kernel rounds once, where we round twice


def is_arithmetic(name: str) -> bool:
    """Whether a number may stand beside a tensor in this operation, and so may a tensor of one element."""
    name = name.rpartition(".")[2]
    return name in ARITHMETIC or name in _IN_PLACE


def taking(name: str, path: tuple[Any, ...]) -> Callable[..., Any] | None:
    """What takes a tensor of one element where the operation takes a number; None where nothing does. ``path``: 0 and
    which of the arguments it is, or 1 and its name."""
    return _TAKING.get((name.rpartition(".")[2], path))


# -- what fills a tensor ------------------------------------------------------------------------------------------


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


# -- what scales an operand ---------------------------------------------------------------------------------------


def add(x: torch.Tensor, y: torch.Tensor, *, alpha: torch.Tensor) -> torch.Tensor:
    """``x + alpha * y``: one multiplication and addition at once, as ``torch.add`` has it."""
    return torch.addcmul(x, y, _scale(alpha, x, y))


def add_(x: torch.Tensor, y: torch.Tensor, *, alpha: torch.Tensor) -> torch.Tensor:
    """The same in place."""
    return x.addcmul_(y, _scale(alpha, x, y))


def sub(x: torch.Tensor, y: torch.Tensor, *, alpha: torch.Tensor) -> torch.Tensor:
    """``x - alpha * y``."""
    return torch.addcmul(x, y, -_scale(alpha, x, y))


def sub_(x: torch.Tensor, y: torch.Tensor, *, alpha: torch.Tensor) -> torch.Tensor:
    """The same in place."""
    return x.addcmul_(y, -_scale(alpha, x, y))


def addcmul(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, value: torch.Tensor) -> torch.Tensor:
    """``x + value * y * z``; kernels multiply from the left."""
    return torch.addcmul(x, y * _beside(value, x, y, z), z)


def addcmul_(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, value: torch.Tensor) -> torch.Tensor:
    """The same in place."""
    return x.addcmul_(y * _beside(value, x, y, z), z)


def addcdiv(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, value: torch.Tensor) -> torch.Tensor:
    """``x + value * y / z``."""
    return torch.addcdiv(x, y * _beside(value, x, y, z), z)


def addcdiv_(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, value: torch.Tensor) -> torch.Tensor:
    """The same in place."""
    return x.addcdiv_(y * _beside(value, x, y, z), z)


def lerp(x: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x`` and ``end``, mixed by weight."""
    return torch.lerp(x, end, _beside(weight, x, end))


def lerp_(x: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same in place."""
    return x.lerp_(end, _beside(weight, x, end))


def _beside(number: torch.Tensor, *others: Any) -> torch.Tensor:
    """The number in the precision in which kernels compute beside these tensors. Raises Refused."""
    kinds = {other.dtype if isinstance(other, torch.Tensor) else type(other) for other in others}
    if len(kinds) > 1 or kinds.isdisjoint(_EXACT):
        what = f"a number that changes scales operands of {', '.join(sorted(map(str, kinds)))}"
        raise refused("number-rounding", what, "A graph would round in another place.", "Multiply by the number first.")
    return number.detach().reshape(()).to(others[0].dtype)


def _scale(number: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The number as a factor of ``y``, beside ``x``. Where one of them is broadcast, kernels of two and three operands
    compute other elements at once, and so round otherwise. Raises Refused."""
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

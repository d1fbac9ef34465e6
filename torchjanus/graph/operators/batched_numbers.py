"""Replacements for functions of torch with a number that differs between batched calls, given as a 0-d tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.graph.operators.stand_ins import OF_NUMBERS

__all__ = ["BATCHED", "OF_COLUMNS", "PLAIN"]


def _item(tensor: torch.Tensor, key: Any) -> torch.Tensor:
    """``tensor[key]``, where 0-d tensors represent Python integers. Raises TypeError for mixed subscripts."""
    parts = key if isinstance(key, tuple) else (key,)
    rest = tuple(slice(None) if _is_number(part) else part for part in parts)
    left = tensor[rest]
    dim = 0
    for part in parts:
        if _is_number(part):
            left = _select(left, dim, part)
        elif part is Ellipsis or isinstance(part, torch.Tensor | list):
            raise TypeError("an index that changes from call to call stands beside '...' or a tensor")
        elif part is None or isinstance(part, slice):
            dim += 1
    return left


def _is_number(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dim() == 0 and not part.is_floating_point()


def _select(tensor: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    """``tensor.select(dim, index)``, where ``index`` may be a 0-d tensor."""
    if not isinstance(index, torch.Tensor):
        return tensor.select(dim, index)
    size = tensor.size(dim)
    known = torch.where(index < 0, index + size, index)
    return tensor.index_select(dim, known.reshape(1)).squeeze(dim)


def _tensor(data: Any, *, requires_grad: bool = False, **options: Any) -> torch.Tensor:
    """``torch.tensor(data)``. Raises TypeError if it would require gradients."""
    made: torch.Tensor = OF_NUMBERS[torch.tensor](data, **options)
    if requires_grad:
        raise TypeError("a tensor made of a call's number asks for gradients")
    return made


def _full(size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """``torch.full`` without an in-place write of a per-call number into a tensor that is common to all calls."""
    if not isinstance(fill_value, torch.Tensor):
        return torch.full(size, fill_value, dtype=dtype, **options)
    known = dtype or (torch.get_default_dtype() if fill_value.is_floating_point() else torch.int64)
    return fill_value.to(known).expand(size).clone()


# Replacements for functions with a per-call number as an argument.
OF_COLUMNS: dict[Any, Callable[..., Any]] = {
    **OF_NUMBERS,
    torch.tensor: _tensor,
    torch.full: _full,
    torch.Tensor.__getitem__: _item,
    torch.select: _select,
    torch.Tensor.select: _select,
}

# Out-of-place replacements for in-place changes of a tensor whose memory nothing else shares: per-call rows cannot be
# added to a tensor that is common to all calls.
PLAIN: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__iadd__: torch.add,
    torch.Tensor.__isub__: torch.sub,
    torch.Tensor.__imul__: torch.mul,
    torch.Tensor.__itruediv__: torch.div,
    torch.Tensor.add_: torch.add,
    torch.Tensor.sub_: torch.sub,
    torch.Tensor.mul_: torch.mul,
    torch.Tensor.div_: torch.div,
}


def _bilinear(
    one: torch.Tensor, other: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    made = torch.einsum("...i,kij,...j->...k", one, weight, other)
    return made if bias is None else made + bias


# Replacements for functions that torch cannot map over many calls.
BATCHED: dict[Any, Callable[..., Any]] = {torch.nn.functional.bilinear: _bilinear}

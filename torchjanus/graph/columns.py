"""Functions of torch that take a Python number, written for a number that is another in each of many calls: there it
is a tensor without dimensions. Knows nothing of where numbers come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.graph.standing_in import OF_NUMBERS

__all__ = ["OF_COLUMNS"]


def _item(tensor: torch.Tensor, key: Any) -> torch.Tensor:
    """``tensor[key]``, where indices may be tensors that stand for Python's integers."""
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
    """``tensor.select(dim, index)``."""
    if not isinstance(index, torch.Tensor):
        return tensor.select(dim, index)
    size = tensor.size(dim)
    known = torch.where(index < 0, index + size, index)
    return tensor.index_select(dim, known.reshape(1)).squeeze(dim)


# What stands for functions of which an argument is the number of a call.
OF_COLUMNS: dict[Any, Callable[..., Any]] = {
    **OF_NUMBERS,
    torch.Tensor.__getitem__: _item,
    torch.select: _select,
    torch.Tensor.select: _select,
}

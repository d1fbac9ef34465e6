"""How tensors lie in memory. Knows nothing of graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from torchjanus.core.kinds import isinstance

__all__ = ["Layout", "Lying", "extent", "layout_by", "layout_of", "lying_of", "number_of", "reinterpreted"]

Layout = tuple[tuple[int, ...], ...]  # for each dimension those whose sizes its stride is the product of
Lying = Layout | bool | None  # True: row by row; None: with gaps, or of no dimensions


def number_of(leaf: Any) -> Any:
    """A number instead of a symbolic one."""
    if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
        return leaf.node.hint if leaf.node.has_hint() else None
    return leaf


def extent(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The bytes from the first to one past the last element, within the storage."""
    start = tensor.storage_offset()
    if tensor.numel() == 0:
        return start, start
    reach = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return start * tensor.element_size(), (start + reach + 1) * tensor.element_size()


def reinterpreted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the memory from a tensor's first element to its last as one row of numbers of another dtype. It is a view
    of the tensor to autograd where that is between complex numbers and their parts."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    row = tensor.as_strided((count if tensor.numel() else 0,), (1,))
    row = row.conj() if row.is_conj() else row
    row = row._neg_view() if row.is_neg() else row
    if tensor.is_complex() and dtype == tensor.dtype.to_real():
        return torch.view_as_real(row).view(-1)
    if dtype.is_complex and tensor.dtype == dtype.to_real():
        return torch.view_as_complex(row[: count // 2 * 2].view(-1, 2))
    each = max(dtype.itemsize // row.element_size(), 1)
    return row[: count // each * each].view(dtype)


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """How it lies; None where there are gaps in it, or it has no elements."""
    return layout_by(tensor.size(), tensor.stride()) if tensor.layout == torch.strided else None


def layout_by(size: Sequence[int], stride: Sequence[int]) -> Layout | None:
    inner: dict[int, tuple[int, ...]] = {1: ()}  # dimensions of a stride, by that
    running = 1
    for dim in sorted(range(len(size)), key=stride.__getitem__):
        if size[dim] == 0:
            return None
        if size[dim] > 1:
            if stride[dim] != running:
                return None
            running *= size[dim]
            inner[running] = (*inner[stride[dim]], dim)
    if any(step not in inner for step in stride):
        return None
    return tuple(inner[step] for step in stride)


def lying_of(tensor: torch.Tensor) -> Lying:
    """How a tensor lies that an operation has made."""
    if type(tensor) is torch.Tensor or isinstance(tensor, FakeTensor):
        return _lying_of(tensor)
    with torch._C.DisableTorchFunction():  # that of a class of the program's sees only what the program does
        return _lying_of(tensor)


def _lying_of(tensor: torch.Tensor) -> Lying:
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_nested or tensor.dim() < 2:
        return None
    if not isinstance(tensor, FakeTensor):
        return True if tensor.is_contiguous() else layout_of(tensor)
    size, stride = list(map(number_of, tensor.size())), list(map(number_of, tensor.stride()))
    if None in (*size, *stride):
        return None
    rows = [math.prod(size[dim + 1 :]) for dim in range(len(size))]
    alike = all(length == 1 or one == other for length, one, other in zip(size, stride, rows, strict=True))
    return True if alike else layout_by(size, stride)

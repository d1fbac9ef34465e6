"""Layouts of tensors in memory. Knows nothing of graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from torchjanus.core.kinds import isinstance

__all__ = [
    "Layout", "ResultLayout", "extent", "layout_by", "layout_of", "number_of", "reinterpreted", "result_layout_of",
]  # fmt: skip

Layout = tuple[tuple[int, ...], ...]  # for each dimension those whose sizes its stride is the product of
# Of the result of an operation. True: contiguous; None: with gaps, or of less than two dimensions.
ResultLayout = Layout | bool | None


def number_of(leaf: Any) -> Any:
    """Return a number in place of a symbolic one: its hint, None if it has none; other leaves as they are."""
    if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
        return leaf.node.hint if leaf.node.has_hint() else None
    return leaf


def extent(tensor: torch.Tensor) -> tuple[Any, Any]:
    """Return the offsets in bytes, within the storage, of the first element and of the end of the last."""
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
    """Return the layout; None where there are gaps in it, or it has no elements."""
    return layout_by(tensor.size(), tensor.stride()) if tensor.layout == torch.strided else None


def layout_by(size: Sequence[int], stride: Sequence[int]) -> Layout | None:
    """Return the layout of a tensor with these sizes and strides; None as for ``layout_of``."""
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


def result_layout_of(tensor: torch.Tensor) -> ResultLayout:
    """Return the layout of a tensor that an operation has made."""
    if type(tensor) is torch.Tensor or isinstance(tensor, FakeTensor):
        return _result_layout_of(tensor)
    with torch._C.DisableTorchFunction():  # the program's class must see only the calls of the program
        return _result_layout_of(tensor)


def _result_layout_of(tensor: torch.Tensor) -> ResultLayout:
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

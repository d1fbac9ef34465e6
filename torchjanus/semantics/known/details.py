"""Reads of a tensor's metadata, memory and version that no mode and no subclass sees; tuples with other elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchjanus.rewrite.hooks.lookup import attributes_of

__all__ = ["memory_of", "tensor_detail", "tuple_like", "version_of"]


def tensor_detail(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return all that a graph holds constant about a tensor: class, dtype, shape, strides, device, autograd flags.

    The accessors of torch.Tensor are used: a subclass may answer in Python, or raise, as uninitialized parameters do.
    """
    with torch._C.DisableTorchFunction():
        nested = tensor.is_nested and tensor.layout == torch.strided  # nested tensors have no sizes
        strided = tensor.layout == torch.strided and not nested
        return (
            type(tensor).__name__,
            str(tensor.dtype).removeprefix("torch."),
            () if nested else tuple(torch.Tensor.size(tensor)),
            torch.Tensor.stride(tensor) if strided else "nested" if nested else str(tensor.layout),
            str(tensor.device),
            tensor.requires_grad,
            tensor.is_leaf,
        )


def memory_of(tensor: torch.Tensor) -> int:
    """Return an identifier of the tensor's storage; 0 if it is not known."""
    with torch._C.DisableTorchFunction():
        known = tensor.layout == torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return int(tensor.untyped_storage()._cdata) if known else 0


def version_of(tensor: torch.Tensor) -> int:
    """Return how many times the tensor has been changed in place; -1 if that is not counted."""
    with torch._C.DisableTorchFunction():
        return -1 if tensor.is_inference() else tensor._version


def tuple_like(value: tuple[Any, ...], parts: Iterable[Any]) -> Any:
    """Return a tuple of the class of ``value``, and with its attributes, that holds these elements."""
    if type(value) is tuple or type(value) is torch.Size:
        return type(value)(parts)
    made = tuple.__new__(type(value), parts)
    if type(attributes := attributes_of(value)) is dict:
        attributes_of(made).update(attributes)
    return made

"""What of a tensor a graph holds constant, in which memory it lies, and how often it has been changed.

Asked of tensors as they are: nobody sees it.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["memory_of", "tensor_detail", "version_of"]


def tensor_detail(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All about a tensor that a graph holds constant: class, dtype, shape, strides, device, autograd flags.

    Asked by torch.Tensor's own accessors: a subclass may answer in Python, or raise, as parameters that are not
    initialized do.
    """
    with torch._C.DisableTorchFunction():
        nested = tensor.is_nested and tensor.layout == torch.strided  # of these nobody may ask for sizes
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
    """Which memory it lies in; 0 for one of which that is not known."""
    with torch._C.DisableTorchFunction():
        known = tensor.layout == torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return int(tensor.untyped_storage()._cdata) if known else 0


def version_of(tensor: torch.Tensor) -> int:
    """How often it has been changed in place; -1 where that is not counted."""
    with torch._C.DisableTorchFunction():
        return -1 if tensor.is_inference() else tensor._version

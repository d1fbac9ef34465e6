"""Tensors without contents, which say only what another one was like: no memory is kept for them."""

from __future__ import annotations

import torch

__all__ = ["blank", "is_blank", "like"]


def blank(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same kind without contents."""
    made = like(tensor)
    made.untyped_storage().resize_(0)
    return made.requires_grad_(tensor.requires_grad)


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same size in memory of its own, of any contents."""
    with torch.no_grad():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def is_blank(tensor: torch.Tensor) -> bool:
    """Whether this is a tensor without contents."""
    return tensor.layout == torch.strided and tensor.numel() > 0 and not tensor.untyped_storage().nbytes()

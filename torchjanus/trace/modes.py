"""The ambient state of torch under which an operation ran. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Modes"]


@dataclass(frozen=True, slots=True)
class Modes:
    """The ambient state of torch under which a node ran. It must be in force again when the node is replayed."""

    grad: bool = True
    inference: bool = False
    autocast: tuple[tuple[str, torch.dtype, bool], ...] = ()  # (device type, dtype, cache enabled) where enabled
    default_dtype: torch.dtype = torch.float32

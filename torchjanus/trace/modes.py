"""The ambient state of torch under which an operation ran. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["ATTENTION", "Modes", "attention_switched_off"]

# The kernels of scaled_dot_product_attention, each with what says whether it may be chosen.
ATTENTION = tuple(
    (name, getter)
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if (getter := getattr(torch._C, f"_get_{name}_sdp_enabled", None)) is not None
)


def attention_switched_off() -> tuple[str, ...]:
    """Return the kernels of ``scaled_dot_product_attention`` that may not be chosen."""
    return tuple([name for name, is_enabled in ATTENTION if not is_enabled()])


@dataclass(frozen=True, slots=True)
class Modes:
    """The ambient state of torch under which a node ran. It must be in force again when the node is replayed."""

    grad: bool = True
    inference: bool = False
    autocast: tuple[tuple[str, torch.dtype, bool], ...] = ()  # (device type, dtype, cache enabled) where enabled
    default_dtype: torch.dtype = torch.float32
    without: tuple[str, ...] = ()  # the kernels of scaled_dot_product_attention that are switched off

    @property
    def is_plain(self) -> bool:
        """Whether nothing but the gradient mode and the default dtype decides what operations compute."""
        return not (self.autocast or self.inference or self.without)

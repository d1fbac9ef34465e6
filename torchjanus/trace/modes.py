"""The ambient state under which an operation or a run was made. Plain data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["ATTENTION", "Modes", "WarningFilters", "attention_switched_off"]

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


@dataclass(frozen=True, slots=True)
class WarningFilters:
    """Which warnings are shown, ignored or raised: ``warnings.filters``."""

    filters: tuple[Any, ...]

    @staticmethod
    def now() -> WarningFilters:
        return WarningFilters(tuple(warnings.filters))

    def differ(self, filters: Sequence[Any]) -> bool:
        """Whether these filters are others."""
        return self.filters != tuple(filters)

"""The ambient state under which an operation or a run was made. Plain data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["ATTENTION", "Modes", "WarningFilters", "attention_switched_off", "is_attention_met", "note_attention"]

# The kernels of scaled_dot_product_attention, each with what says whether it may be chosen.
ATTENTION = tuple(
    (name, getter)
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if (getter := getattr(torch._C, f"_get_{name}_sdp_enabled", None)) is not None
)


def attention_switched_off() -> tuple[str, ...]:
    """Return the kernels of ``scaled_dot_product_attention`` that may not be chosen."""
    return tuple([name for name, is_enabled in ATTENTION if not is_enabled()])


# Whether a watched run of this process has called what may use attention kernels, or asked which may be chosen. Graphs
# consist of what watched runs did, so until then none depends on these settings.
_attention_met = False
_OF_ATTENTION = ("attention", "transformer", "sdp")  # parts of the names of such functions


def note_attention(name: str) -> None:
    """Note that a watched run calls the function of torch with this name."""
    global _attention_met
    if not _attention_met:
        _attention_met = any(part in name for part in _OF_ATTENTION)


def is_attention_met() -> bool:
    """Whether a graph of this process may depend on which attention kernels are switched off."""
    return _attention_met


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

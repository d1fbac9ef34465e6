"""Arguments of framework calls, as the unwatched program would pass them and as the trace holds them.

Knows nothing of the calls.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import getattr, hasattr, is_one_of, isinstance
from torchjanus.semantics.record.recording import CONSTANT_TYPES, Recording
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, Traced, TracedInt, depends_on, plain

__all__ = ["Arguments", "bare"]


# Operators whose tensor methods are Python code in torch: a mode sees the call before it returns NotImplemented.
_NUMBERS = frozenset(map(id, (int, float, bool, complex)))
_REFLECTED = ("__rpow__", "__rfloordiv__", "__rmod__", "__rlshift__", "__rrshift__")


class Arguments:
    """The arguments of one run. ``ref(tensor, name)`` numbers a tensor that the function of this name uses."""

    def __init__(self, recording: Recording, ref: Callable[[torch.Tensor, str], TensorRef | None]) -> None:
        self.recording = recording
        self._ref = ref
        # Converts a foreign value to a number or a tensor, or returns it unchanged.
        self.convert_foreign: Callable[[Any], Any] | None = None

    def symbol(self, value: Any, name: str) -> Any:
        """Return an argument for the trace: TensorRefs for tensors, expressions for traced numbers."""
        if isinstance(value, torch.Tensor):
            return self._ref(value, name)
        if isinstance(value, Traced):
            return value.expr
        if (isinstance(value, CONSTANT_TYPES) and not isinstance(value, torch.Size)) or is_one_of(
            type(value), (int, float)
        ):
            return value
        if isinstance(value, list | tuple | collections.deque):
            parts = [self.symbol(v, name) for v in value]
            if not isinstance(value, tuple):  # torch.tensor() reads any sequence like a list
                return parts
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, dict):
            return {k: self.symbol(v, name) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(*(self.symbol(v, name) for v in (value.start, value.stop, value.step)))
        if self.convert_foreign is not None and (taken := self.convert_foreign(value)) is not value:
            return self.symbol(taken, name)
        if isinstance(value, int | float):  # IntEnum, numpy.float64 and the like
            return value
        if isinstance(value, type):
            return value
        self.recording.refuse(
            "argument-contents",
            f"{name} takes a {type(value).__name__}",
            "its contents are not part of the graph.",
            "Pass a tensor.",
        )
        return None

    def is_asked(self, value: Any) -> bool:
        """Whether the object's class has a reflected operator in Python, which Python calls after the tensor's."""
        if id(type(value)) in _NUMBERS or isinstance(value, torch.Tensor | Traced):
            return False
        return any(isinstance(getattr(type(value), name, None), types.FunctionType) for name in _REFLECTED)

    def fixed(self, value: Any, name: str) -> Any:
        """Return ``value`` with integers fetched from tensors held constant, since they may be sizes or indices."""
        if isinstance(value, TracedInt):
            fetched = depends_on(value.expr, Fetch)
            return self.recording.pin(value, f"argument of {name}") if fetched else value
        if type(value) is list or type(value) is tuple:
            return type(value)(self.fixed(part, name) for part in value)
        if isinstance(value, slice):
            return slice(*(self.fixed(part, name) for part in (value.start, value.stop, value.step)))
        return value

    def pin_inside(self, value: Any, why: str) -> None:
        if isinstance(value, Traced):
            self.recording.pin(value, why)
        elif isinstance(value, list | tuple | collections.deque):
            for part in value:
                self.pin_inside(part, why)
        elif isinstance(value, torch.Tensor):
            self._ref(value, why)


def bare(value: Any) -> Any:
    """Return the arguments as the unwatched program would pass them."""
    if isinstance(value, Traced):
        return plain(value)
    if type(value) is tuple or type(value) is torch.Size:
        return tuple(bare(v) for v in value)
    if type(value) is list:
        return [bare(v) for v in value]
    if type(value) is collections.deque:
        return collections.deque(map(bare, value), value.maxlen)
    if type(value) is dict:
        return {k: bare(v) for k, v in value.items()}
    if type(value) is slice:
        return slice(bare(value.start), bare(value.stop), bare(value.step))
    return value

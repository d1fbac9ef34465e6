"""The ``ctx`` that a watched autograd Function is given, and which of its methods torchjanus answers itself.

It keeps what the Function saves and marks, so that ``backward_code`` can record it and pass it to the real context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import getattr
from torchjanus.semantics.record.recording import Recording

__all__ = ["METHODS", "Context"]


class Context:
    """The ``ctx`` of a Function's watched forward and backward."""

    def __init__(self, real: Any, recording: Recording) -> None:
        self.needs_input_grad = real.needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.to_save: tuple[Any, ...] = ()
        self.dirty: tuple[Any, ...] = ()
        self.undifferentiable: tuple[Any, ...] = ()
        self.materialize_grads = True
        self.returned: list[torch.Tensor] = []
        self._real = real
        self._recording = recording

    def save_for_backward(self, *tensors: Any) -> None:
        self.to_save = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.undifferentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value

    def leave(self, bare: Callable[[Any], Any]) -> None:
        """End of the run: replace traced values by plain ones."""
        for name in vars(self).keys() - {"_real", "_recording"}:
            vars(self)[name] = bare(vars(self)[name])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._real, name)
        self._recording.refuse(
            "function-context", f"reads ctx.{name}", "only the common parts of a Function's context are watched.", ""
        )
        return value


METHODS = frozenset(f for f in vars(Context).values() if callable(f))

"""Watches uses of tensors that recursive calls return without making them: parameters and arguments (JANUS 4.2.1).

The trace represents such a result by a view, since another call may return another tensor. Eager returns the tensor
itself. Out: the tensor in the view's place where the program compares or reads it; operations that can distinguish the
two are refused.
"""

from __future__ import annotations

from typing import Any

from torchjanus.semantics.watch.objects.state import Part

__all__ = ["OF_LEAVES", "ResultViews"]

OF_LEAVES = frozenset({"is_leaf", "grad", "grad_fn", "retains_grad", "retain_grad", "_base", "_is_view"})


class ResultViews(Part):
    """Views in place of tensors that a recursive call has returned."""

    def compared(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Return the operands of an ``is``: the tensors in place of their views."""
        if self._is_refused_view(a, "compares") or self._is_refused_view(b, "compares"):
            return self.recording.bare(a), self.recording.bare(b)
        return a, b

    def read(self, obj: Any, name: str) -> Any:
        """Return the object of which the attribute ``name``, one of ``OF_LEAVES``, is read."""
        return self.recording.bare(obj) if self._is_refused_view(obj, f"asks for '{name}' of") else obj

    def _is_refused_view(self, value: Any, what: str) -> bool:
        """Whether a value is such a view. If it is, refuse the run."""
        if not self.recording.is_result_view(value):
            return False
        what = f"the step {what} a tensor that a recursive call returned and did not make"
        self.recording.refuse(
            "recursion-result-identity",
            what,
            "another call may return another one.",
            "Return tensors that the call makes.",
        )
        return True

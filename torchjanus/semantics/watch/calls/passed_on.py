"""Watch uses of tensors that recursive calls return without making them: parameters and arguments.

The trace represents such a result by a view, since another call may return another tensor. Eager returns the tensor
itself. Operations that can distinguish the two are refused.
"""

from __future__ import annotations

from typing import Any

from torchjanus.rewrite import Site
from torchjanus.semantics.watch.objects.base import WatchBase

__all__ = ["PassThroughWatch"]

_OF_LEAVES = frozenset({"is_leaf", "grad", "grad_fn", "retains_grad", "retain_grad", "_base", "_is_view"})


class PassThroughWatch(WatchBase):
    """The hooks that can distinguish a tensor from its view."""

    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if op in ("is", "is not") and (self._is_refused_view(a, "compares") or self._is_refused_view(b, "compares")):
            a, b = self.recording.bare(a), self.recording.bare(b)
        return super().native_compare(at, op, a, b)

    def load_attr(self, at: Site, obj: Any, name: str) -> Any:
        if name in _OF_LEAVES and self._is_refused_view(obj, f"asks for '{name}' of"):
            obj = self.recording.bare(obj)
        return super().load_attr(at, obj, name)

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

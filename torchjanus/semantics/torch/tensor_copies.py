"""``copy.deepcopy()`` of tensors: a clone, where nobody can tell the two apart; and parameters that the step makes.

Torch copies a tensor's storage, and knows by the memo which storages it has copied: two tensors that share memory are
copied to two that do. A clone is the same for a plain tensor that shares its memory with none of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.semantics.record.recording import Recording

__all__ = ["TensorCopies"]

# Makes a call and records another one of the same results: how it is made, what is recorded, and of what arguments.
Recorded = Callable[[Callable[[], Any], Callable[..., Any], tuple[Any, ...]], Any]


class TensorCopies:
    """Of one run."""

    def __init__(self, recording: Recording, recorded_as: Recorded) -> None:
        self.recording = recording
        self.recorded_as = recorded_as
        # By memo the storages that were copied; with the memo, so that no other takes its id.
        self._copied: dict[int, tuple[Any, set[int]]] = {}

    def deepcopy(self, tensor: torch.Tensor, memo: Any) -> Any:
        """``tensor.__deepcopy__(memo)``, recorded."""
        with torch._C.DisableTorchFunction():
            hindrance = self._hindrance(tensor, memo)
        if hindrance:
            what = f"copy.deepcopy() of a tensor that {hindrance}"
            self.recording.refuse("tensor-deepcopy", what, "a graph makes clones only.", "Use clone().")
            return self._really(tensor, memo)
        plain = self.recorded_as(tensor.detach, torch.Tensor.detach, (tensor,))
        made = self.recorded_as(lambda: self._really(tensor, memo), torch.Tensor.clone, (plain,))
        if made.requires_grad:
            self.recorded_as(lambda: made, torch.Tensor.requires_grad_, (made,))
        return made

    def parameter(self, data: torch.Tensor, requires_grad: bool) -> Any:
        """``nn.Parameter(data)``, recorded as what a graph makes of it: the class is only asked for in the step."""

        def really() -> Any:
            with torch._C.DisableTorchFunction():
                return torch.Tensor._make_subclass(torch.nn.Parameter, data, requires_grad)

        made = self.recorded_as(really, torch.Tensor.detach, (data,))
        if requires_grad:
            self.recorded_as(lambda: made, torch.Tensor.requires_grad_, (made,))
        return made

    def _really(self, tensor: torch.Tensor, memo: Any) -> Any:
        with torch._C.DisableTorchFunction():
            made = tensor.__deepcopy__(memo)
        self.recording.new_ids.update(key for key in memo if type(key) is int)  # torch has put some there
        return made

    def _hindrance(self, tensor: torch.Tensor, memo: Any) -> str:
        if type(tensor) is not torch.Tensor:
            return f"is a {type(tensor).__name__}"
        if not tensor.is_leaf:
            return "has a backward graph"  # an error, in eager
        if tensor.layout != torch.strided or tensor.is_quantized:
            return f"has layout {tensor.layout}"
        if tensor.is_conj() or tensor.is_neg():
            return "is a conjugate or negative view"
        if tensor.__dict__:
            return "has attributes of Python's"
        if tensor.grad is not None:
            return "has a gradient"
        storage = tensor.untyped_storage()
        if tensor.storage_offset() or storage.nbytes() != tensor.numel() * tensor.element_size():
            return "is a part of another"
        if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
            return "has gaps, or elements that share their memory"
        _, seen = self._copied.setdefault(id(memo), (memo, set()))
        if storage._cdata in seen:
            return "shares its memory with another one that was copied"
        seen.add(storage._cdata)
        return ""

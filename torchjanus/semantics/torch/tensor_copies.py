"""``copy.deepcopy()`` of tensors, recorded as a clone where the two are equivalent, and parameters that the step makes.

Torch copies a tensor's storage, and finds in the memo the storages that it has copied: copies of two tensors that share
memory share memory. A clone is equivalent for a plain tensor that shares no memory with the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.semantics.record.recording import Recording

__all__ = ["TensorCopies"]

# Makes a call and records another with the same results: the call, the recorded function, and its arguments.
Recorded = Callable[[Callable[[], Any], Callable[..., Any], tuple[Any, ...]], Any]


class TensorCopies:
    """The copies of one run."""

    def __init__(self, recording: Recording, recorded_as: Recorded) -> None:
        self.recording = recording
        self.recorded_as = recorded_as
        # The copied storages by memo; holding the memo keeps its id unique.
        self._copied: dict[int, tuple[Any, set[int]]] = {}

    def deepcopy(self, tensor: torch.Tensor, memo: Any) -> Any:
        """Return ``tensor.__deepcopy__(memo)``, recorded."""
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
        """Return ``nn.Parameter(data)``, recorded without its class, which only the step inspects."""

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
        self.recording.new_ids.update(key for key in memo if type(key) is int)  # torch has added ids to the memo
        return made

    def _hindrance(self, tensor: torch.Tensor, memo: Any) -> str:
        if type(tensor) is not torch.Tensor:
            return f"is a {type(tensor).__name__}"
        if not tensor.is_leaf:
            return "has a backward graph"  # eager raises
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

"""Watch subscripts that are tensors: ``words[scores.argmax()]``, ``data[i : i + 64]``.

Native code would call ``__index__`` of the tensor. Instead the number is fetched first, as by ``int(i)``, so that it is
traced.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.protocols.conversions import INDEX
from torchjanus.semantics.protocols.protocols import Protocols
from torchjanus.semantics.watch.objects.state import Part, WatchState

__all__ = ["TensorIndices", "is_index"]


class TensorIndices(Part):
    """Tensors in the subscripts of foreign arrays."""

    def __init__(self, state: WatchState, semantics: Protocols) -> None:
        super().__init__(state)
        self.semantics = semantics

    def in_numbers(self, at: Site, key: Any) -> Any:
        """Return the subscript of a foreign array with tensors replaced by numbers and arrays."""
        if type(key) is slice:
            parts = (key.start, key.stop, key.step)
            converted_parts = [self.semantics.special_result(at, part, INDEX) for part in parts]
            return key if all(a is b for a, b in zip(parts, converted_parts, strict=True)) else slice(*converted_parts)
        if type(key) is tuple and self.recording.owner(key) is None:
            found = [self.in_numbers(at, part) for part in key]
            return key if all(a is b for a, b in zip(key, found, strict=True)) else tuple(found)
        if not isinstance(key, torch.Tensor):
            return key
        number = self.semantics.special_result(at, key, INDEX)
        return self.semantics.call_native(at, torch.Tensor.numpy, (key,), {}) if number is key else number


def is_index(tensor: Any) -> bool:
    """Whether a value is a tensor that Python takes for an index."""
    if not isinstance(tensor, torch.Tensor):
        return False
    with torch._C.DisableTorchFunction():
        kind = tensor.dtype
        return tensor.numel() == 1 and not (kind.is_floating_point or kind.is_complex or kind is torch.bool)

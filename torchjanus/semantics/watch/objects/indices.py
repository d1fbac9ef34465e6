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
from torchjanus.semantics.watch.objects.base import WatchBase

__all__ = ["IndexWatch"]


class IndexWatch(WatchBase):
    """The hooks that fetch a tensor's number where native code would."""

    def special_result(self, at: Site, value: Any, names: tuple[str, ...]) -> Any:
        if names == INDEX and isinstance(value, torch.Tensor) and _is_index(value):
            return self.call_native(at, int, (value,), {})
        return super().special_result(at, value, names)

    def _index(self, at: Site, obj: Any, key: Any) -> Any:
        return self._in_numbers(at, key) if self.natives.is_foreign(obj) else super()._index(at, obj, key)

    def _in_numbers(self, at: Site, key: Any) -> Any:
        """Return the subscript of a foreign array with tensors replaced by numbers and arrays."""
        if type(key) is slice:
            parts = (key.start, key.stop, key.step)
            converted_parts = [self.special_result(at, part, INDEX) for part in parts]
            return key if all(a is b for a, b in zip(parts, converted_parts, strict=True)) else slice(*converted_parts)
        if type(key) is tuple and self.recording.owner(key) is None:
            found = [self._in_numbers(at, part) for part in key]
            return key if all(a is b for a, b in zip(key, found, strict=True)) else tuple(found)
        if not isinstance(key, torch.Tensor):
            return key
        number = self.special_result(at, key, INDEX)
        return self.call_native(at, torch.Tensor.numpy, (key,), {}) if number is key else number


def _is_index(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        kind = tensor.dtype
        return tensor.numel() == 1 and not (kind.is_floating_point or kind.is_complex or kind is torch.bool)

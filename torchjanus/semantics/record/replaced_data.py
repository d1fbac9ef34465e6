"""Decide whether a graph can do ``x.data = y``, and keep the memory in which tensors were before it.

A graph assumes size, strides and dtype of its inputs, and that an input which it changes shares its memory with no
other. The assignment itself is recorded elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of
from torchjanus.trace.layout import extent

__all__ = ["ReplacedMemory", "hindrance_of"]

_KINDS = (torch.Tensor, torch.nn.Parameter)


def hindrance_of(tensor: torch.Tensor, other: Any) -> str:
    """Return why a graph cannot give ``tensor`` the memory of ``other``, or an empty string if it can."""
    with torch._C.DisableTorchFunction():
        if (
            not is_one_of(type(tensor), _KINDS)
            or not is_one_of(type(other), _KINDS)
            or torch.is_inference_mode_enabled()
        ):
            return "one of them is no ordinary tensor"
        if any(torch._C._functorch.is_functorch_wrapped_tensor(one) or one.is_inference() for one in (tensor, other)):
            return "one of them is no ordinary tensor"
        if tensor.layout != torch.strided or other.layout != torch.strided:
            return "one of them is no dense tensor"
        if not tensor.is_leaf or tensor._is_view():
            return "the tensor is computed from others"
        return "" if _kind(tensor) == _kind(other) else "the two differ in size, strides, dtype or device"


class ReplacedMemory:
    """The memory of tensors before ``x.data = y`` replaced it."""

    def __init__(self) -> None:
        self._before: dict[
            int, tuple[torch.Tensor, torch.Tensor]
        ] = {}  # by id of an input: it, and an alias of its old memory
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # kept alive, so that no storage address is reused

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._before

    def record_memory(self, tensor: torch.Tensor, other: torch.Tensor, found: bool) -> None:
        """Record the memory of ``tensor`` before it gets that of ``other``. ``found``: it existed before the call."""
        with torch._C.DisableTorchFunction():
            alias = tensor.detach()
            self._pairs.append((alias, other.detach()))
            if found:
                self._before.setdefault(id(tensor), (tensor, alias))

    def joined(self, memory: Sequence[int]) -> list[int]:
        """Return the memory ids with those united that one tensor has used in succession."""
        same: dict[int, int] = {}
        for pair in self._pairs:
            places = [_memory(one) for one in pair]
            known = [same.setdefault(place, place) for place in places]
            same = {place: min(known) if one in known else one for place, one in same.items()}
        return [same.get(place, place) for place in memory]

    def shared(self, inputs: Iterable[torch.Tensor]) -> bool:
        """Whether an input overlaps the old memory of another input that has been replaced."""
        if not self._before:
            return False
        others = {id(tensor): tensor for tensor in inputs if id(tensor) not in self._before}
        with torch._C.DisableTorchFunction():
            moved = [alias for _, alias in self._before.values()]
            tensors = [*moved, *(tensor for tensor in others.values() if is_one_of(type(tensor), _KINDS))]
            return any(_overlap(one, other) for place, one in enumerate(moved) for other in tensors[place + 1 :])


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.device, tensor.size(), tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    if other.layout != torch.strided or _memory(one) != _memory(other):
        return False
    (low, high), (first, last) = extent(one), extent(other)
    return bool(low < last and first < high)

"""``x.data = y`` in a watched run: whether a graph can do the same, and what lay where before.

A graph takes tensors of the sizes and kinds that they had, and holds each input to be alone in its memory where it is
changed. Knows nothing of how the assignment is recorded.
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
    """Why a graph cannot put ``tensor`` on the memory of ``other``; empty where it can."""
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
    """Where tensors lay before the run put them elsewhere."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of those that were there before the call
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # kept, so that no memory is found twice

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._before

    def about_to(self, tensor: torch.Tensor, other: torch.Tensor, found: bool) -> None:
        """Note where it lies: it is about to be put where ``other`` is. ``found``: it was there before the call."""
        with torch._C.DisableTorchFunction():
            lying = tensor.detach()
            self._pairs.append((lying, other.detach()))
            if found:
                self._before.setdefault(id(tensor), (tensor, lying))

    def joined(self, memory: Sequence[int]) -> list[int]:
        """Which memory each tensor of a run lies in: what a tensor lay in one after the other counts as one."""
        same: dict[int, int] = {}
        for pair in self._pairs:
            places = [_memory(one) for one in pair]
            known = [same.setdefault(place, place) for place in places]
            same = {place: min(known) if one in known else one for place, one in same.items()}
        return [same.get(place, place) for place in memory]

    def shared(self, inputs: Iterable[torch.Tensor]) -> bool:
        """Whether one of these lay in memory of another that has been put elsewhere."""
        if not self._before:
            return False
        others = {id(tensor): tensor for tensor in inputs if id(tensor) not in self._before}
        with torch._C.DisableTorchFunction():
            moved = [lying for _, lying in self._before.values()]
            lying = [*moved, *(tensor for tensor in others.values() if is_one_of(type(tensor), _KINDS))]
            return any(_overlap(one, other) for place, one in enumerate(moved) for other in lying[place + 1 :])


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.device, tensor.size(), tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    if other.layout != torch.strided or _memory(one) != _memory(other):
        return False
    (low, high), (first, last) = extent(one), extent(other)
    return bool(low < last and first < high)

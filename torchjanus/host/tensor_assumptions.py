"""Assumptions on tensors: what the tensor at an access path is like, and which tensors share no memory.

See ``assumption`` for what assumptions are. ``Memory``, ``are_disjoint`` and ``distinct`` compare addresses.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import isinstance
from torchjanus.host.assumption import Args, Assumption, AtAccessPath, Kwargs
from torchjanus.host.checks import BROKEN

__all__ = ["Distinct", "Memory", "TensorKind", "are_disjoint", "distinct"]


# The fields of ``TensorKind.describe``, without those that the short form of a tensor shows.
_FACETS = ("class", "", "", "strides", "device", "requires_grad", "is_leaf")


@dataclass(frozen=True, slots=True, eq=False)
class TensorKind(AtAccessPath):
    """The access path holds a tensor with this class, dtype, shape, strides, device and autograd flags."""

    example: torch.Tensor
    detail: tuple[Any, ...]
    describe: Any  # tensor -> detail
    free: tuple[bool, ...] = ()  # for each dimension whether its size may vary; empty: none
    strides: tuple[int | tuple[int, ...], ...] = ()  # then: for each its stride, or the dimensions whose product it is

    @property
    def held(self) -> tuple[Any, ...]:
        """The fixed part of the detail: without sizes that may vary, and without strides, which depend on them."""
        if not self.free:
            return self.detail
        sizes = tuple(None if free else size for free, size in zip(self.free, self.detail[2], strict=True))
        return (*self.detail[:2], sizes, *self.detail[4:])

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        now = self.access_path.read(args, kwargs)
        if not isinstance(now, torch.Tensor):
            return False
        if not self.free:
            return bool(self.describe(now) == self.detail)
        met, held = self.describe(now), self.detail
        if (*met[:2], *met[4:]) != (*held[:2], *held[4:]) or len(met[2]) != len(held[2]):
            return False
        fixed = zip(self.free, met[2], held[2], strict=True)
        wanted = tuple(s if isinstance(s, int) else math.prod(met[2][dim] for dim in s) for s in self.strides)
        return all(free or size == other for free, size, other in fixed) and met[3] == wanted

    def observed(self, args: Args, kwargs: Kwargs) -> str:
        """Return what is there now, and how it differs beyond what its short form shows."""
        text = super(TensorKind, self).observed(args, kwargs)
        try:
            now = self.access_path.read(args, kwargs)
        except BROKEN:
            return text
        if not isinstance(now, torch.Tensor):
            return text
        met = self.describe(now)
        follow = bool(self.free) and met[2] != self.detail[2]  # strides depend on sizes that may vary
        pairs = zip(_FACETS, met, self.detail, strict=True)
        differing = [
            f"{name} {there} instead of {held}"
            for name, there, held in pairs
            if name and there != held and not (follow and name == "strides")
        ]
        return f"{text} ({', '.join(differing)})" if differing else text

    def __str__(self) -> str:
        _, dtype, shape, _, device, *_ = self.detail
        where = "" if device == "cpu" else f" on {device}"
        free = self.free or (False,) * len(shape)
        sizes = ", ".join("?" if any_size else str(size) for any_size, size in zip(free, shape, strict=True))
        return f"{self.access_path} is {dtype}[{sizes}]{where}"


@dataclass(frozen=True, slots=True, eq=False)
class Distinct(Assumption):
    """Tensors that are new at each call share no memory with each other or with a pinned input."""

    fresh: tuple[AccessPath, ...]
    pinned: tuple[torch.Tensor, ...]
    mutually: bool  # whether one of the new ones is changed, so that they must not share with each other either
    moving: tuple[torch.Tensor, ...] = ()  # further pinned inputs, whose memory is another at each call
    of: str = "the graph changes"  # what the pinned ones are, in words

    def access_paths(self) -> Iterable[AccessPath]:
        return self.fresh

    def _instead(self, values: Sequence[Any]) -> str:
        return "memory is shared"

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        fresh = [tensor for o in self.fresh for tensor in _read_of(o, args, kwargs)]
        held = Memory(self.pinned)
        alone = not any(held.holds(t.data_ptr()) for t in fresh) and are_disjoint(fresh, self.moving)
        return alone and (not self.mutually or distinct(fresh))

    def __str__(self) -> str:
        return f"no memory shared with what {self.of}: {', '.join(map(str, self.fresh))}"


def _read_of(access_path: AccessPath, args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """Return the tensor; for a copy, the tensors that it is made of."""
    if access_path.step is Step.OF and access_path.base is not None:
        return [part for part in access_path.base.read(args, kwargs) if isinstance(part, torch.Tensor)]
    return [access_path.read(args, kwargs)]


class Memory:
    """The address ranges of some tensors' storages."""

    __slots__ = ("ends", "starts")

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        self.starts = sorted(storages)
        self.ends = [start + storages[start] for start in self.starts]

    def holds(self, address: int) -> bool:
        """Whether the address is in one of them. A tensor shares memory with one of the tensors if its first element
        does."""
        place = bisect_right(self.starts, address) - 1
        return place >= 0 and address < self.ends[place]


def are_disjoint(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Whether none of ``some`` shares memory with one of ``others``."""
    memory = {t.untyped_storage().data_ptr() for t in others}
    return memory.isdisjoint(t.untyped_storage().data_ptr() for t in some)


def distinct(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no two of the tensors share memory."""
    return len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)

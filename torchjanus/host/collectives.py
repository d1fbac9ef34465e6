"""Collectives as extern calls: functions of the tensors they are given, which they do not change.

A graph holds its changes back, so a collective is made on copies, and what it has written is its result. Who asks for
it again takes that from the journal: other processes take part in a collective once. Knows nothing of graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.caches import Interned
from torchjanus.trace.effects import Effects

__all__ = [
    "BEGINNING", "BEGINNING_EARLY", "COMMUNICATING", "Collective", "Started", "buffers_broadcast", "collective",
    "communicated", "completed", "of_buckets",
]  # fmt: skip

# All collectives of a process keep their order, of whichever group they are.
COMMUNICATING = Effects(reads=frozenset({"processes"}), writes=frozenset({"processes"}))
BEGINNING = replace(COMMUNICATING, begins="here")  # its end is waited for by ``completed``
BEGINNING_EARLY = replace(COMMUNICATING, begins="early")
Layout = tuple[tuple[str, int, bool], ...]  # parameters with tensors: name, how many (-1: one, no list), written


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """A collective that has begun: what it gives when ``work`` is done."""

    work: Any
    tensors: list[torch.Tensor]


@dataclass(slots=True)
class Communicated:
    """What the graphs of this process have communicated: collectives, the bytes that they were given, and the seconds
    that the process spent in them, mostly waiting for others."""

    collectives: int = 0
    bytes: int = 0
    seconds: float = 0.0


communicated = Communicated()


class Collective:
    """``Collective(fn, layout)(*tensors, **rest)`` makes the collective ``fn`` on copies, and returns those it wrote
    to; one tensor as itself. What ``fn`` itself returns, if anything, comes first in a list then.

    A bucket of gradients is not copied: nothing else reads what the graph packs into it."""

    __module__ = "torch.distributed"

    def __init__(self, fn: Callable[..., Any], layout: Layout, starts: bool, objects: Sequence[str]) -> None:
        """``starts``: return a ``Started``."""
        self.fn, self.layout, self.starts, self.objects = fn, layout, starts, objects
        self.__qualname__ = fn.__name__
        self._copies = fn is not bucket_reduced

    @property
    def sums(self) -> bool:
        """Whether what it gives is computed from the tensors of all processes together."""
        return self.fn.__name__ in _SUMS

    def __call__(self, /, *tensors: torch.Tensor, **rest: Any) -> Any:
        given, written, place = dict(rest), [], 0
        for name, count, writes in self.layout:
            taken = [each.detach() for each in tensors[place : place + abs(count)]]
            place += abs(count)
            if writes:
                taken = [each.clone() for each in taken] if self._copies else taken
                written += taken
            given[name] = taken[0] if count < 0 else taken
        lists = [list(given[name]) for name in self.objects]
        given.update(zip(self.objects, lists, strict=True))
        communicated.collectives += 1
        communicated.bytes += sum(each.numel() * each.element_size() for each in tensors)
        begun = time.perf_counter()
        result = self.fn(**given)
        communicated.seconds += time.perf_counter() - begun
        if self.starts:
            return Started(result, written)
        return self.gives(result, written, lists)

    def gives(self, result: Any, written: list[torch.Tensor], lists: list[list[Any]]) -> Any:
        """Return the result of the extern call."""
        if lists:
            return lists[0]
        if result is None and len(written) <= 1:
            return written[0] if written else None
        return written if result is None else [result, *written]


def completed(started: Started) -> list[torch.Tensor]:
    """Wait for a collective, and return what it has written."""
    begun = time.perf_counter()
    if started.work is not None:
        started.work.wait()
    communicated.seconds += time.perf_counter() - begun
    return [*started.tensors]  # not what the program has handed over


completed.__module__ = "torch.distributed"

_SUMS = frozenset("all_reduce reduce_scatter reduce_scatter_single reduce_scatter_tensor bucket_reduced".split())
_COLLECTIVES: Interned[Collective] = Interned()


def collective(fn: Callable[..., Any], layout: Layout, starts: bool, objects: tuple[str, ...]) -> Collective:
    """Return the Collective of these. There is one for each, so that it can be compared by identity."""
    return _COLLECTIVES.get((fn, layout, starts), lambda: Collective(fn, layout, starts, objects))


def bucket_reduced(tensor: torch.Tensor, group: Any) -> Any:
    """Begin to add up a bucket of gradients over all processes, as ``DistributedDataParallel`` does."""
    return torch.distributed.all_reduce(tensor, group=group, async_op=True)


def buffers_broadcast(tensors: list[torch.Tensor], group: Any, size: int) -> None:
    """Give all processes the buffers of the first one, as ``DistributedDataParallel`` does."""
    torch.distributed._broadcast_coalesced(group, tensors, size, 0)  # type: ignore[attr-defined]


def of_buckets() -> Collective:
    """Return the extern call that begins to reduce one bucket."""
    return collective(bucket_reduced, (("tensor", -1, True),), True, ())

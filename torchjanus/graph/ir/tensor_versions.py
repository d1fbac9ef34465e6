"""Whether a tensor of a run is unchanged, according to torch's version counters.

Tensors that share memory share a counter, except ``x.data``, which has its own: changes through it do not count for
``x``. So all counters of one memory are compared. Knows nothing of graphs.
"""

from __future__ import annotations

import torch

__all__ = ["GET_DATA", "Changes", "memory_of"]

GET_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def memory_of(tensor: torch.Tensor) -> int:
    """Return a number that is equal for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)


class Changes:
    """The version counters of one run."""

    def __init__(self) -> None:
        self._counted: dict[int, list[torch.Tensor]] = {}  # tensors with counters of their own, by memory

    def part(self, tensor: torch.Tensor, data: torch.Tensor) -> None:
        """Record that ``data`` is ``tensor.data``: from now on each has its own counter."""
        self._counted.setdefault(memory_of(tensor), []).extend((tensor, data))

    def of(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Return the current versions; empty for memory of an inference tensor, which has no counter."""
        counted = (tensor, *self._counted.get(memory_of(tensor), ()))
        return () if any(one.is_inference() for one in counted) else tuple(one._version for one in counted)

    def are_as(self, tensor: torch.Tensor, before: tuple[int, ...]) -> bool:
        """Whether the tensor is known to be unchanged since its versions were ``before``."""
        return bool(before) and self.of(tensor) == before

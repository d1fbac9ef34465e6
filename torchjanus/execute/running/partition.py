"""Runs forward and backward graphs of loops, switches and recursive calls by ATen calls: what all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from torchjanus.execute.running.printing import ReplaySource

__all__ = ["apart", "printed"]


class _Direction(Protocol):
    @property
    def graph(self) -> torch.fx.GraphModule: ...
    @property
    def sources(self) -> Sequence[Any]: ...


def printed(direction: _Direction) -> Callable[[Sequence[Any], Sequence[float]], list[torch.Tensor]]:
    """Return a forward or backward graph as a function of its arguments."""
    source = ReplaySource(direction.graph, len(direction.sources))
    return source.compute(source.generate())  # type: ignore[no-any-return]


def apart(tensors: list[torch.Tensor], *given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors without shared memory: operators may not return tensors that share memory with each other or
    with arguments."""
    seen = {tensor.untyped_storage()._cdata for some in given for tensor in some}
    for position, tensor in enumerate(tensors):
        memory = tensor.untyped_storage()._cdata
        if memory in seen or tensor._is_view():
            tensors[position] = tensor.clone()
        seen.add(tensors[position].untyped_storage()._cdata)
    return tensors

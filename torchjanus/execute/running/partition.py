"""What running halves by ATen calls has in common, be they of iterations, of choices or of recursive calls."""

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
    """A half as a function of what it is given."""
    source = ReplaySource(direction.graph, len(direction.sources))
    return source.compute(source.generate())  # type: ignore[no-any-return]


def apart(tensors: list[torch.Tensor], *given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Operators may not return what shares memory, also not with what they were given."""
    seen = {tensor.untyped_storage()._cdata for some in given for tensor in some}
    for position, tensor in enumerate(tensors):
        memory = tensor.untyped_storage()._cdata
        if memory in seen or tensor._is_view():
            tensors[position] = tensor.clone()
        seen.add(tensors[position].untyped_storage()._cdata)
    return tensors

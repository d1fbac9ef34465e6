"""Takes a graph's tensor updates back, where what comes after them may still raise. Knows nothing of the heap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torchjanus.execute.comparing import duplicate
from torchjanus.execute.running.gate import Generators, State
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["Rollback", "Saved"]


@dataclass(frozen=True, slots=True)
class Saved:
    """Tensors, what was in them, and the states of the generators."""

    tensors: Sequence[torch.Tensor]
    contents: Sequence[torch.Tensor]
    generators: State


class Rollback:
    """Of one graph: saves inputs that it updates, and the generators that it draws from."""

    def __init__(self, lowered: Lowered) -> None:
        self.generators = Generators(lowered)

    def save(self, tensors: Sequence[torch.Tensor]) -> Saved:
        """What the graph is about to change."""
        return Saved(tensors, [duplicate(tensor.detach()) for tensor in tensors], self.generators.save())

    def restore(self, saved: Saved) -> None:
        """Put it back."""
        with torch.no_grad():
            for tensor, content in zip(saved.tensors, saved.contents, strict=True):
                tensor.copy_(content)
        self.generators.restore(saved.generators)

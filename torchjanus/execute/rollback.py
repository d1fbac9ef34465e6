"""Undoes a graph's tensor updates, where what follows them may still raise. It does not know the heap."""

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
    """Tensors, their old contents, and the states of the generators."""

    tensors: Sequence[torch.Tensor]
    contents: Sequence[torch.Tensor]
    generators: State


class Rollback:
    """Saves the inputs that one graph updates, and the generators that it draws from."""

    def __init__(self, lowered: Lowered) -> None:
        self.generators = Generators(lowered)

    def save(self, tensors: Sequence[torch.Tensor]) -> Saved:
        """Return what the graph is about to change."""
        return Saved(tensors, [duplicate(tensor.detach()) for tensor in tensors], self.generators.save())

    def restore(self, saved: Saved) -> None:
        """Restore it."""
        with torch.no_grad():
            for tensor, content in zip(saved.tensors, saved.contents, strict=True):
                tensor.copy_(content)
        self.generators.restore(saved.generators)

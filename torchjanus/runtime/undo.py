"""Takes a graph's tensor updates back, where what follows them may still raise. Knows nothing of the heap."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchjanus.execute.gate import Generators, State
from torchjanus.execute.trust import duplicate
from torchjanus.graph.lowered import Lowered

__all__ = ["Undo"]

Saved = tuple[list[torch.Tensor], State]


class Undo:
    """Of one graph: copies of the inputs that it updates, and its generators."""

    def __init__(self, lowered: Lowered) -> None:
        self._generators = Generators(lowered)

    def save(self, mutated: Sequence[torch.Tensor]) -> Saved:
        """What the graph is about to change."""
        return [duplicate(tensor.detach()) for tensor in mutated], self._generators.save()

    def restore(self, mutated: Sequence[torch.Tensor], saved: Saved) -> None:
        """Put it back."""
        contents, states = saved
        with torch.no_grad():
            for tensor, content in zip(mutated, contents, strict=True):
                tensor.copy_(content)
        self._generators.restore(states)

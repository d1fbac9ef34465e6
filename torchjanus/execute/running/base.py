"""What every executor offers: run a lowered graph, check its flags, and commit all of it or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from torchjanus.graph.ir.lowered import Lowered

__all__ = ["Executable", "Updating", "Violated"]

Numbers = Sequence[float | int]


@dataclass(frozen=True, slots=True)
class Violated:
    """Some assertions did not hold, by their numbers. Nothing was changed, and the generators are as they were."""

    assertions: tuple[int, ...]


class Updating(Exception):
    """Something raised (no memory, say) while inputs were being updated: the call cannot be made again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"while inputs were updated: {error}")
        self.error = error


class Executable(Protocol):
    """A lowered graph that can be run."""

    name: str
    lowered: Lowered

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """Run the graph on live inputs and commit: the mutated inputs hold their new contents afterwards.

        Returns the fresh values (see Lowered). If an assertion fails, or anything but Updating is raised, then no input
        has changed and the generators are put back. ``.grad`` and the results are the caller's to make.
        """
        ...

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether it is made for inputs of these sizes: where it is not, ``run`` lets replay make the call."""
        ...

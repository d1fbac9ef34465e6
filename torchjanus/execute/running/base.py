"""The interface of executors: run a lowered graph, check its flags, and commit all or nothing (JANUS 4.2.3).

In: the graph's inputs and host numbers. Out: its values; or ``Violated`` where an assertion does not hold, and nothing
has changed. Raises ``Updating`` where an update of a tensor itself fails.
"""

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
    """The numbers of the assertions that did not hold. Nothing was changed, and the generators are restored."""

    assertions: tuple[int, ...]


class Updating(Exception):
    """Something raised (for lack of memory, say) while inputs were being updated: the call cannot be repeated."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"while inputs were updated: {error}")
        self.error = error


class Executable(Protocol):
    """A lowered graph that can be run."""

    name: str
    lowered: Lowered

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """Run the graph on live inputs and commit: the mutated inputs hold their new contents afterwards.

        Returns the fresh values (see Lowered). If an assertion fails, or anything but Updating is raised, no input has
        changed and the generators are restored. The caller sets ``.grad`` and makes the results.
        """
        ...

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether it is made for inputs of these sizes; if not, ``run`` uses replay."""
        ...

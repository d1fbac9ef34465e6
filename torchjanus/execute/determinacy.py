"""Examines a disagreement of numbers between an artifact and replay: asks replay how well determined they are.

Replay is run again on the call's own inputs, with their last bits changed. If its result varies as much as the
artifact's differed, there is no disagreement: the gradient of a bias in front of a BatchNorm is only rounding, and Adam
amplifies it to full size. The first change is of the size of rounding. The next are as large as the rounding of fifty
layers. Then come some in between, for jumps that only few changes cause: one activation near zero that falls on the
other side of a ReLU changes the gradients by a thousandth (seen with ResNet50). The changes that explain most come
first. A question takes one run of the step, so a call asks only one, and the inputs are kept until the last question.
This module does not know the artifact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.execute.comparing import ONE, distance, duplicate, nudge, size_of
from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Numbers, Violated
from torchjanus.execute.running.gate import Generators, State
from torchjanus.graph.recursion.cells.invoke_op import laid_now, laid_out

__all__ = ["NUDGES", "DeterminacyCheck", "Suspect"]

# Changes of the inputs (units in the last place), and the multiple of the resulting difference that counts as rounding.
NUDGES = ((2, 16.0), (64, 2.0), (64, 2.0), (16, 4.0), (16, 4.0), (16, 4.0), (16, 4.0), (2, 16.0))


@dataclass(slots=True)
class Suspect:
    """A tensor that disagreed by ``error``: the fresh value number ``value``, or the update of input number ``update``.
    ``bare``: the expected change is zero, so the error is absolute."""

    error: float
    judged: Any
    expected: torch.Tensor  # by replay
    value: int = -1
    update: int = -1
    bare: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Identifies the tensor in every call."""
        return self.value, self.update

    def keep(self) -> None:
        """Copy what was expected, since the tensor may change."""
        self.expected = duplicate(self.expected.detach())


class DeterminacyCheck:
    """The disagreements of one call, and all that is needed to make the call again."""

    def __init__(self, inputs: Sequence[torch.Tensor], slots: Numbers, before: State, suspects: list[Suspect]) -> None:
        """``inputs``: copies of the contents before the call, owned by this object; ``before``: the generators then."""
        self.suspects = suspects
        self.spreads: dict[tuple[int, int], float] = {}  # of suspects that the smallest changes have explained
        self._inputs = inputs
        self._slots = slots
        self._before = before
        self._forests = laid_now()  # the recursive calls that were made
        self._asked = 0

    @property
    def over(self) -> bool:
        """Whether no question is left."""
        return self._asked == len(NUDGES)

    def ask(self, replay: Replay, generators: Generators) -> None:
        """Run replay once more, and remove the suspects whose disagreement that explains."""
        units, times = NUDGES[self._asked]
        seed, self._asked = self._asked * len(self._inputs), self._asked + 1
        now = generators.save()
        generators.restore(self._before)
        nudged = [nudge(tensor, units, seed + number) for number, tensor in enumerate(self._inputs)]
        try:
            with laid_out(self._forests):
                values = replay.run([*nudged], self._slots)
        except Exception:  # the program never had such inputs: this shows nothing
            return
        finally:
            generators.restore(now)
        if isinstance(values, Violated):
            return
        left = []
        for suspect in self.suspects:
            spread = self._spread(suspect, values, nudged, units, seed)
            if suspect.error >= times * spread:
                left.append(suspect)
            elif units == NUDGES[0][0] and not suspect.bare:
                self.spreads[suspect.place] = spread
        self.suspects = left

    def _spread(
        self, suspect: Suspect, values: Sequence[torch.Tensor], nudged: Sequence[torch.Tensor], units: int, seed: int
    ) -> float:
        """Return how far replay's own result differs after the change."""
        index, expected = suspect.update, suspect.expected
        met = values[suspect.value] if index < 0 else nudged[index]
        if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
            return float(not torch.equal(expected, met))
        if index < 0:
            return distance(expected, met, ONE if suspect.bare else size_of(expected))
        old = self._inputs[index]
        start = nudge(old, units, seed + index)  # from there it was updated
        size = ONE if suspect.bare else size_of(expected, old)
        return distance(expected, met, size, (old, start), update=True)

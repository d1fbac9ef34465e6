"""A doubt: numbers of an artifact and of replay disagreed, and replay is asked how well determined they are.

Replay is run again on the call's own inputs, changed in their last bits. What varies under replay alone as much as it
disagreed (the gradient of a bias in front of a BatchNorm is nothing but rounding, and Adam blows it up to full size) is
no disagreement. The first change is of the size of rounding. The next are as large as what fifty layers round, and
then come some in between, for a jump that only few changes bring about: one of many activations next to zero that comes
out on the other side of a ReLU takes a step of a thousandth in the gradients (ResNet50 was seen to be turned down for
such a step). Whatever explains most comes first, as it does not matter which question does.
One question means one run of the step, so a call asks only one, and the inputs are kept until
the last. Knows nothing of the artifact.
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

__all__ = ["NUDGES", "Doubt", "Suspect"]

# Changes of the inputs (units in the last place), and how many times the difference that they make is still rounding.
NUDGES = ((2, 16.0), (64, 2.0), (64, 2.0), (16, 4.0), (16, 4.0), (16, 4.0), (16, 4.0), (2, 16.0))


@dataclass(slots=True)
class Suspect:
    """A tensor that disagreed, by so much: fresh ``value`` number so many, or the ``update`` of that input. ``bare``:
    what was expected is nothing at all, so the error is not relative to it."""

    error: float
    judged: Any
    expected: torch.Tensor  # replay's
    value: int = -1
    update: int = -1
    bare: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Which tensor it is, in every call."""
        return self.value, self.update

    def keep(self) -> None:
        """Remember what was expected, whatever becomes of the tensor itself."""
        self.expected = duplicate(self.expected.detach())


class Doubt:
    """What disagreed in one call, and all that is needed to make the call again."""

    def __init__(self, inputs: Sequence[torch.Tensor], slots: Numbers, before: State, suspects: list[Suspect]) -> None:
        """``inputs``: as they were before the call, and nobody else's; ``before``: the generators then."""
        self.suspects = suspects
        self.spreads: dict[tuple[int, int], float] = {}  # of those that the smallest changes have explained
        self._inputs = inputs
        self._slots = slots
        self._before = before
        self._forests = laid_now()  # the calls of recursive functions that were made
        self._asked = 0

    @property
    def over(self) -> bool:
        """Whether there is nothing left to ask."""
        return self._asked == len(NUDGES)

    def ask(self, replay: Replay, generators: Generators) -> None:
        """Let those suspects go whose disagreement one more run of replay explains."""
        units, times = NUDGES[self._asked]
        seed, self._asked = self._asked * len(self._inputs), self._asked + 1
        now = generators.save()
        generators.restore(self._before)
        nudged = [nudge(tensor, units, seed + number) for number, tensor in enumerate(self._inputs)]
        try:
            with laid_out(self._forests):
                values = replay.run([*nudged], self._slots)
        except Exception:  # such inputs were not the program's: nothing is told, and nothing explained
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
        """How far replay's own result is off."""
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

"""Bounds what learning may cost a step that may end soon: by a share of its time in eager, and what graphs save.

The account of every step has such a bound; as long as no length of the program is expected it allows everything. Parts
of a step share the bound of the step. This module does not know what the costs are of.
"""

from __future__ import annotations

from collections.abc import Callable

from torchjanus.runtime.runs.horizon import LOSS

__all__ = ["LossBound"]


class LossBound:
    """The bound of one step. ``spent`` returns the seconds that learning has cost in the step's calls; ``sunk``: those
    outside of the calls. ``saved``: the seconds that graphs have saved; ``counted_on``: those that they are expected to
    save."""

    def __init__(self, spent: Callable[[], float]) -> None:
        self._spent = spent
        self._expected: Callable[[], float] | None = None
        self.saved = self.sunk = self.counted_on = 0.0

    def expect(self, expected: Callable[[], float], sunk: float) -> None:
        """Allow from now on no more than a small share of the seconds that all calls are ``expected`` to take in eager,
        and what graphs save. ``sunk``: seconds that learning has cost already."""
        self._expected, self.sunk = expected, sunk

    @property
    def is_set(self) -> bool:
        """Whether anything is bounded."""
        return self._expected is not None

    def count_on(self, saved: float) -> None:
        """Allow half of what graphs are expected to save, in seconds, besides."""
        self.counted_on = max(self.counted_on, saved)

    def needed_for(self, price: float) -> float:
        """Return how many seconds all calls have to take in eager, so that there is enough for something of this
        price."""
        spent = self._spent() + self.sunk
        return (spent + price - self.saved - 0.5 * self.counted_on) / LOSS

    def affords(self, price: float) -> bool:
        """Whether there is enough for something of this price."""
        return self._expected is None or self.needed_for(price) <= self._expected()

    def coming(self, done: float) -> float:
        """Return the seconds in eager of the calls to come, as far as there is a bound and they are known. ``done``:
        seconds in eager of the calls so far."""
        return 0.0 if self._expected is None else max(self._expected() - done, 0.0)

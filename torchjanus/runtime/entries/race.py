"""Runs two executors of one graph in turn on live calls, and finds the faster one.

Knows neither how they were made nor whether they are trusted.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from torchjanus.core.clock import undelayed
from torchjanus.execute.running.base import Executable

__all__ = ["LEAD", "Race"]

_TIMED_CALLS = 6
# A candidate that is so many times faster than replay is not measured again by a later run. A race takes twelve calls,
# half of them by the slower executor, which can be seconds.
LEAD = 1.1


class _Owner(Protocol):
    def finish(self) -> None: ...
    def charge(self, kind: str, seconds: float) -> None: ...
    def chosen(self, best: Executable, times: Sequence[tuple[Executable, float]], clear: bool) -> None: ...


class Race:
    """Runs the best so far and a candidate alternately, and tells its owner which has the better median time."""

    def __init__(
        self, owner: _Owner, best: Executable, candidate: Executable, known: Sequence[tuple[float, float]] = ()
    ) -> None:
        """``known``: pairs of times from the trial, the candidate's and the other's."""
        self._owner = owner
        self._candidates = (best, candidate)
        self._times = [[other for _, other in known], [one for one, _ in known]]
        self._iteration = 0
        # The first run of each warms up caches; the trial has left out its own first runs.
        self._cold = 0 if known else 1
        self._turns = 2 * max(2, _TIMED_CALLS - len(known))

    def __call__(self, inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> Any:
        number = self._iteration % len(self._candidates)
        self._iteration += 1
        candidate = self._candidates[number]
        self._owner.finish()
        started = undelayed()
        values = candidate.run(inputs, slots)
        self._owner.finish()
        taken = undelayed() - started
        self._times[number].append(taken)
        self._owner.charge("race", taken)
        if self._iteration >= self._turns:
            medians = [statistics.median(times[self._cold :]) for times in self._times]
            times = [*zip(self._candidates, medians, strict=True)]
            clear = max(medians) >= LEAD * min(medians)
            self._owner.chosen(min(times, key=lambda pair: pair[1])[0], times, clear)
        return values

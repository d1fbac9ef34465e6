"""The calls of one graph in which a candidate is on trial: which ones they are, and what their outcome is.

Knows neither how the candidate was made nor how it runs beside replay (``execute.trust``).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from torchjanus.core.clock import undelayed
from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Executable, Violated
from torchjanus.execute.trust import Trial
from torchjanus.runtime.entries.race import LEAD

__all__ = ["TrialCalls"]

_TRIED = 3  # calls in a trial
_TRIED_SIZES = 7  # where sizes vary: Inductor was seen to be wrong for some batch sizes only
_TRIED_AGAIN = 1  # where the same artifact has passed its trial in an earlier run
# A call on trial takes two to three times as long as another. After one longer than _LONG, no graph has a call on trial
# for _REST times as long. So throughput stays at 80 % of eager's, and a graph that makes only one call in eight gets
# its trial as soon as others. An artifact that passed in an earlier run is tried at once, since it needs a call or two.
_LONG = 0.05  # seconds
_REST = 3
# If calls are long, the trial also measures times. A candidate that takes more than the share _GAIN of replay's time in
# _PAIRS pairs of runs is not tried further. One that is clearly faster or slower in each pair needs no race.
_GAIN = 0.97
_PAIRS = 2


class _Trials:
    """Limits how often any graph has a call on trial."""

    def __init__(self) -> None:
        self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether this call may be on trial."""
        return time.perf_counter() >= self._next

    def record_time(self, seconds: float) -> None:
        """Record that a call on trial took ``seconds``."""
        if seconds > _LONG:
            self._next = time.perf_counter() + _REST * seconds


_trials = _Trials()


class _Owner(Protocol):
    def allows(self, kind: str) -> bool: ...
    def charge(self, kind: str, seconds: float) -> None: ...
    def tried(self, trial: TrialCalls) -> None: ...


class TrialCalls:
    """Makes the calls of a graph while a candidate is on trial, and tells its owner the outcome once it is known.

    ``best``: makes the calls that are not on trial; ``name``: what the candidate is called; ``sizes_vary``: whether the
    graph has sizes as inputs; ``passed``: whether the candidate has passed a trial in an earlier run; ``sparing``:
    whether calls on trial are limited; ``timed``: whether the duration of runs decides, too."""

    def __init__(
        self, owner: _Owner, candidate: Executable, replay: Replay, best: Executable, name: str, *,
        sizes_vary: bool, passed: bool, sparing: bool, timed: bool,
    ) -> None:  # fmt: skip
        self.candidate, self.passed = candidate, passed
        self.trial = Trial(candidate, replay, _TRIED_AGAIN if passed else _TRIED_SIZES if sizes_vary else _TRIED)
        self.times: list[tuple[float, float]] = []  # seconds of the candidate's runs and replay's, if they decide
        self._owner, self._replay, self._best, self._name = owner, replay, best, name
        self._sparing, self._timed = sparing and not passed, timed
        self._over = False

    def __call__(self, inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> list[torch.Tensor] | Violated:
        # Calls may come from several threads: another one may have decided, which the exchanged function shows later.
        if self._over or (self._sparing and not (_trials.due and self._owner.allows("trial"))):
            return self._best.run(inputs, slots)
        started = undelayed()
        values = self.trial.run(inputs, slots)
        taken = undelayed() - started
        if self._sparing:
            _trials.record_time(taken)
        self._owner.charge("trial", taken)
        if not self._over:
            self._decide()
        return values

    def _decide(self) -> None:
        """Tell the owner, if the results of the trial so far decide."""
        trial = self.trial
        if not trial.disagreements and self._timed and _are_enough(trial.times):
            self.times = trial.times
        if trial.decided or not self.gains:
            self._over = True
            self._owner.tried(self)

    @property
    def gains(self) -> bool:
        """Whether the candidate may be faster than replay."""
        return not self.times or any(ours <= _GAIN * theirs for ours, theirs in self.times)

    @property
    def leads(self) -> bool:
        """Whether the candidate was clearly faster in each pair of runs."""
        return bool(self.times) and all(ours * LEAD <= theirs for ours, theirs in self.times)

    @property
    def trails(self) -> bool:
        """Whether the candidate was clearly slower in each pair of runs."""
        return bool(self.times) and all(ours >= LEAD * theirs for ours, theirs in self.times)

    @property
    def medians(self) -> list[tuple[Executable, float]]:
        """The median times of replay and of the candidate, in seconds."""
        ours, theirs = zip(*self.times, strict=True)
        return [(self._replay, statistics.median(theirs)), (self.candidate, statistics.median(ours))]

    @property
    def notes(self) -> list[str]:
        """What the trial has shown, for the report."""
        trial = self.trial
        notes = [f"not used: {disagreement}" for disagreement in trial.disagreements]
        if trial.trusted:
            calls = "a call, as it did in an earlier run" if self.passed else f"{trial.agreed} calls"
            notes.append(f"{self._name} agreed with replay on {calls}")
            if trial.undetermined:
                first, *others = trial.undetermined.values()
                which = f"{first} and {len(others)} more" if others else first
                notes.append(f"rounding decides the updates of {which}: only those of replay are eager's")
        return notes


def _are_enough(times: Sequence[tuple[float, float]]) -> bool:
    """Whether the times of a trial are enough to compare the executors."""
    return len(times) >= _PAIRS and min(replayed for _, replayed in times) > _LONG

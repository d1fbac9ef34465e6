"""When the graph of a path is computed: beside the skeleton, or when Python waits for it. Measured on its own calls."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from torchjanus.core.settings import COEXECUTION
from torchjanus.execute.compiled.duty_cycle import DUTY

__all__ = ["Evaluation"]

_CALLS = 8  # measured calls of each kind
_AGAIN = 1000  # calls until it is measured again


class Evaluation:
    """The choice for one path. ``is_possible``: returns whether the graph can run beside Python.

    Where torch has a thread for each core, the skeleton would take one from the graph, so there is nothing to measure.
    """

    def __init__(self, is_possible: Callable[[], bool]) -> None:
        wanted = COEXECUTION.given
        measures = wanted not in ("overlapped", "lazy")
        possible = wanted != "lazy" and not (measures and DUTY.is_full()) and is_possible()
        self._fixed = None if measures and possible else possible
        self._begin()

    def _begin(self) -> None:
        self._calls = 0
        self._seconds: tuple[list[float], list[float]] = ([], [])
        self._chosen: bool | None = None

    @property
    def is_overlapped(self) -> bool:
        """Whether the next call's graph is computed beside the skeleton."""
        if self._fixed is not None:
            return self._fixed
        return self._chosen if self._chosen is not None else self._calls % 2 == 1

    def record_time(self, overlapped: bool, seconds: float) -> None:
        """Note how long a served call took."""
        if self._fixed is not None:
            return
        self._calls += 1
        if self._chosen is not None:
            if self._calls >= _AGAIN:
                self._begin()
        elif self._calls > 2:  # the first of each kind makes what the others use
            self._seconds[overlapped].append(seconds)
            if all(len(one) >= _CALLS for one in self._seconds):
                lazily, beside = map(statistics.median, self._seconds)
                self._chosen = beside < lazily

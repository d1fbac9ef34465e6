"""When the graph of a path is computed: beside the skeleton, or when Python waits for it. Measured on its own calls."""

from __future__ import annotations

import statistics

from torchjanus.core.settings import COEXECUTION
from torchjanus.execute.compiled.duty_cycle import DUTY

__all__ = ["Evaluation"]

_CALLS = 8  # measured calls of each kind
_AGAIN = 1000  # calls until it is measured again


class Evaluation:
    """The choice for one path. ``is_possible``: whether the graph can run beside Python.

    Where torch has a thread for each core, the skeleton would take one from the graph, so there is nothing to measure.
    """

    def __init__(self, is_possible: bool) -> None:
        wanted = COEXECUTION.given or "auto"
        self._fixed: bool | None = wanted == "overlapped" if wanted in ("overlapped", "lazy") else None
        if not is_possible or (self._fixed is None and DUTY.is_full()):
            self._fixed = False
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

    def took(self, overlapped: bool, seconds: float) -> None:
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

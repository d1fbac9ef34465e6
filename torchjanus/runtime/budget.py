"""How much time a function may spend on learning: watching calls and making graphs of them.

The first graphs are free, and so are the first seconds. After that, learning has a share of the time that goes by
otherwise: a function that would make graph after graph learns ever more rarely, and its calls meanwhile are Python's.
Knows nothing of what is learnt.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

__all__ = ["FREE_CALLS", "FREE_GRAPHS", "FREE_SECONDS", "SHARE", "SHARE_IN_VAIN", "Budget"]

FREE_GRAPHS = 3  # a program's first ways; for a large model one takes a minute
FREE_CALLS = 8  # that are learnt from, if they lead to no more graphs than that
FREE_SECONDS = 5.0
SHARE = 0.05  # of the time that does not go into learning: less than what calls differ by anyway
SHARE_IN_VAIN = 0.01  # where no graph makes calls: what has not come of learning so far may never come


class Budget:
    """The account of one function. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._graphs = 0  # that were made, or tried
        self._calls = 0  # that were learnt from
        self._free = 0.0  # seconds of learning while that was free
        self._spent = 0.0  # seconds of learning since then
        self._counting = False
        self._begun: float | None = None  # when there was something to learn first

    @property
    def seconds(self) -> float:
        """What learning has taken."""
        return self._free + self._spent

    def made(self) -> None:
        """One more graph has been made, or tried."""
        self._graphs += 1

    def allows(self, share: float = SHARE) -> bool:
        """Whether there is time to learn from this call, if learning may take this share of the time."""
        now = self._clock()
        if self._begun is None:
            self._begun = now
        if self._is_free:
            return True
        return self._spent <= share * (now - self._begun - self.seconds)

    @property
    def _is_free(self) -> bool:
        return (self._graphs < FREE_GRAPHS and self._calls < FREE_CALLS) or self._free < FREE_SECONDS

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Learning goes on in here."""
        if self._counting:  # a graph that was made for this call has failed, and the call is watched
            yield
            return
        begun, free, self._counting = self._clock(), self._is_free, True
        try:
            yield
        finally:
            taken, self._counting = self._clock() - begun, False
            self._calls += 1
            if free:
                self._free += taken
            else:
                self._spent += taken

"""The priority of work beside the program: below the program's where there is room for both, equal to it where cores
are short.

Linux shares a core by weights: a process at niceness 5 gets a quarter of a core that one other process wants. Where
eight others want two cores, it gets a twelfth of one: a graph that takes four seconds to lower came after two minutes.
No process may lower its niceness again, so work begins at the program's, and raises it once it has had a good share of
a core. This module does not know what the work is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

__all__ = ["ENOUGH", "PRIORITY", "SERVER", "Priority"]

SERVER = 3  # the niceness of the server to reach, and of lowerings: they take seconds, and calls are Python's meanwhile

ENOUGH = 0.5  # of a core: a process that gets more has room to let others go first
_OBSERVED = 0.2  # seconds over which its share is measured


def _raise_niceness(by: int) -> None:
    """Of the main thread, and of what it starts from now on: on Linux each thread has a niceness of its own."""
    process = os.getpid()
    os.setpriority(os.PRIO_PROCESS, process, min(19, os.getpriority(os.PRIO_PROCESS, process) + by))


class Priority:
    """The niceness of this process, counted from the program's.

    ``wall``, ``processor``: clocks in seconds, of elapsed time and of this process's processor time; ``increase``:
    raises the niceness by a number.
    """

    def __init__(
        self,
        lowest: int,
        wall: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.process_time,
        increase: Callable[[int], None] = _raise_niceness,
    ) -> None:
        """``lowest``: the niceness to reach."""
        self.niceness = 0
        self._wall, self._processor, self._increase = wall, processor, increase
        self.begin(lowest)

    def begin(self, lowest: int) -> None:
        """Let ``lowest`` be reached from now on. A fork has the niceness of its parent, and clocks of its own."""
        self._lowest = lowest
        self._since = self._wall(), self._processor()

    def look(self) -> None:
        """Raise the niceness, if the process has had enough since the look before."""
        if self.niceness >= self._lowest:
            return
        wall, processor = self._wall() - self._since[0], self._processor() - self._since[1]
        if wall < _OBSERVED:
            return
        self._since = self._since[0] + wall, self._since[1] + processor
        if processor > ENOUGH * wall:
            self._increase(self._lowest - self.niceness)
            self.niceness = self._lowest


PRIORITY = Priority(SERVER)  # of this process, if it works beside a program

"""A function's graphs in the making: here, or in another process, after which learning goes on where it was.

Knows nothing of how they are made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torchjanus.runtime.entries.dispatch import Route
from torchjanus.runtime.runs.kept import Elsewhere, Pending
from torchjanus.runtime.runs.records import Story

__all__ = ["Awaiting"]

Making = Callable[[], Route | None]  # returns what is to be tried then

MAX_ATTEMPTS = 4  # to have the graphs of one path made elsewhere
MAX_WASTED = 3  # calls by graphs that have to be made once more, while a graph of another way is made


class Awaiting:
    """What makes graphs raises Pending where it has to wait, and is called again when they are there."""

    def __init__(self, story: Story) -> None:
        self.elsewhere = Elsewhere()
        weakref.finalize(self, self.elsewhere.close)
        self.instead: Making | None = None  # what is to go on, if it is not what has begun
        self._story = story
        self._making: Making | None = None  # what goes on when a graph has been made elsewhere
        self._attempts = 0
        self._deferred = False  # whether nothing but time is awaited
        self._wasted = 0  # calls that graphs have made in vain since then
        self._begun = 0  # calls speculated by then

    @property
    def waits(self) -> bool:
        """Whether a graph is being made elsewhere. Nothing is learnt meanwhile."""
        return self._making is not None

    @property
    def is_away(self) -> bool:
        """Whether nothing can be done for a graph but wait for another process."""
        return self.waits and not self.elsewhere.over

    def __str__(self) -> str:
        """What is being made elsewhere; "" if nothing is."""
        if not self.waits:
            return ""
        if self._deferred:
            return "a graph is made when there is time"
        return "a graph has been made: the next call takes it" if self.elsewhere.over else f"a graph {self.elsewhere}"

    @property
    def is_again(self) -> bool:
        """Whether what is being made has been tried before."""
        return self._attempts > 1

    @property
    def may_wait(self) -> bool:
        """Whether it may wait for another process once more."""
        return self._attempts <= MAX_ATTEMPTS

    def begin(self, making: Making) -> Route | None:
        """Make graphs. Where one has to wait for another process, ``go_on`` does it again."""
        self._attempts += 1
        self._deferred = False
        try:
            made = making()
        except Pending as pending:
            self._making = self.instead or making
            if self._attempts == 1:
                self._wasted, self._begun = 0, self._story.counts.speculated
                self._story.say("lowering", f"{pending}; calls are Python's until it is there")
            return None
        except BaseException:
            self.cease()
            raise
        self.cease()
        return made

    def defer(self, making: Making) -> None:
        """Make graphs in a later call."""
        self._making, self._attempts, self._deferred = making, 0, True
        self._wasted, self._begun = 0, self._story.counts.speculated

    def go_on(self) -> None:
        """Put what has been made elsewhere to use, if it is there."""
        if self._making is not None and self.elsewhere.over:
            self.begin(self._making)

    def cease(self) -> None:
        """Nothing is awaited any more."""
        self._making, self.instead, self._attempts, self._deferred = None, None, 0, False
        self.elsewhere.close()

    # Calls may go the way of the graph that is not there yet, and the others find that out ever anew.

    def wasted(self) -> None:
        """A graph has run, or has made extern calls, and the call has to be made once more."""
        self._wasted += self.waits

    @property
    def hinders(self) -> bool:
        """Whether that has happened often while one is awaited."""
        return self._wasted >= MAX_WASTED and self.waits and not self.elsewhere.over

    def prevails(self, share: float) -> bool:
        """Whether it has happened so often that graphs do not pay. ``share``: what a call by one takes, of one by
        Python; a call that is made twice takes both."""
        served = self._story.counts.speculated - self._begun
        return self._wasted > (1 - share) * (self._wasted + served)

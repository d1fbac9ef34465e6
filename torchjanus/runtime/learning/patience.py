"""How long a function's calls are learnt from: when one more may be watched, when all is given up, and until when.

Knows nothing of what is learnt.
"""

from __future__ import annotations

import logging
import sys

from torchjanus.runtime.learning.awaiting import Awaiting
from torchjanus.runtime.learning.routes import Routes
from torchjanus.runtime.runs.budget import Budget
from torchjanus.runtime.runs.paths import Paths
from torchjanus.runtime.runs.records import Story

__all__ = ["Patience"]

log = logging.getLogger("torchjanus")

MAX_WATCHED = 48
MAX_UNSERVED = 32
MAX_FAULTS = 3
UNTRIED = 2  # graphs that have made no call: the next one counts as the first
OFTEN = 20  # so many speculated calls earn one more that may be watched
AGAIN = 1000  # calls before a function that was given up is looked at again, and then
LATER = 4  # times as many each time: what is settled by then may not have been at first
WATCHED_AGAIN = 16  # calls that may be watched each time
NEVER = sys.maxsize
MANY_MISSES = 64  # in a row, while there is no time to learn: to look for a graph takes longer than it is worth
TRIED_AGAIN = 8  # calls, of which one looks for a graph then; twice as many each time that misses have doubled
TRIED_RARELY = 64  # at most

_HOLD = (
    "Instead: hold what changes constant, let it be a tensor or a number that the step computes with, pad sizes to a "
    "few, or take the part that changes out of the step."
)


class Patience:
    """Counts what has come of learning so far."""

    def __init__(self, story: Story, paths: Paths, routes: Routes, awaiting: Awaiting, budget: Budget) -> None:
        self.budget = budget
        self.given_up = ""  # why the function runs as it is
        self.closed = ""  # why no more graphs are made
        self.again = NEVER  # the call at which learning begins again
        self._chances = 0  # how often it has
        self._story = story
        self._counts = story.counts
        self._paths = paths
        self._routes = routes
        self._awaiting = awaiting
        self._waited = False  # whether learning has been put off
        self._told = False  # whether graphs have rested because their calls may have to be repeated
        self._repeating = False  # the last call by a graph had to be made once more, watched for its extern calls only
        self._in_a_row = 0  # calls that no graph could make, since one did
        self._hindered = 0  # calls for which it was asked whether those that wait for a graph are too many
        self._unproductive = 0  # watched calls of which no graph can be made, since one was
        self._served = 0  # calls speculated when no more graphs were made
        self._unserved = 0  # calls since then that no graph could make
        self._faults = 0

    # -- what becomes of calls ------------------------------------------------------------------------------------

    def missed(self) -> None:
        """No graph was there for a call, and nothing can be learnt from it."""
        self._in_a_row += 1

    def served(self) -> None:
        """A graph has made a call."""
        self._counts.speculated += 1
        self.budget.served += 1
        self._repeating = False
        self._in_a_row = 0

    def unserved(self) -> None:
        """No graph could make a call, and none will be made for it. When that is the rule, all are given up."""
        self._unserved += 1
        if self._unserved >= MAX_UNSERVED and self._unserved > self._counts.speculated - self._served:
            self.give_up(self.closed, self.again < NEVER)

    def repeated(self) -> None:
        """A call by a graph has to be made once more, watched for the extern calls that it has made."""
        self._repeating = True

    def refused(self, why: str, most: int) -> None:
        """No graph can be made of a watched call. ``most``: so many of them are enough, if there are no graphs."""
        self._unproductive += 1
        if self._unproductive >= most and not self._routes.entries:
            self.give_up(why, True)

    def made(self) -> None:
        """A graph has been made."""
        self._unproductive = 0

    def fault(self, error: BaseException) -> None:
        """Something inside torchjanus broke. The call is completed all the same."""
        self._faults += 1
        log.warning("internal fault in torchjanus, the call was completed eagerly", exc_info=error)
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        at = f" at {where.tb_frame.f_code.co_name}:{where.tb_lineno}" if where is not None else ""
        text = f"torchjanus itself failed: {type(error).__name__}: {error}{at}. Please report this."
        self._story.say("fault", text)
        if self._faults >= MAX_FAULTS:
            self.give_up("torchjanus failed repeatedly")

    # -- the end of it, and beginning again -----------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Make no more graphs. Those that there are go on."""
        if not self.closed:
            self.closed = why
            self._served = self._counts.speculated
            self._story.say("closed", f"no more graphs are made: {why}", reason="learning-too-different")

    def give_up(self, why: str, for_now: bool = False) -> None:
        """Run the function as it is, ``for_now`` or for ever."""
        if not self.given_up:
            self.given_up = why
            self._in_a_row = MANY_MISSES
            self._awaiting.cease()
            if for_now:
                self._put_off()
            until = f"until call {self.again}" if for_now else "from now on"
            self._story.say("imperative", f"{until} the function runs as it is: {why}")

    def _put_off(self) -> None:
        self.again = max(AGAIN, LATER * self._counts.calls)

    def begin_again(self) -> None:
        """Learn once more. Programs settle: a buffer is full, a table known, a schedule over."""
        why = self.given_up or self.closed
        self.given_up = self.closed = ""
        self.again, self._unserved, self._unproductive, self._in_a_row = NEVER, 0, 0, 0
        self._chances += 1
        self._story.say("again", f"calls are looked at once more. Before: {why}")

    # -- what may be done with the next call ----------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether graphs may be of no use just now; ``rests`` looks closer."""
        idle = self._repeating or self._awaiting.waits or self._in_a_row >= MANY_MISSES or self.budget.wastes
        return idle or (self._routes.repeats and not self._counts.speculated)

    def rests(self, share: float) -> bool:
        """Whether graphs are not even tried: they have been tried in vain for too long, the first of them is still
        being made, to repeat one's call takes more than there is time for, too many calls go the way of a graph
        that is still being made (then every eighth is tried), or no call has found one for long (then every eighth, and
        ever fewer). ``share``: see ``Awaiting.prevails``."""
        if self._counts.calls + 1 >= self.again:
            return False
        if self.budget.wastes or (self._awaiting.is_away and not self._routes.entries):
            return True
        if self._awaiting.hinders:
            self._hindered += 1
            return self._awaiting.prevails(share) and self._hindered % TRIED_AGAIN != 0
        if self._repeating and self.given_up:
            return True
        if self._may_repeat and not self.budget.allows("repeat", odds=self._paths.count):
            if not self._told:
                self._told = True
                why = "a call that a graph cannot finish is made once more, and watched: it has made extern calls"
                text = f"{why}. Until there is time for that, calls are Python's."
                self._story.say("budget", text, reason="learning-no-time")
            return True
        if self._in_a_row < MANY_MISSES:
            return False
        self._in_a_row += 1
        distance, misses = TRIED_AGAIN, 4 * MANY_MISSES
        while distance < TRIED_RARELY and misses <= self._in_a_row:
            distance, misses = 2 * distance, 2 * misses
        return self._in_a_row % distance != 0

    @property
    def _may_repeat(self) -> bool:
        """Whether the next call by a graph has to be repeated under watch, for all that is known: the last one had to,
        or runs have gone several variants and no graph has made one yet."""
        untried = not self._counts.speculated and self._paths.count > 1
        return self._repeating or (untried and self._routes.repeats)

    def may_watch(self) -> bool:
        """Whether one more call may be watched. When there were too many, speculation is given up."""
        if self._has_watches_left:
            return True
        why = f"{self._counts.watched} calls were watched and calls still differ from what was assumed"
        if self._routes.entries:
            self.close(why)
            self._put_off()
        else:
            self.give_up(why, True)
        return False

    def may_watch_on(self) -> bool:
        """Whether a call that went another way than any that is known may be watched, so as to learn that way."""
        if self.given_up or self.closed or self._awaiting.waits or self._routes.are_full:
            return False
        return self._has_watches_left and self.has_time()

    @property
    def _has_watches_left(self) -> bool:
        more = self._counts.speculated // OFTEN + self._chances * WATCHED_AGAIN
        return self._counts.watched < MAX_WATCHED + more

    def has_time(self) -> bool:
        """Whether this call may be learnt from. Where there has been too much of that, the report says of what."""
        first = self._is_first
        # What a miss may lead to, as well: more of its graph is relaxed, and it is made anew.
        if self.budget.allows("watch", first=first) and (first or self.budget.allows("make")):
            return True
        if not self._waited:
            self._waited = True
            what, place = self._paths.difference()
            made = f"{self._counts.compiles} graphs and {self._counts.watched} watched calls"
            differ = f", and calls still differ ({what})" if what else ""
            rest = "From now on calls that no graph can make are Python's, but for a small share of the time"
            hold = f" {_HOLD}" if what else ""
            text = f"{made} took {self.budget.overhead.seconds:.1f} s longer than eager{differ}. {rest}.{hold}"
            self._story.say("budget", text, place, "learning-no-time")
        return False

    def may_relax(self) -> bool:
        """Whether a call that there is no time to watch may show that a graph is made with a weaker assumption: that
        takes no watched run. To look for it takes time, too: ever more rarely in a row of such calls."""
        looks = self._in_a_row & (self._in_a_row - 1) == 0
        return looks and bool(self._routes.entries) and not self.closed and self.budget.allows("make")

    def may_make(self) -> bool:
        """Whether a graph may be made in this call."""
        return self.budget.allows("make", first=self._is_first)

    @property
    def _is_first(self) -> bool:
        """Whether there is no graph yet, or none of the few that there are has made a call: of what is there at the
        first calls only, like gradients that are None."""
        return not self._counts.compiles or (not self._counts.speculated and self._counts.compiles <= UNTRIED)

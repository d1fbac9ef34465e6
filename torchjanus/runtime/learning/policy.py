"""Decides how long a function's calls are learnt from: whether one more may be watched, when learning is given up, and
until when.

This module does not know what is learnt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from torchjanus.core.logs import logger
from torchjanus.runtime.learning.pending_graphs import PendingGraphs
from torchjanus.runtime.learning.routes import Routes
from torchjanus.runtime.runs.budget import Budget
from torchjanus.runtime.runs.paths import Paths
from torchjanus.runtime.runs.payback import Payback
from torchjanus.runtime.runs.records import EventLog

__all__ = ["LearningPolicy"]

log = logger("faults")

MAX_WATCHED = 48
MAX_UNSERVED = 32
MAX_FAULTS = 3
UNTRIED = 2  # unused graphs after which the next one still counts as the first
OFTEN = 20  # so many speculated calls allow one more watched call
AGAIN = 1000  # calls before learning begins again after giving up
LATER = 4  # factor on that each time: a program may settle later
WATCHED_AGAIN = 16  # further watched calls allowed each time
NEVER = sys.maxsize
FRUITLESS = 4  # watched calls without a graph, after which the parts of a step are tried while there is no time for it
MANY_MISSES = 64  # consecutive misses without time to learn, after which looking for a graph takes longer than it saves
TRIED_AGAIN = 8  # then one call in so many looks for a graph; doubled each time that the misses have doubled
TRIED_RARELY = 64  # the most
# One call in LOOKED checks whether the first graph is worth its price; MOST_RESTING: the most calls between two checks.
LOOKED, MOST_RESTING = 16, 64
RARE = 4  # a path that at most one call in so many takes is learnt only once that pays
CALLS_IN_DEBT = 4  # so many calls are learnt from once the calls that no graph made would have paid for that

_HOLD = (
    "Instead: hold what changes constant, let it be a tensor or a number that the step computes with, pad sizes to a "
    "few, or take the part that changes out of the step."
)


class _Outcomes(NamedTuple):
    """How many calls there were, how many left the paths of the graphs (misses and violations), and how many a graph
    made."""

    calls: int
    missed: int
    served: int

    @property
    def unserved(self) -> int:
        """How many calls no graph made, those included for which none was tried."""
        return self.calls - self.served


class LearningPolicy:
    """Counts the outcomes of learning so far."""

    def __init__(
        self,
        event_log: EventLog,
        paths: Paths,
        routes: Routes,
        pending_graphs: PendingGraphs,
        budget: Budget,
        payback: Payback,
        unserved: Callable[[], None],
    ) -> None:
        """``unserved``: called when it turns out that the calls are Python's for long."""
        self.budget = budget
        self.payback = payback
        self._unserved_for_long = unserved
        self.given_up = ""  # why Python makes all calls
        self.closed = ""  # why no more graphs are made
        self.again = NEVER  # the call at which learning begins again
        self._chances = 0  # how often learning has begun again
        self._event_log = event_log
        self._counts = event_log.counts
        self._paths = paths
        self._routes = routes
        self._pending_graphs = pending_graphs
        self._waited = False  # whether learning has been deferred
        self._awaited = False  # whether it was reported that a path is too rare
        self._expected = False  # whether it was reported when the first graph is worth its price
        self._reported = False  # whether it was reported that graphs rest because calls may have to be repeated
        # whether the last call by a graph was repeated under watch, only because of its extern calls
        self._repeating = False
        self._in_a_row = 0  # consecutive calls that no graph could make
        self._resting = 0  # calls until it is looked again whether the first graph is worth its price
        self._hindered = 0  # calls so far while graphs were hindered by one that is awaited
        self._unproductive = 0  # consecutive watched calls of which no graph can be made
        self._served = 0  # calls speculated when no more graphs were made
        self._unserved = 0  # calls since then that no graph could make
        self._faults = 0
        self._since = _Outcomes(0, 0, 0)  # the counts when a call was last watched, or a graph last made
        self._left_in_debt = 0  # so many more calls are learnt from, whatever the account says
        self._fruitless = 0  # how often that was done in a row without graphs that then made most calls

    # -- who makes the calls --------------------------------------------------------------------------------------

    def record_miss(self) -> None:
        """Record a call that no graph could make and from which nothing can be learnt."""
        self._in_a_row += 1

    def record_served(self) -> None:
        """Record a call that a graph made."""
        self._counts.speculated += 1
        self.budget.unsettled_served += 1
        self._repeating = False
        self._in_a_row = 0

    def record_unserved(self) -> None:
        """Record a call that no graph could make, once no more are made. If that is the rule, give up all graphs."""
        self._unserved += 1
        if self._unserved >= MAX_UNSERVED and self._unserved > self._counts.speculated - self._served:
            self.give_up(self.closed, self.again < NEVER)

    def record_watch(self) -> None:
        """Record that the current call is watched."""
        self._counts.watched += 1
        self._count_anew()

    def _count_anew(self) -> None:
        """Count from now on which calls graphs could not make."""
        lately = self._lately
        if lately.served > lately.unserved:
            self._fruitless = 0
        self._since = self._outcomes

    def record_repeat(self) -> None:
        """Record that a call by a graph has to be repeated under watch, because of its extern calls."""
        self._repeating = True

    def record_refusal(self, why: str, most: int) -> None:
        """Record a watched call of which no graph can be made. ``most``: the number of them at which learning is given
        up if there are no graphs."""
        self._unproductive += 1
        if self._unproductive >= most and not self._routes.entries:
            self.give_up(why, True)

    def record_graph(self) -> None:
        """Record that a graph has been made."""
        self._unproductive = 0
        self._count_anew()

    def record_fault(self, error: BaseException) -> None:
        """Report a fault inside torchjanus. The call is completed all the same."""
        self._faults += 1
        log.warning("internal fault in torchjanus, the call was completed eagerly", exc_info=error)
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        at = f" at {where.tb_frame.f_code.co_name}:{where.tb_lineno}" if where is not None else ""
        text = f"torchjanus itself failed: {type(error).__name__}: {error}{at}. Please report this."
        self._event_log.record("fault", text)
        if self._faults >= MAX_FAULTS:
            self.give_up("torchjanus failed repeatedly")

    # -- the end of it, and beginning again -----------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Make no more graphs. Existing ones stay in use."""
        if not self.closed:
            self.closed = why
            self._served = self._counts.speculated
            self._event_log.record("closed", f"no more graphs are made: {why}", reason="learning-too-different")

    def give_up(self, why: str, for_now: bool = False) -> None:
        """Run the function as it is, ``for_now`` or for ever."""
        if not self.given_up:
            self.given_up = why
            self._in_a_row = MANY_MISSES
            self._pending_graphs.cancel()
            if for_now:
                self._put_off()
            until = f"until call {self.again}" if for_now else "from now on"
            self._event_log.record("imperative", f"{until} the function runs as it is: {why}")
            self._unserved_for_long()

    def _put_off(self) -> None:
        self.again = max(AGAIN, LATER * self._counts.calls)

    def begin_again(self) -> None:
        """Learn once more. Programs settle: a buffer is full, a table complete, a schedule over."""
        why = self.given_up or self.closed
        self.given_up = self.closed = ""
        self.again, self._unserved, self._unproductive, self._in_a_row = NEVER, 0, 0, 0
        self._chances += 1
        self._event_log.record("again", f"calls are looked at once more. Before: {why}")

    # -- what may be done with the next call ----------------------------------------------------------------------

    @property
    def may_skip_graphs(self) -> bool:
        """Whether trying graphs may be of no use just now; ``rests`` decides."""
        idle = (
            self._resting
            or self._repeating
            or self._pending_graphs.is_waiting
            or self._in_a_row >= MANY_MISSES
            or self.budget.is_wasteful
        )
        return bool(idle) or (self._routes.repeats and not self._counts.speculated)

    def skips_graphs(self, share: float) -> bool:
        """Whether graphs are not even tried on this call.

        Reasons: the first graph was not worth its price a few calls ago (a look takes as long as a short call);
        attempts were wasted for too long; the first graph is still being made; there is no time to repeat a call; too
        many calls take the path of a graph that is still being made (then every eighth is tried); or no call has found
        a graph for long (then every eighth is tried, later fewer). ``share``: see
        ``PendingGraphs.wastes_more_than_it_saves``.
        """
        if self._counts.calls + 1 >= self.again:
            return False
        if self._resting:
            self._resting = 0 if self.payback.ignores_price else self._resting - 1
            return self._resting > 0
        if self.budget.is_wasteful or (self._pending_graphs.is_away and not self._routes.entries):
            return True
        if self._pending_graphs.wastes_runs:
            self._hindered += 1
            return self._pending_graphs.wastes_more_than_it_saves(share) and self._hindered % TRIED_AGAIN != 0
        if self._repeating and self.given_up:
            return True
        if self._may_repeat and not self.budget.allows("repeat", odds=self._paths.count):
            if not self._reported:
                self._reported = True
                why = "a call that a graph cannot finish is made once more, and watched: it has made extern calls"
                text = f"{why}. Until there is time for that, calls are Python's."
                self._event_log.record("budget", text, reason="learning-no-time")
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
        """Whether the next call by a graph may have to be repeated under watch: the last one had to be, or runs took
        several paths and no graph has made a call yet."""
        untried = not self._counts.speculated and self._paths.count > 1
        return self._repeating or (untried and self._routes.repeats)

    def may_watch(self) -> bool:
        """Whether one more call may be watched. After too many, speculation is given up."""
        if self._has_watches_left:
            return True
        why = f"{self._counts.watched} calls were watched and calls still differ from what was assumed"
        if self._routes.entries:
            self.close(why)
            self._put_off()
        else:
            self.give_up(why, True)
        return False

    def may_watch_new_path(self) -> bool:
        """Whether a call on a new path may be watched, so as to learn that path."""
        if self.given_up or self.closed or self._pending_graphs.is_waiting or self._routes.are_full:
            return False
        return self._has_watches_left and self.has_time()

    @property
    def _has_watches_left(self) -> bool:
        more = self._counts.speculated // OFTEN + self._chances * WATCHED_AGAIN
        return self._counts.watched < MAX_WATCHED + more

    def has_time(self) -> bool:
        """Whether there is time to learn from this call. The first time that there is none is reported."""
        first = self._is_first
        if first and self.payback.decides:
            if not self._is_worth():
                self._resting = min(self._counts.calls // LOOKED, MOST_RESTING)
                return False
            if not self.budget.runs_differ:
                return True
        if not first and self._is_rare:
            if not self._awaited:
                self._awaited = True
                what = "few calls take another path: they are Python's until they alone would have paid for its graph"
                self._event_log.record("budget", what, reason="learning-not-worth-yet")
            return False
        # A miss may also lead to a graph that is relaxed and made again.
        if self.budget.allows("watch", first=first) and (first or self.budget.allows("make")):
            return True
        if not first and self._learns_in_debt():
            return True
        if first and (self._counts.refused or self._counts.watched >= FRUITLESS):
            self._unserved_for_long()
        if not self._waited:
            self._waited = True
            what, place = self._paths.difference()
            graphs = "1 graph" if self._counts.compiles == 1 else f"{self._counts.compiles} graphs"
            made = f"{graphs} and {self._counts.watched} watched calls"
            differ = f", and calls still differ ({what})" if what else ""
            rest = "From now on calls that no graph can make are Python's, but for a small share of the time"
            hold = f" {_HOLD}" if what else ""
            text = f"{made} took {self.budget.overhead.seconds:.1f} s longer than eager{differ}. {rest}.{hold}"
            self._event_log.record("budget", text, place, "learning-no-time")
        return False

    @property
    def _is_rare(self) -> bool:
        """Whether few calls since the last watched one have left the paths of the graphs, and a graph for them would
        not be worth its price yet. Such a call prints, or evaluates, every hundredth time."""
        if self._in_a_row >= MANY_MISSES:
            return False
        lately = self._lately
        return RARE * lately.missed <= lately.calls and not self.payback.pays_for(lately.missed)

    @property
    def _outcomes(self) -> _Outcomes:
        counts = self._counts
        return _Outcomes(counts.calls, counts.missed + counts.violated, counts.speculated)

    @property
    def _lately(self) -> _Outcomes:
        """The counts since a call was last watched, or a graph last made."""
        return _Outcomes(*(now - before for now, before in zip(self._outcomes, self._since, strict=True)))

    def _learns_in_debt(self) -> bool:
        """Whether this call is learnt from although the account cannot pay for it: the calls that no graph has made
        since learning ended would have been saved its price by now (see ``Payback``). Then a few calls are learnt from.
        Each time that this was of no use, the next time is twice as far."""
        lately = self._lately
        if self._left_in_debt and not lately.served:
            self._left_in_debt -= 1
            return True
        self._left_in_debt = 0
        if not self.payback.pays_again(lately.unserved, 2**self._fruitless):
            return False
        self._fruitless += 1
        self._left_in_debt = CALLS_IN_DEBT - 1
        calls = f"{lately.unserved:,} calls that no graph could make"
        self._event_log.record("again", f"{calls} would have been saved the price of one: it is tried again")
        return True

    def may_relax(self) -> bool:
        """Whether a call that may not be watched may lead to a relaxed graph, which needs no watched run. The search
        takes longer than a short call, so it is made ever more rarely until there is another graph."""
        missed = self._lately.missed
        looks = missed & (missed - 1) == 0
        return looks and bool(self._routes.entries) and not self.closed and self.budget.allows("make")

    def may_make(self) -> bool:
        """Whether a graph may be made in this call."""
        first = self._is_first
        if first and self.payback.decides:
            return self._is_worth()
        return bool(self._left_in_debt) or self.budget.allows("make", first=first)

    def _is_worth(self) -> bool:
        """Whether the first graph is worth its price by now. If not, it is reported when it will be."""
        if self.payback.is_due:
            return True
        if not self._expected and (prospect := self.payback.prospect()) is not None:
            self._expected = True
            eager = self.budget.eager
            by = "by an earlier run's measure" if prospect.measured else "by an estimate"
            text = (
                f"a graph is made {self.payback.when(prospect)}: it costs about {prospect.price:.1f} s, and "
                f"it saves {prospect.saving:.0%} of {1000 * eager:.3g} ms a call, {by}"
            )
            self._event_log.record("budget", text, reason="learning-not-worth-yet")
        return False

    @property
    def _is_first(self) -> bool:
        """Whether there is no graph yet, or only a few that have made no call, or are slower than Python.

        Such graphs may depend on what is true in the first calls only: gradients that are None, a buffer that is not
        full."""
        counts, share = self._counts, self.budget.share
        useless = not counts.speculated or (share is not None and share > 1.0)
        return not counts.compiles or (useless and counts.compiles <= UNTRIED)

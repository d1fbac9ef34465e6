"""Says from when on a graph of a step is worth its price, going by how long the program has run.

It is not known how long a program will run. One that has run for a while probably runs for as long again; so a graph is
made once it would have saved its price, had it been there from the start (the ski-rental problem). A program that ends
before that has paid for one watched call at most; one that goes on has lost little.

Price and saving are estimated from the number of operations of a watched call. What an earlier run of the same code has
measured is better, where it is kept. Where a graph is worth its price within two seconds, nothing waits. The same goes
for the graph of another path that few calls take, such as those that print: it is made once those calls alone would
have saved its price. This module does not know what a graph is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchjanus.runtime.runs.budget import Budget
from torchjanus.runtime.runs.experience import Experience
from torchjanus.runtime.runs.horizon import gains, pays_from

__all__ = ["Payback", "Prospect", "compiled"]

AT_ONCE = 2.0  # seconds of eager calls, up to which the first graph is not deferred
FEW = 300  # operations of a watched call up to which nothing is deferred while the time in eager is unknown
# Seconds for each operation, measured with training steps of benchmarks.programs.steps on two slow cores (lowering:
# benchmarks.cost.lowering). On other machines all are shorter or longer by about the same factor. Replay saves half of
# what is saved, compiled code the other half.
SAVED, LEARNED, LOWERED = 9e-6, 2.2e-3, 4.5e-3
# The share of lowering that a program pays for with a core to spare: that is often half of one, and caches are shared.
BESIDE = 0.25
AGAIN = 2.0  # times the price of a graph that calls which no graph makes have lost, before learning begins again
LEAST, MOST = 0.02, 0.5  # of a call's time in eager that is expected to be saved
# Inductor's processor time in seconds, for a graph and for each of its operations, and the share of a call's time that
# its code is expected to save.
COMPILED, EACH, COMPILED_SAVES = 8.0, 0.03, 0.3


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a graph is expected to cost, in seconds, and to save, as a share of the time in eager. ``measured``: whether
    an earlier run has measured that share."""

    price: float
    saving: float
    measured: bool = False

    @property
    def after(self) -> float:
        """Seconds of eager calls after which it is worth its price."""
        return self.price / self.saving


def compiled(operations: int, *, beside: bool = False) -> Prospect:
    """Return what is expected of compiled code for a graph of so many operations. ``beside``: there is a core for the
    compiler."""
    return Prospect((COMPILED + EACH * operations) * (BESIDE if beside else 1.0), COMPILED_SAVES)


class Payback:
    """Looks at the account of one step. ``is_full`` returns whether the program leaves no core to other processes, so
    that lowering takes time of its own."""

    def __init__(
        self, budget: Budget, is_full: Callable[[], bool], experience: Callable[[], Experience | None] = lambda: None
    ) -> None:
        """``experience`` returns what earlier runs have kept of the step, None if nothing is kept of it; it is called
        once, if at all."""
        self._budget = budget
        self._is_full = is_full
        self._experience = experience
        self.ignores_price = False  # whether the user waits for graphs, whatever they cost
        self._operations = 0  # of the latest watched call
        self._rest: float | None = None
        self._asked = False
        self._earlier: Experience | None = None

    @property
    def earlier(self) -> Experience | None:
        """What earlier runs have kept of the step."""
        if not self._asked:
            self._asked, self._earlier = True, self._experience()
        return self._earlier

    def record_graph(self, share: float | None = None) -> None:
        """Keep for later runs that a graph was made. ``share``: the time of its calls as a share of eager's, None if it
        was not measured. Nothing is kept of steps that are not deferred."""
        if share is None:
            self._rest = self._budget.overhead.seconds
        if share is None and not (self.earlier is not None and self.earlier.made):
            self._budget.record_cost_outside(self._operations * LOWERED * BESIDE)  # the calls beside it were slower
        if self._asked and self._earlier is not None:
            self._earlier.keep(share)

    def record_watch(self, operations: int) -> None:
        """Note that a call of so many operations was watched."""
        self._operations = operations

    @property
    def seconds_to_graph(self) -> float:
        """Seconds that learning took from the first watched call until there was a graph; what is expected, if there is
        none yet."""
        prospect = self.prospect()
        return self._rest if self._rest is not None else 0.0 if prospect is None else prospect.price

    def prospect(self) -> Prospect | None:
        """Return what is expected of a graph; None while no call was watched, or eager's time is unknown."""
        operations, eager = self._operations, self._budget.eager
        if not operations or not eager:
            return None
        made, share = (False, None) if self.earlier is None else (self.earlier.made, self.earlier.share)
        each = LEARNED if made else LEARNED + LOWERED * (1.0 if self._is_full() else BESIDE)
        saving = min(SAVED * operations / eager, MOST) if share is None else 1.0 - share
        return Prospect(each * operations, max(saving, LEAST), share is not None)

    @property
    def _limits(self) -> bool:
        """Whether graphs may have to wait at all."""
        return self._budget.limited and not self._budget.is_of_part and not self.ignores_price

    @property
    def decides(self) -> bool:
        """Whether the first graph waits until it is due. Not where that is soon, or nothing is limited."""
        if not self._limits or not self._operations:
            return False
        if self._budget.bound.is_set:
            return True
        prospect = self.prospect()
        return self._operations > FEW if prospect is None else prospect.after > AT_ONCE

    def pays_for(self, calls: int) -> bool:
        """Whether so many calls, which left the paths of the graphs, are worth another watched run. A graph is made of
        two."""
        if not self._limits:
            return True
        prospect = self.prospect()  # None: Python makes this call, which is timed
        return prospect is not None and 2 * calls * self._budget.eager >= prospect.after

    def pays_again(self, calls: int, factor: int) -> bool:
        """Whether so many calls, which no graph has made, would have been saved ``factor`` times what learning until
        there is a graph costs. The saving is the one that was measured of the graphs there are, if it was."""
        prospect = self.prospect()
        if not self._limits or prospect is None:
            return False
        share, price = self._budget.share, max(self.seconds_to_graph, self._budget.price)
        saving = prospect.saving if share is None else 1.0 - share
        saved = calls * self._budget.eager * saving
        return saved >= AGAIN * factor * price and self._budget.bound.affords(price)

    @property
    def is_due(self) -> bool:
        """Whether the first graph may be made now."""
        if not self.decides:
            return True
        prospect = self.prospect()
        if self._budget.bound.is_set:
            return prospect is not None and self._is_affordable(prospect)
        return prospect is not None and self._budget.seconds_in_eager >= prospect.after

    def when(self, prospect: Prospect) -> str:
        """Return when the first graph is made, in words."""
        if self._budget.bound.is_set:
            after = pays_from(1.0 - prospect.saving, prospect.price)
            return f"once the calls to come are expected to take {after:.0f} s"
        return f"after {prospect.after / self._budget.eager:,.0f} calls, when it is worth its price"

    def _is_affordable(self, prospect: Prospect) -> bool:
        # What one call has cost to watch is spent: what counts is what is to come. A program whose end is unknown is
        # expected to run for as long again, if nothing was measured.
        budget = self._budget
        done = budget.seconds_in_eager
        coming = budget.bound.coming(done) if prospect.measured else max(budget.bound.coming(done), done)
        if not gains(1.0 - prospect.saving, coming, prospect.price):
            return False
        budget.bound.count_on(prospect.saving * coming)
        return True

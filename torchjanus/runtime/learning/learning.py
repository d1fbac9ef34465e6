"""Learns from the watched runs of one function: makes graphs of them, relaxes assumptions that break, drops graphs that
fail.

This module does not know how a call is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torchjanus.core.errors import NOWHERE, Place, Refusal
from torchjanus.core.kinds import isinstance
from torchjanus.core.logs import logger
from torchjanus.execute.compiled.duty_cycle import DUTY
from torchjanus.host.assumption import Assumption
from torchjanus.rewrite import Site
from torchjanus.runtime.entries.dispatch import Route
from torchjanus.runtime.entries.engine import default_executor
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.entries.entry_making import is_expected
from torchjanus.runtime.entries.path_tree import BranchPoint
from torchjanus.runtime.launch.outcomes import Violation
from torchjanus.runtime.learning.entry_maker import EntryMaker, LearningState
from torchjanus.runtime.learning.pending_graphs import PendingGraphs
from torchjanus.runtime.learning.policy import LearningPolicy
from torchjanus.runtime.learning.recursive_calls import RecursiveCalls
from torchjanus.runtime.learning.routes import Routes
from torchjanus.runtime.pass_log.pass_log import PassLog, observing
from torchjanus.runtime.runs.budget import Budget
from torchjanus.runtime.runs.experience import Experience
from torchjanus.runtime.runs.marks import Marks
from torchjanus.runtime.runs.paths import Group, Paths
from torchjanus.runtime.runs.payback import Payback
from torchjanus.runtime.runs.records import EventLog
from torchjanus.runtime.runs.saved_graphs import SavedGraphs
from torchjanus.runtime.runs.varying_reads import VaryingReads
from torchjanus.semantics.containers.number_rows import Columns
from torchjanus.semantics.external.data_parallel import is_passing
from torchjanus.trace.events import Trace
from torchjanus.trace.operations import op_count

__all__ = ["Learning"]

log = logger("calls")

MAX_COMPILES = 24
UNLIKE = 6  # watched runs, no two of one path, before the statements in which they differ are left to Python
SPECIALIZED = 8  # consecutive runs that need the very value of a number that grows, before parts are tried
HOPELESS = 20  # watched runs, no two of one path and no graph: parts are tried
SAMPLED = 3  # if they differ in what an extern call has returned
TOO_MANY = 6  # graphs that are hardly used, before that is done
MAX_VIOLATIONS = 6
MAX_ERRORS = 16
REASONS = 4  # reported for one miss
CLOSURE_SEARCH, TOO_LONG = "closure-search", "watching-too-long"  # refusals: the next run would be refused, too
RARELY = 10  # an entry is kept if its assertions fail in at most one of so many runs

DOUBLED = Refusal(
    "backward-double",
    "a backward pass with create_graph=True goes through the results of a graph",
    "second derivatives are added up in another order than in eager. From now on Python makes the calls.",
    "Call autograd.grad() and backward() inside the step.",
)
_UNDECIDED = (
    "its assertions keep failing: a tensor decides which path is taken. Instead: choose with torch.where(), or "
    "take the decision outside of the step"
)


def _nothing() -> None:
    """Do nothing."""


class Learning:
    """``name``: the function's name in the log; ``home``: its place in the source; ``watch`` and ``executor``: see
    speculate(). ``cut`` leaves the statements in which runs differ to Python, and returns whether it can;
    ``cut_schedule`` does so with first statements in which a number decides. ``after``: what was learnt before a cut;
    ``unserved``: see LearningPolicy; ``account``: see Budget; ``marks``: what the user has marked as varying;
    ``experience``: see Payback; ``lifetimes``: see ``watch_call``."""

    def __init__(
        self,
        name: str,
        home: Place = NOWHERE,
        *,
        watch: int,
        executor: str | None,
        cut: Callable[[Sequence[Trace]], bool],
        cut_schedule: Callable[[Trace], bool] | None = None,
        after: Learning | None = None,
        passes: PassLog | None = None,
        unserved: Callable[[], None] = _nothing,
        account: Budget | None = None,
        marks: Marks | None = None,
        lifetimes: bool = False,
        experience: Callable[[], Experience | None] = lambda: None,
    ) -> None:
        self.watch = watch
        self.lifetimes = lifetimes
        self._before: int = 0 if after is None else after.watched  # calls watched before a cut
        self.saved: SavedGraphs = SavedGraphs() if after is None else after.saved
        self.marks: Marks = after.marks if after is not None else marks or Marks()
        self._cut, self._cut_schedule = cut, cut_schedule
        self.passes = passes  # the log of passes; None unless it was asked for
        self._patient = UNLIKE if after is None else watch + 1
        self.event_log: EventLog = EventLog(name, home, None if after is None else after.event_log)
        self.counts = self.event_log.counts
        self.paths = Paths(self.counts)
        # Only without a named executor may it depend on a clock which calls graphs make.
        limited = (executor or default_executor()) == "auto"
        self.budget: Budget = Budget(limited=limited, account=account) if after is None else after.budget
        self.budget.begin_again()
        self.routes = Routes(self.event_log, executor, self.budget)
        self.pending_graphs = PendingGraphs(self.event_log)
        self.payback: Payback = Payback(self.budget, DUTY.is_full, experience) if after is None else after.payback
        self.policy = LearningPolicy(
            self.event_log, self.paths, self.routes, self.pending_graphs, self.budget, self.payback, unserved
        )
        self.varying_reads = VaryingReads()
        self.columns = Columns()
        self.deciding: set[Site] = set()  # the ``if`` statements in which tensors decided
        self.calls = RecursiveCalls(self.event_log, self.routes)
        self.recursion = self.calls.recursion
        state = LearningState(
            self.event_log, self.paths, self.routes, self.pending_graphs, self.policy, self.budget, self.marks,
            self.calls, passes, self.varying_reads,
        )  # fmt: skip
        self.maker = EntryMaker(state, cut, self._made_first)
        # Runs watched, calls speculated, and paths: when the first graph was made, or when graphs last made more calls
        # than were watched.
        self._since = (0, 0, 0)
        self._differing = watch  # watched runs at which it is reported that they differ
        self._specialized = 0  # see SPECIALIZED

    @property
    def watched(self) -> int:
        """How many calls were watched, those before a cut included."""
        return self._before + self.counts.watched

    def begin_again(self) -> None:
        """Learn again after giving up."""
        self.calls.begin_again()
        self.policy.begin_again()

    # -- traces and entries ---------------------------------------------------------------------------------------

    def learn(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record one watched run, and make an entry when enough runs agree."""
        with observing(self.passes, trace):
            self._learn(trace, args, kwargs)

    def _learn(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.payback.record_watch(op_count(trace.events))
        for access_path, what, place in self.varying_reads.learn(trace):
            text = f"{access_path} was another {what} again: it is an input from now on"
            self.event_log.record("relax", text, place)
        self.columns.settle(trace)
        self.paths.take(trace, args, kwargs)
        if not self.calls.learn(trace):
            return
        merged = self.calls.merged(trace)
        if merged is None:
            return
        trace, renewed = merged, self.calls.take_renewed()
        if trace.refusals:
            self._take_refused(trace)
            return
        if self.counts.watched == 1 and self._cut_schedule is not None and self._cut_schedule(trace):
            return
        group = self.paths.group_of(trace, (len(args), tuple(kwargs)))
        self.event_log.remarks.take(trace.remarks, self.paths.concerns)
        self.paths.trim([entry.group for entry in self.routes.entries])
        self.budget.record_usefulness((len(group.traces) > 1 and group.refusal is None) or renewed)
        if self._stops_or_cuts() or not self._is_enough(group, renewed):
            return
        if self.counts.compiles >= MAX_COMPILES:
            self.policy.close(f"{self.counts.compiles} graphs were made and calls still differ from what was assumed")
            return
        making = partial(self.maker.make, group)
        if self.policy.may_make():
            self.begin(making)
        else:
            self.pending_graphs.defer(making)

    def _take_refused(self, trace: Trace) -> None:
        """Record a run of which no graph can be made. Leave the refused statements to Python if that is possible, else
        count the refusal."""
        self.counts.refused += 1
        self.budget.record_usefulness(False)
        self.paths.drop(trace)
        # What is refused in a call whose rest was not watched says nothing of the program.
        refusals = [one for one in trace.refusals if one.reason == TOO_LONG] or trace.refusals
        for refusal in refusals:
            self.event_log.refuse(refusal)
        if any(map(is_passing, refusals)):
            return  # the next call is watched, too
        at_once = {one.reason for one in refusals} in ({TOO_LONG}, {CLOSURE_SEARCH})
        most = 1 if at_once else max(self.watch, 3)
        if at_once or self.counts.refused < most or self.routes.entries or not self._cut([trace]):
            self.policy.record_refusal(str(self.event_log.placed(refusals[0])), most)

    def _stops_or_cuts(self) -> bool:
        """Give up, or leave statements to Python, if the runs so far differ too much for graphs to serve later calls.
        Return whether that was done."""
        unlike = self.paths.count == self.counts.watched > 1
        if (wasted := self.calls.wasted(unlike=unlike)) is not None:
            self.event_log.refuse(wasted)  # where parts cannot be
            why = f"trees are others in each call, and their nodes cannot be run together: {wasted}"
            self.policy.give_up(why, True)
            return True
        if unlike and self.counts.watched >= self._differing and not self.routes.entries:
            self._differing = 2 * self.counts.watched
            what, place = self.paths.difference()
            self.event_log.record("differs", f"no two runs are alike; {what}", place, "learning-unserved")
        self._specialized = self._specialized + 1 if unlike and self.paths.specialize_on_growth else 0
        if (self._paths_rarely_repeat() or self._are_too_many) and self._cut(self.paths.latest):
            return True
        hopeless = self._specialized >= SPECIALIZED or (unlike and self.counts.watched >= HOPELESS)
        if hopeless and not self.routes.entries:
            self.policy.give_up(f"no two runs are alike; {self.paths.difference()[0]}", True)
            return True
        return False

    def _is_enough(self, group: Group, renewed: bool) -> bool:
        """Whether a graph is to be made of the runs of ``group``. ``renewed``: the last one showed new variants of
        recursive calls."""
        few = self.watched < self.watch or len(group.traces) < min(2, self.watch)
        if group.refusal is not None or (few and not self._is_expected(group)):
            return False
        # Otherwise only variants of recursive calls were new.
        return not (renewed and any(entry.group is group for entry in self.routes.entries))

    def _is_expected(self, group: Group) -> bool:
        """Whether a saved step has the graph of this path: then one run is enough."""
        if not self.saved.graphs:
            return False
        for _ in self.marks.apply(group):
            return False
        return is_expected(group, self.recursion.variant_table, self.saved)

    def begin(self, making: Callable[[], Route | None]) -> Route | None:
        """Make graphs in this call, or ask another process for them, and charge the budget."""
        begun = self.budget.clock()
        try:
            return self.pending_graphs.begin(making)
        finally:
            self.budget.charge("make", self.budget.clock() - begun, in_call=True)

    def _paths_rarely_repeat(self) -> bool:
        """Whether most runs have taken a path of their own, and graphs have made few calls: since the first call, since
        the first graph was made, or since graphs last made more calls than were watched."""
        now = self._now
        watched, speculated, paths = (one - before for one, before in zip(now, self._since, strict=True))
        if speculated > watched:
            self._since = now
        if watched < min(self._patient, SAMPLED) or 4 * paths < 3 * watched or speculated > watched:
            return False
        return watched >= self._patient or self.paths.differ_in_results

    def _made_first(self) -> None:
        """Forget the runs watched before there was a graph: they say nothing of what graphs serve."""
        self._since = self._now
        self.payback.record_graph()

    @property
    def _now(self) -> tuple[int, int, int]:
        return self.counts.watched, self.counts.speculated, self.paths.count

    @property
    def _are_too_many(self) -> bool:
        """Whether many graphs have been made that made few calls."""
        return self.counts.compiles >= TOO_MANY and self.counts.speculated <= 2 * self.counts.watched

    def _report_miss(self, broken: Sequence[Assumption], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Report why an entry's guards do not hold. A shorter list breaks all assumptions about its last elements, so
        only assumptions that can still be read count as reasons, and only a few are reported."""
        reasons = [assumption for assumption in broken if assumption.is_reached(args, kwargs)] or broken[:1]
        for number, assumption in enumerate(reasons[:REASONS]):
            left = len(reasons) - REASONS if number == REASONS - 1 else 0
            more = f" (and {left} more of what is assumed does not hold)" if left > 0 else ""
            observed = assumption.observed(args, kwargs)
            self.event_log.record("miss", f"{assumption}, but now {observed}{more}", assumption.place)

    # -- what calls show of them ----------------------------------------------------------------------------------

    def relax(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Route | None:
        """Find an entry that would serve if one of its assumptions were weaker, and weaken it (JANUS, figure 4).
        Returns the route to try, or None."""
        for route in self.routes:
            for entry in route.entries:
                broken = entry.broken(args, kwargs)
                self._report_miss(broken, args, kwargs)
                tokens = [entry.relaxable(assumption) for assumption in broken]
                # The traces hold the heap of their runs: they can be generalised to this call only if nothing else has
                # changed.
                if not tokens or not all(tokens):
                    continue
                for assumption in broken:
                    self.event_log.record(
                        "relax", f"{assumption}: relaxed, it is an input from now on", assumption.place
                    )
                for other in route.entries:
                    other.group.relaxed.update(token for some in tokens for token in some)
                made = self.begin(partial(self.maker.remake, route))
                if made is not None or self.pending_graphs.is_waiting:
                    return made
        return None

    def unserved(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Place, str]:
        """Return why the graphs in use do not serve a call: the place and the first reason."""
        for entry in self.routes.entries:
            for assumption in entry.broken(args, kwargs):
                return assumption.place, f"{assumption}, but now {assumption.observed(args, kwargs)}"
        return NOWHERE, "a tensor decides otherwise" if self.routes.entries else "no graph has been made yet"

    def record_violation(self, part: Entry | BranchPoint, violation: Violation) -> None:
        """Record the assertions that failed."""
        self.counts.violated += 1
        for number in violation.violated.assertions:
            assertion = part.assertion(number)
            self.event_log.record(
                "violation", f"a condition on tensors stopped being {assertion.expected}", assertion.place
            )

    def is_exception(self, part: Entry | BranchPoint, violation: Violation) -> bool:
        """Whether only the number of elements that the graph selected broke its assumptions, and rarely: then Python
        makes the call unwatched. (If not, the host makes the selection from the next such run on.)"""
        if not isinstance(part, Entry) or not part.lowered.sized:
            return False
        first = len(part.lowered.assertions) - len(part.lowered.sized)
        if any(number < first for number in violation.violated.assertions):
            return False
        part.exceptions += 1
        return part.exceptions * RARELY <= part.runs

    def count_violation(self, part: Entry | BranchPoint) -> None:
        """Count a violation against an entry, and drop the entry after too many. Violations do not count while a graph
        of the other path is being made."""
        if self.pending_graphs.is_waiting:
            self.pending_graphs.record_wasted_run()
            return
        part.violations += 1
        if isinstance(part, Entry) and part.violations >= MAX_VIOLATIONS and part.violations * RARELY > part.runs:
            self.drop(part, _UNDECIDED, "learning-assertions-fail")

    def record_raise(self, entry: Entry, error: BaseException) -> None:
        """Record that the entry's graph raised, and the program too. An entry that mostly raises is dropped."""
        entry.errors += 1
        self.event_log.record("raised", f"the graph raised {type(error).__name__}, and so does eager on these values")
        if entry.errors >= MAX_ERRORS and entry.errors > entry.runs:
            self.drop(entry, f"its graph raises more often than not: {type(error).__name__}", "learning-graph-raises")

    def record_other_decision(self, entry: Entry, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Learn from a run whose graph raised, since the program decided otherwise than the graph asserts."""
        self.counts.violated += 1
        self.event_log.record("violation", "an operation raised that the program does not come to on these values")
        self.count_violation(entry)
        self.learn(trace, args, kwargs)

    def record_verification(self, entry: Entry, differences: list[str]) -> None:
        """Record a verified call. An entry that differs from eager is dropped."""
        self.counts.verified += 1
        if differences:
            text = f"a graph ({entry.engine.current}) differs from eager: {'; '.join(differences)}"
            log.warning("%s: %s. It is not used any more; please report this.", self.event_log.name, text)
            self.event_log.record("verify", f"{text}. Please report this.")
            self.drop(entry, "it was caught differing from eager")

    def leave_differentiable(self) -> None:
        """Leave calls to Python whose results are differentiated twice: the sums of second derivatives would be added
        in another order than in eager."""
        for entry in self.routes.entries:
            if (differentiable := entry.launch.differentiable) is not None and differentiable.doubled:
                self.maker.doubled = self.event_log.placed(DOUBLED)
                self.counts.refused += 1
                self.event_log.refuse(self.maker.doubled)
                self.drop(entry, str(self.maker.doubled), DOUBLED.reason)

    def end(self) -> None:
        """Close all graphs."""
        self.pending_graphs.cancel()
        self.maker.arrange([], self.routes.entries)

    def drop(self, entry: Entry, why: str, reason: str = "entry-dropped") -> None:
        """Take an entry out of use. No other entry is made of its path."""
        self.maker.arrange([], [entry])
        entry.group.refusal = Refusal(reason, "an entry was dropped", why)
        self.event_log.record("dropped", why, reason=reason)
        if not self.routes.entries and self.paths.are_refused:
            self.policy.give_up(why)

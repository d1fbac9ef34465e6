"""Makes one call of a function: by an entry, or after a miss, a violation or a failure by Python (JANUS 3.2, figure 2).

Whatever goes wrong here, the program itself completes the call. ``learning`` keeps what earlier calls have shown;
``speculate`` is what the user sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchjanus.core.access_path import RESULTS
from torchjanus.core.collector import uncollected
from torchjanus.core.default_device import foreign_modes
from torchjanus.core.errors import NewGraph, Refusal
from torchjanus.core.one_at_a_time import MAKING
from torchjanus.host.journal import Journal
from torchjanus.rewrite.hooks import current
from torchjanus.runtime.entries.dispatch import Route
from torchjanus.runtime.entries.engine import make_ready
from torchjanus.runtime.entries.entry import Entry, contradicted
from torchjanus.runtime.entries.verify import shadow_call
from torchjanus.runtime.launch.outcomes import MISS, RAISED, Failure, Violation, failure
from torchjanus.runtime.learning.learning import Learning
from torchjanus.runtime.parts.finished_graphs import FinishedGraphs, is_within_run
from torchjanus.runtime.parts.targets import Target, target_of
from torchjanus.runtime.runs.stance import in_force
from torchjanus.semantics.protocols.depth import room
from torchjanus.semantics.torch.torch_state import hindrance
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import name_of
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.outline import outlined

__all__ = ["Calls"]

TRUSTED_ERRORS = 3


class Calls:
    """Makes the calls of ``fn``: by the routes that ``learning`` keeps, by Python, or under watch."""

    def __init__(self, fn: Callable[..., Any], learning: Learning) -> None:
        self.fn = fn
        self.served_by: Route | None = None  # the graphs that made the latest call
        self.native = fn  # what Python runs where it makes a call unwatched
        self.learning = learning
        self.counts = learning.counts
        self.event_log = learning.event_log
        self.policy = learning.policy
        self.pending_graphs = learning.pending_graphs
        self.budget = learning.budget
        self.finished_graphs = FinishedGraphs(learning)

    @staticmethod
    def attempt(route: Route, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Call the graphs of ``route``. Returns the result, MISS, RAISED, a Violation, or a Failure for an
        exception."""
        if journal is not None:
            journal.begin()
        try:
            return route.call(args, kwargs, journal)
        except Exception as error:
            return failure(error)

    def finish(
        self, route: Route, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None
    ) -> Any:
        """Complete a call whose guards held, and return its result. No exception is being handled here, so that one
        raised by the program has no other as its context."""
        if type(result) is Violation:
            part = result.by or route.entries[0]
            self.learning.record_violation(part, result)
            if self.learning.is_exception(part, result):
                return self._run_imperatively(args, kwargs, journal)
            made = self._after_violation(args, kwargs, journal)
            self.learning.count_violation(part)
            return made
        if type(result) is Failure:
            return self._after_failure(route, result, args, kwargs, journal)
        if result is RAISED:
            return self._run_imperatively(args, kwargs, journal)
        self.policy.record_served()
        if self.learning.paths.may_hold_replaced and MAKING.acquire(blocking=False):
            try:
                self.learning.paths.let_go(args, kwargs)
            finally:
                MAKING.release()
        route.runs += 1
        route.used = self.counts.calls
        self.served_by = route
        if journal is not None and not journal.is_met:
            self.close(journal, served=True)  # an entry that was tried before may have made more extern calls
        return result

    def is_verification_due(self, every: int) -> bool:
        """Whether enough calls were speculated since the last verified call."""
        counts = self.counts
        return counts.speculated >= (every - 1) * (counts.verified + 1)

    def verify(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Make one call by a graph on copies, and by the program for real. Returns the program's result, or MISS if no
        entry's guards hold."""
        routes = [*self.learning.routes]
        for route in routes:
            if journal is not None:
                journal.begin()
            try:
                shadow = shadow_call(route, args, kwargs, journal)
            except Exception as error:
                return self.finish(route, failure(error, route.entries[0]), args, kwargs, journal)
            if shadow is MISS or (type(shadow) is Violation and route is not routes[-1]):
                continue
            if shadow is RAISED or type(shadow) is Violation:
                return self.finish(route, shadow, args, kwargs, journal)
            entry = shadow.entry
            made = [] if journal is None else journal.made()
            try:
                result = self._repeat(args, kwargs, journal)
            except Exception as error:
                self.learning.record_verification(entry, [f"eager raised {type(error).__name__}: {error}"])
                raise
            # A call without effects may be repeated (see ``Journal.known``): that is no difference.
            harmful = [record for record in made if not record.taken and not (record.harmless and record.undo is None)]
            unmet = [f"{name_of(record.func)} was called, and eager does not" for record in harmful]
            self.learning.record_verification(entry, [*unmet, *shadow.differences(result)])
            return result
        return MISS

    def _run_imperatively(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None = None) -> Any:
        """Run the function as it is, after undoing extern calls of a graph that are without effects. See _repeat for
        calls with effects: none is made twice."""
        if journal is not None and journal.harmless:
            journal.close()
        return self._repeat(args, kwargs, journal)

    def by_python(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function as it is, and charge its time to the budget."""
        self.budget.seconds_of_parts = 0.0
        begun = self.budget.clock()
        try:
            return self.native(*args, **kwargs)
        finally:
            self.budget.record_python_call(self.budget.clock() - begun)

    def _repeat(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Run the function as it is, watched if a graph has made extern calls, so that it takes their results from the
        journal."""
        self.counts.imperative += 1
        found = target_of(self.fn, self.event_log, self.policy) if journal is not None and journal.records else None
        if found is None:
            return self.by_python(args, kwargs)
        assert journal is not None
        self.policy.record_repeat()
        self.budget.begin_learning("repeat")
        return self._watched(found, args, kwargs, journal)[0]

    def _watched(
        self, found: Target, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None
    ) -> tuple[Any, Trace]:
        """Run the program under watch, and afterwards undo extern calls of the journal that it did not make. Returns
        its result and the trace."""
        journal, learning = Journal() if journal is None else journal, self.learning
        loose, functions = learning.varying_reads.loose, learning.recursion.functions
        known: Any = learning.columns, learning.deciding, learning.lifetimes, self.budget.longest_watch
        journal.begin()
        try:
            with outlined(learning.passes is not None):  # they are shown with the run as a tree
                return watch_call(*found, args, kwargs, journal, loose, functions, *known)
        finally:
            self.close(journal)

    def close(self, journal: Journal, served: bool = False) -> None:
        """Close the journal, and record each extern call that a graph made and the program did not."""
        for record in journal.close(served):
            self.event_log.record("extern", f"{name_of(record.func)} was called, and the program did not come to it")

    def handle_miss(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Make a call for which the guards of no entry hold: relax an entry, watch the call, or leave it to Python."""
        learning = self.learning
        semantics: Any = current()
        if semantics is not None:
            # Reached through native code: the call is still part of the run that is being watched.
            self.counts.imperative += 1
            return semantics.call(None, self.fn, args, kwargs)
        # such a call is not even watched: the modes would see watching's own calls of torch
        if modes := foreign_modes():
            what = f"the step runs under {modes}"
            why = "it sees each call of torch, of which a graph makes none."
            self.event_log.refuse(Refusal("torch-mode", what, why, "Leave it out."))
            return self._run_imperatively(args, kwargs, journal)
        due = self.counts.calls >= self.policy.again and in_force.learns
        if self.policy.given_up and not due:
            self.policy.record_miss()
            return self._run_imperatively(args, kwargs, journal)
        if is_within_run() or not MAKING.acquire(blocking=False):
            return self._run_imperatively(args, kwargs, journal)
        try:
            if due:
                learning.begin_again()
            if self.policy.closed:
                self.policy.record_unserved()
                return self._run_imperatively(args, kwargs, journal)
            learning.leave_differentiable()
            if learning.routes.entries:
                if hindrance():  # a graph for this call would not be right either
                    return self._run_imperatively(args, kwargs, journal)
            if not in_force.learns and not self.pending_graphs.is_waiting:
                return self._without_new_graph(args, kwargs, journal)
            if learning.routes.entries:
                self.counts.missed += 1
                if self.budget.limited:  # else graphs and Python are not compared
                    learning.routes.dispatch.record_miss(args, kwargs)
            if self.pending_graphs.is_waiting:
                if journal is not None and journal.records:
                    self.pending_graphs.record_wasted_run()
                self.finished_graphs.take_up()
                return self._run_imperatively(args, kwargs, journal)
            if not self.policy.has_time():
                route = self._relax(args, kwargs, journal) if self.policy.may_relax() else None
                if route is not None:
                    return self._retry(route, args, kwargs, journal, watching=False)
                self.policy.record_miss()
                return self._run_imperatively(args, kwargs, journal)
            return self._learn_from(args, kwargs, journal)
        finally:
            MAKING.release()

    def _without_new_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Make a call that needs a new graph under a stance that permits none: by Python, or not at all. Raises
        NewGraph. A part of a step, and a call whose extern calls have been made, are completed by Python."""
        place, why = self.learning.unserved(args, kwargs)
        self.event_log.record("new graph", f"a call needs one, and the stance is {in_force.name}: {why}", place)
        if in_force.fails and not self.budget.is_of_part and (journal is None or not journal.records):
            self.counts.calls -= 1
            where = place if place.line else self.event_log.home
            raise NewGraph(
                f"{where}: {self.event_log.name} needs a new graph for this call: {why}. "
                f'The stance is {in_force.name}; stance("default") lets graphs be made.'
            )
        self.counts.missed += bool(self.learning.routes.entries)
        self.policy.record_miss()
        return self._run_imperatively(args, kwargs, journal)

    def _learn_from(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Make a call that no graph could make, and learn from it."""
        if self.learning.routes.entries:
            route = self._relax(args, kwargs, journal)
            if route is not None:
                return self._retry(route, args, kwargs, journal)
        if self.pending_graphs.is_waiting or not self.policy.may_watch():
            return self._run_imperatively(args, kwargs, journal)
        return self._watch(args, kwargs, journal)

    def _relax(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Route | None:
        """Return the route that serves this call, or may serve it, once an assumption has been weakened; None if there
        is none."""
        try:
            results = {} if journal is None else journal.results()
            with uncollected():
                return self.learning.relax(args, {**kwargs, RESULTS: results} if results else kwargs)
        except Exception as error:
            self.policy.record_fault(error)
            return None

    def _retry(
        self,
        route: Route,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        journal: Journal | None,
        watching: bool = True,
    ) -> Any:
        """Make the call by ``route``. ``watching``: whether the call may be watched if the guards of the route do not
        hold."""
        if route.journaled and journal is None:
            journal = Journal()
        result = self.attempt(route, args, kwargs, journal)
        if result is MISS:
            return (self._watch if watching else self._run_imperatively)(args, kwargs, journal)
        return self.finish(route, result, args, kwargs, journal)

    def _after_violation(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Make the call by Python, watched if another path is worth learning."""
        if self.pending_graphs.is_waiting:
            self.finished_graphs.take_up()
            return self._run_imperatively(args, kwargs, journal)
        if not in_force.learns and not self.policy.given_up and not self.policy.closed:
            return self._without_new_graph(args, kwargs, journal)
        if not self.policy.may_watch_new_path() or is_within_run() or hindrance():
            return self._run_imperatively(args, kwargs, journal)
        if not MAKING.acquire(blocking=False):
            return self._run_imperatively(args, kwargs, journal)
        try:
            return self._watch(args, kwargs, journal)
        finally:
            MAKING.release()

    def _watch(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Make the call under watch, and learn from its trace."""
        found = target_of(self.fn, self.event_log, self.policy)
        if found is None:
            return self._run_imperatively(args, kwargs)
        self.policy.record_watch()
        self.budget.begin_learning("watch")
        if self.counts.watched == 1 and not self.budget.bound.is_set:
            make_ready(self.learning.routes.executor, self.budget, graphs=False)
        elif self.counts.watched == 2:
            with uncollected(kept=True):
                make_ready(self.learning.routes.executor, self.budget, graphs=True)
        try:
            result, trace = self._watched(found, args, kwargs, journal)
        except BaseException as error:
            self.event_log.record("raised", f"the call raised {type(error).__name__}: no trace of it is kept")
            raise
        try:
            with room(), uncollected(kept=True):
                self.learning.learn(trace, args, kwargs)
                if self.counts.watched == 1 and self.learning.payback.is_due:
                    make_ready(self.learning.routes.executor, self.budget, graphs=False)
        except Exception as error:
            self.policy.record_fault(error)
        return result

    def _after_failure(
        self, route: Route, failure: Failure, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None
    ) -> Any:
        """Complete a call whose graph raised, or raise that exception again if the results were already being
        committed."""
        error, entry = failure.error, failure.by or route.entries[0]
        if failure.committing:
            # The cause is a closed pipe under print, or a fault of torchjanus. Updates stay, as after an exception in
            # eager.
            self.counts.speculated += 1
            entry.runs += 1
            self.learning.drop(entry, f"{type(error).__name__} was raised when its results were committed")
            error.add_note("torchjanus: raised when the results of a graph were committed; its tensors are updated.")
            raise error
        # The graph raised, and changed nothing: eager decides whether the program raises, too.
        if entry.errors >= TRUSTED_ERRORS:
            self.learning.record_raise(entry, error)
            return self._run_imperatively(args, kwargs, journal)
        return self._after_suspect(route, entry, error, args, kwargs, journal)

    def _after_suspect(
        self,
        route: Route,
        entry: Entry,
        error: BaseException,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        journal: Journal | None,
    ) -> Any:
        """Make the call under watch. Drop ``entry`` if no operation of the program fails in it, whether the program
        catches the exception or not, unless the program decides otherwise than all paths of the route: a part that
        paths share runs before all of their assertions are checked."""
        found = None if is_within_run() else target_of(self.fn, self.event_log, self.policy)
        if found is None or not MAKING.acquire(blocking=False):
            return self._run_imperatively(args, kwargs, journal)
        self.counts.watched += 1
        self.budget.begin_learning("suspect")
        try:
            result, trace = self._watched(found, args, kwargs, journal)
        except BaseException:
            self.learning.record_raise(entry, error)
            raise
        finally:
            MAKING.release()
        learning = self.learning
        if trace.failures:
            learning.record_raise(entry, error)
        elif all(contradicted(path, trace) for path in route.entries):
            learning.record_other_decision(entry, trace, args, kwargs)
        else:
            self.policy.record_fault(error)
            learning.drop(entry, f"its graph raised {type(error).__name__} where eager does not")
        return result

"""Merges the iterations of switched loops and if-regions in the runs of one function, once enough runs were watched.

Keeps what earlier runs have shown of each loop. Works on traces, not on tensor programs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchjanus.core.errors import Place, Refused
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.ir.passes import Part, Pass, PassList, Stage
from torchjanus.graph.loops.analysis.tensor_termination import terminated_loops
from torchjanus.graph.loops.rewrites.accumulators import functional_accumulators
from torchjanus.graph.loops.rewrites.filled_tensors import sink_element_writes
from torchjanus.graph.loops.rewrites.fold import ACCUMULATORS, LISTS, is_one_iteration_form
from torchjanus.graph.loops.rewrites.sums import sums_from_zero_tensors
from torchjanus.graph.switches.analysis.arms import SwitchSites
from torchjanus.graph.switches.analysis.before_loop import NamesBeforeLoop
from torchjanus.graph.switches.analysis.iterations import is_decided
from torchjanus.graph.switches.rewrites.emit import with_switches
from torchjanus.graph.switches.rewrites.host_decisions import host_draws
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import NumberPredicate, TensorPredicate
from torchjanus.trace.loops.records import LoopSnapshots

__all__ = ["SWITCHES", "SWITCH_OPERANDS", "LoopMerger"]

MOST = 32  # loops
MOST_FAILED = 48  # attempts to merge that fail, in one run: what is left then is a path of its own
# Loops times events of a run: each merge looks at all events, some 50 us for each. A run beyond that (an evaluation
# within a step, say) is a path of its own, and other runs of the step are merged.
MOST_EVENTS = 50_000
# Up to so many ``if`` statements that tensors decide, and that took both arms, each path has its own graph. That is up
# to two to this power of graphs, but they need no switch and so run faster.
APART = 3


class LoopMerger:
    """What the runs of one function have shown of its loops."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, list[SwitchSites]] = OrderedDict()
        self.sums_from_zero_tensors: set[Place] = set()  # places where sums begin with a Python number
        self._outcomes: dict[Any, set[bool]] = {}  # outcomes of the first decision of each region
        self._counts: dict[Place, set[int]] = {}  # trip counts of each loop whose variables are followed
        self._trips: dict[Place, set[int]] = {}  # trip counts of each loop
        self._leaving: set[Place] = set()  # tensor predicates that ended loops

    def learn(self, trace: Trace) -> None:
        """Record the decisions of a run's regions, the predicates that ended its loops, and the loops' trip counts."""
        for iterations in terminated_loops(trace):
            last = trace.events[iterations.end - 1]
            if isinstance(last, TensorPredicate | NumberPredicate) and last.outcome != iterations.count.go:  # type: ignore[union-attr]
                self._leaving.add(last.place)
        for counts, loops in ((self._counts, trace.frames), (self._trips, trace.loops)):
            for loop in loops:
                known = counts.setdefault(loop.place, set())
                if len(known) < 2:
                    known.add(len(loop.starts))
        met = Counter[Place]()
        for frames in (one for one in trace.frames if one.region):
            asked = (trace.events[at] for at in trace.changed if frames.starts[0] <= at < frames.end)
            first = next(asked, None)
            if isinstance(first, TensorPredicate | NumberPredicate):
                key = (frames.place, met[frames.place])  # each region of an iteration counts for itself
                met[frames.place] += 1
                self._outcomes.setdefault(key, set()).add(bool(first.outcome))

    def changes(self, place: Place) -> bool:
        """Whether the loop that is written there has had several trip counts, for all that is known."""
        all_counts = (*self._counts.items(), *self._trips.items())
        counts = (known for at, known in all_counts if (at.file, at.line) == (place.file, place.line))
        return len(next(counts, (0, 1))) > 1

    @property
    def _joins(self) -> bool:
        """Whether so many regions took both arms that a graph for each path would be too many."""
        return sum(len(outcomes) > 1 for outcomes in self._outcomes.values()) > APART

    def decides(self, trace: Trace) -> bool:
        """Whether tensors decide in the iterations of a loop, or in enough regions that these become switches."""
        return any(self._deciding(trace))

    def _deciding(self, trace: Trace) -> Iterator[LoopSnapshots]:
        """Yield the loops and regions in which tensors decide."""
        if not trace.failures:
            yield from (frames for frames in self._frames(trace) if self._is_decided(frames, trace))

    def _is_decided(self, frames: LoopSnapshots, trace: Trace) -> bool:
        changing = len(self._counts.get(frames.place, ())) > 1
        return is_decided(frames, trace, changing) and not self._is_left(frames, trace)

    def _is_left(self, frames: LoopSnapshots, trace: Trace) -> bool:
        """Whether the only predicate of the iterations ends the loop, and the run has a one-iteration form.

        Then one graph serves all runs, without a switch."""
        asked = [position for position in trace.changed if frames.starts[0] <= position < frames.end]
        places = {trace.events[position].place for position in asked}
        if len(asked) != len(frames.starts) or len(places) != 1 or not places <= self._leaving:
            return False
        return is_one_iteration_form(trace, max(asked) + 1)

    def _frames(self, trace: Trace) -> list[LoopSnapshots]:
        joins = self._joins
        return [frames for frames in trace.frames if joins or not frames.region]

    def merge(self, trace: Trace) -> Trace:
        """Return the run with such loops and regions merged; the same object where none can be."""
        deciding = [*self._deciding(trace)]
        if not deciding:
            return trace
        if len(deciding) * len(trace.events) > MOST_EVENTS:
            size = f"{len(deciding)} loops in a run of {len(trace.events):,} events"
            trace.remarks.note(deciding[0].place, "branch-long-run", size)
            return trace
        SWITCH_OPERANDS.begin(trace)
        merged, passed = LISTS(trace), 0
        ranges = [(one.starts[0], one.end) for one in merged.loop_instances if one.starts]
        ranges += [(one.starts[0], one.end) for one in merged.frames if one.starts]
        merged = ACCUMULATORS.gave(functional_accumulators(merged, ranges))
        done, failed = False, 0
        # Each attempt looks at all events, and a run may have hundreds of loops and regions.
        while failed < MOST_FAILED and (loop := self._next(merged, passed)) is not None:
            try:
                merged = SWITCHES.run(merged, _MergeContext(self, loop))
            except NotMergeable as error:
                trace.remarks.note(loop.place, error.reason, error.detail)
                passed, failed = passed + 1, failed + 1
            except Refused as error:
                trace.remarks.note(loop.place, error.refusal.reason, error.refusal.what)
                passed, failed = passed + 1, failed + 1
            else:
                trace.remarks.merged(loop.place)
                passed, done = 0, True
        return merged if done else trace

    def _next(self, trace: Trace, passed: int) -> LoopSnapshots | None:
        """Return the loop or region to merge next, after ``passed`` that cannot be merged; None at the end.

        Innermost loops come first, in program order; then if-regions, the outermost first."""
        deciding = [*self._deciding(trace)]
        loops = [frames for frames in deciding if not frames.region]
        inner = [one for one in loops if not any(other is not one and _is_within(other, one) for other in loops)]
        inner.sort(key=lambda frames: frames.starts[0])
        regions = [one for one in deciding if one.region]
        regions.sort(key=lambda one: (one.starts[0], -one.end))
        order = [*inner, *regions]
        return order[passed] if passed < len(order) else None

    def switches(self, trace: Trace, loop: LoopSnapshots) -> list[SwitchSites]:
        """Return what is known of the loop, for runs with the same events before it."""
        arm = (loop.place, NamesBeforeLoop(trace, loop).token)
        found = self._known.setdefault(arm, [])
        self._known.move_to_end(arm)
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return found


@dataclass(slots=True)
class _MergeContext:
    """The context of the passes: a ``loop`` in whose iterations tensors decide."""

    merger: LoopMerger
    loop: LoopSnapshots


def _begin(trace: Trace, deciding: _MergeContext) -> Trace:
    made, deciding.loop = sums_from_zero_tensors(trace, deciding.loop, deciding.merger.sums_from_zero_tensors)
    return made


def _fill(trace: Trace, deciding: _MergeContext) -> Trace:
    made, deciding.loop = sink_element_writes(trace, deciding.loop)
    return made


def _host(trace: Trace, deciding: _MergeContext) -> Trace:
    made, deciding.loop = host_draws(trace, deciding.loop)
    return made


def _switch(trace: Trace, deciding: _MergeContext) -> Trace:
    return with_switches(trace, deciding.loop, deciding.merger.switches(trace, deciding.loop))


SWITCH_OPERANDS = PassList(Part.SWITCH_OPERANDS, (LISTS, ACCUMULATORS))
# Applied to each loop in whose iterations tensors decide, innermost first, then to each such ``if`` statement.
SWITCHES = PassList(
    Part.SWITCHES,
    (
        Pass(
            "begin_sums",
            Stage.TRACE,
            _begin,
            "Lets sums that begin with a Python number (`loss = 0.0`) begin with a tensor.",
            contextual=True,
            entry=sums_from_zero_tensors,
        ),
        Pass(
            "fill_behind_decided_loop",
            Stage.TRACE,
            _fill,
            "Moves writes of iterations to elements of a tensor behind the loop, as one write.",
            contextual=True,
            entry=sink_element_writes,
        ),
        Pass(
            "draw_before_loop",
            Stage.TRACE,
            _host,
            "Draws the host's random numbers before the loop, so that a tensor decides in their place.",
            contextual=True,
            entry=host_draws,
        ),
        Pass(
            "make_switches",
            Stage.TRACE,
            _switch,
            "Makes each iteration one switch operation, whichever arm it took.",
            contextual=True,
            entry=with_switches,
        ),
    ),
    repeated=True,
)


def _is_within(one: LoopSnapshots, other: LoopSnapshots) -> bool:
    return other.starts[0] <= one.starts[0] and one.end <= other.end

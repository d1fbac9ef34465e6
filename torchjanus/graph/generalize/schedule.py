"""Schedule the extern calls of a path: before the graph, at a cut within it, or at commit.

A call whose result nothing needs is made at commit, when all assumptions have been validated. A call whose result is
needed is made before the graph, if it needs no result of the graph, the program is certain to reach it, and nothing
can observe the difference. Otherwise the graph is cut at its place. Calls whose order is observable keep it. A call
whose error the program might handle is made early, too: if it raises, Python makes the whole call and meets the error
in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchjanus.core.errors import refused
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, HostLoop, Op, name_of
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HostComputation, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.operations import ops_of
from torchjanus.trace.recipes import ExistingObject, TensorAt, TensorOf, parts_of
from torchjanus.trace.values import Fetch, Read, leaves

__all__ = ["Schedule", "schedule"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """``stages[0]``: the calls before the graph; ``stages[k]``: those at cut k - 1, which comes before framework call
    number ``cuts[k - 1]``. All others are made at commit."""

    stages: tuple[tuple[Extern, ...], ...] = ((),)
    cuts: tuple[int, ...] = ()

    def stage_of(self, waits_for: int) -> int:
        """Return the stage from which a value is known that waits for this extern call (see
        ``AccessPath.waits_for``)."""
        if not waits_for:
            return 0
        for stage, events in enumerate(self.stages):
            if any(event.number == waits_for - 1 for event in events):
                return stage
        return len(self.stages)

    def is_early(self, waits_for: int) -> bool:
        """Whether a value that waits for this extern call is known before the commit."""
        return self.stage_of(waits_for) < len(self.stages)

    def last(self, waiting: Iterable[int]) -> int:
        """Return the one of these ``AccessPath.waits_for``, all early, that is known last."""
        order = {event.number + 1: place for place, event in enumerate(e for stage in self.stages for e in stage)}
        return max(waiting, key=lambda waits_for: order.get(waits_for, -1), default=0)

    @property
    def early(self) -> frozenset[int]:
        """The numbers of the calls that are made before the commit."""
        return frozenset(event.number for events in self.stages for event in events)


def schedule(trace: Trace, wanted: Iterable[int]) -> Schedule:
    """Return the schedule of a run's extern calls. ``wanted``: the numbers of those needed before the commit. Raises
    Refused where a call cannot be made as early as it must."""
    externs = [event for event in trace.events if isinstance(event, Extern)]
    if not externs:
        return Schedule()
    ops = ops_of(trace.events)
    last_draw = max((index for index, op in enumerate(ops) if op.draws), default=-1)
    needed = set(wanted)
    early: list[Extern] = []
    for event in reversed(externs):
        first = any(event.effects.conflicts(later.effects) for later in early)
        drawing = event.draws and event.after <= last_draw
        if event.number in needed or first or event.handled or drawing or _is_first_clock(event):
            early.append(event)
            needed.update(_waits_for(trace, event))
    early.reverse()
    _check_iterations(trace, early)
    stages: list[list[Extern]] = [[]]
    cuts: list[int] = []
    placed: list[tuple[Extern, int]] = []
    for event in early:
        after_cut = any(
            stage and (event.effects.conflicts(earlier.effects) or earlier.number in _waits_for(trace, event))
            for earlier, stage in placed
        )
        if not after_cut and _is_certain(trace, ops, event):
            stage = 0
        else:
            last = stages[-1][-1:]
            if not cuts or cuts[-1] != event.after or (last and last[0].effects.begins != event.effects.begins):
                cuts.append(event.after)
                stages.append([])
            stage = len(cuts)
        _check(trace, event)
        stages[stage].append(event)
        placed.append((event, stage))
    return Schedule(tuple(tuple(sorted(s, key=lambda e: e.number)) for s in stages), tuple(cuts))


def _check_iterations(trace: Trace, early: Sequence[Extern]) -> None:
    """Raise Refused where a call must come before extern calls of a loop's iterations: those are made at commit."""
    loops = [event for event in trace.events if isinstance(event, HostLoop) and event.externs]
    if loops and early and early[-1].number >= min(e.number for e in loops[0].events if isinstance(e, Extern)):
        what = f"{name_of(early[-1].func)} is called after a loop that calls native code, and its result is used"
        raise refused("loop-native-call", what, "Those are made when the graph has run.", place=early[-1].place)


def _is_first_clock(event: Extern) -> bool:
    """Whether a clock is read before any work is done. Read at commit, it would show a later time."""
    return event.after == 0 and event.effects.reads == frozenset({"clock"}) and not event.effects.writes


def _waits_for(trace: Trace, event: Extern) -> set[int]:
    """Return the extern calls whose results this one takes."""
    numbers: set[int] = set()
    for recipe in trace.recipes.get(id(event), ()):
        for part in parts_of(recipe):
            if isinstance(part, ExistingObject):
                numbers.add(part.access_path.waits_for - 1)
        for expr in expressions_in(recipe):
            numbers.update(leaf.access_path.waits_for - 1 for leaf in leaves(expr) if isinstance(leaf, Read))
    return numbers - {-1}


def _takes_from_graph(trace: Trace, event: Extern) -> bool:
    for recipe in trace.recipes.get(id(event), ()):
        if any(isinstance(part, TensorOf | TensorAt) for part in parts_of(recipe)):
            return True
        if any(isinstance(leaf, Fetch) for expr in expressions_in(recipe) for leaf in leaves(expr)):
            return True
    return False


def _is_certain(trace: Trace, ops: Sequence[Op], event: Extern) -> bool:
    """Whether the call may be made before the graph runs."""
    if event.late or _takes_from_graph(trace, event):
        return False
    if event.draws and any(op.draws for op in ops[: event.after]):
        return False
    if event.after and "clock" in event.effects.reads:
        return False  # it measures the work before it
    if event.effects.harmless and not event.draws:
        return True
    if any(op.checks for op in ops[: event.after]):
        return False
    for earlier in trace.events:
        if earlier is event:
            return True
        if isinstance(earlier, TensorPredicate):
            return False
        if isinstance(earlier, NumberPredicate | Specialization | HostComputation) and any(
            isinstance(leaf, Fetch) for leaf in leaves(earlier.expr)
        ):
            return False
    return True


def _check(trace: Trace, event: Extern) -> None:
    """Raise Refused if native code would miss earlier writes of the program, since these are deferred, or if a fallback
    after the call would see its changes."""
    if event.changes:
        what = f"{name_of(event.func)} is called in the middle of the step, and may change {event.changes}"
        why = "should an assumption fail after that, the program would read it as the call has left it."
        raise refused("native-call-changes", what, why, "Call it before the step, or after it.", event.place)
    why = event.stale
    if not why and event.effects.user_code and not event.blind:
        for earlier in trace.events:
            if earlier is event:
                break
            if isinstance(earlier, HeapWrite | ContainerMutation):
                why = "what the step has written before it"
                break
    if why:
        raise refused(
            "native-call-reads",
            f"{name_of(event.func)} is called in the middle of the step, and may read {why}",
            "writes are held back until the whole step has been validated.",
            "Call it before the step writes anything, or after the step.",
            event.place,
        )

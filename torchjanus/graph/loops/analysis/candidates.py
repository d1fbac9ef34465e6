"""Decides which loops of a recorded trace are rolled, that is, represented by one body for any trip count.

``as_loop`` decides for one loop, ``loops_of`` for all loops of a trace. ``AlignedLoop`` (``alignment``) checks that the
iterations are alike; ``truncation`` folds the loops that are found here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.loops.analysis.alignment import AlignedLoop, place_of_loop, token_of_count
from torchjanus.graph.loops.analysis.recurrences import passes_on
from torchjanus.graph.loops.analysis.tensor_termination import terminated_loops
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HostComputation
from torchjanus.trace.loops.records import KEPT, LoopInstance, TensorTermination, UntracedComputation
from torchjanus.trace.loops.untraced_computations import by_iteration
from torchjanus.trace.operations import made_by, op_count
from torchjanus.trace.values import Fetch, leaves

__all__ = ["as_loop", "loops_of", "token_of_count"]


def loops_of(trace: Trace) -> list[AlignedLoop]:
    """Return the outermost loops of the trace that can be rolled. A loop is excluded if its trip count also decides
    something else: then the trip count has to stay specialised."""
    if trace.failures:
        return []
    known = [one for instance in trace.loop_instances for one in (instance, instance.without_first())]
    known = sorted((*known, *terminated_loops(trace)), key=lambda instance: instance.starts[:1])
    made: dict[int, AlignedLoop | None] = {}
    bound: set[Any] = set()  # trip counts that decide more than the number of iterations
    while True:
        fit: list[AlignedLoop] = []
        for number, instance in enumerate(known):
            inside = fit and instance.starts and instance.starts[0] < fit[-1].instance.end
            if inside or token_of_count(instance) in bound:
                continue
            if number not in made:
                made[number] = as_loop(trace, instance)
            if (loop := made[number]) is not None:
                fit.append(loop)
        if all(_is_free(trace, loop, fit) for loop in fit):
            return fit
        for loop in fit:
            if not _is_free(trace, loop, fit):
                bound.add(loop.token)
                trace.remarks.note(loop.place, "loop-count-used", "the trip count decides something else, too")


def as_loop(
    trace: Trace, instance: LoopInstance, plain: Sequence[UntracedComputation] | None = None
) -> AlignedLoop | None:
    """Return the loop if it can be rolled, that is, if runs with other trip counts differ in nothing else; else None.
    ``plain``: the untraced computations that may have used the trip count or a number of the last iteration; all of the
    trace if it is not given."""
    if len(instance.starts) < (1 if isinstance(instance.count, TensorTermination) else KEPT):
        return None
    place = place_of_loop(trace, instance)
    try:
        _check_count(trace, instance, plain)
        loop = AlignedLoop(trace, instance)
    except NotMergeable as error:
        trace.remarks.note(place, error.reason, error.detail)
        return None
    trace.remarks.merged(place)
    return loop


def _check_count(trace: Trace, instance: LoopInstance, plain: Sequence[UntracedComputation] | None) -> None:
    """Raises NotMergeable where the number of iterations may decide more than how many there are."""
    if trace.measured > instance.starts[0]:
        raise NotMergeable("loop-count-used", "the length of a container is asked for after the loop has begun")
    counted = frozenset(instance.counted())
    made = trace.plain if plain is None else plain
    after = (one for one in made if one.position >= instance.end and counted.intersection(one.operands))
    if not all(_goes_by_iterations(trace, one, counted) for one in after):
        raise NotMergeable("loop-count-used", "Python computes with the number of iterations after the loop")
    if passes_on(trace, instance):
        raise NotMergeable("loop-numbers", "a loop-carried number is used after the loop")
    if _computes_on(trace, instance):
        raise NotMergeable("loop-count-used", "Python computes with a number of a tensor that the loop has changed")


def _goes_by_iterations(trace: Trace, plain: UntracedComputation, counted: frozenset[int]) -> bool:
    """Whether the untraced computation is made in each iteration of a later loop: it computes with that loop's
    induction variable, or selects a tensor of a list by it, and uses none of the numbers in ``counted`` otherwise. If
    the later loop is rolled, its body contains the computation. If not, its trip count is a constant, and so is that of
    the earlier loop."""
    for instance in trace.loop_instances:
        if len(instance.starts) < KEPT or not instance.starts[0] <= plain.position <= instance.end:
            continue
        rows = by_iteration(trace.plain, (*instance.starts, instance.end + 1))
        place = next(((n, row.index(plain)) for n, row in enumerate(rows) if plain in row), None)
        if place is None or len({len(row) for row in rows}) > 1:
            continue
        column = [row[place[1]] for row in rows]
        if plain.lookup:
            return all(one.lookup and one.structure.has_distance_of(plain.structure) for one in column)
        firsts = [one.operands[0] for one in column if one.operands]
        steps = {later - earlier for earlier, later in itertools.pairwise(firsts)}
        if len(firsts) == len(column) and len(steps) == 1 and steps != {0}:
            return counted.isdisjoint(plain.operands[1:])
    return False


def _computes_on(trace: Trace, instance: LoopInstance) -> bool:
    """Whether Python computes, after the loop, with a number fetched from a tensor that the iterations have changed. A
    graph cannot make that computation, and the host can make it beforehand only if the trip count is known."""
    later = [event.expr for event in trace.events[instance.end :] if isinstance(event, HostComputation)]
    if not later or not instance.starts:
        return False
    changed = made_by(trace.events[instance.starts[0] : instance.end])
    done = op_count(trace.events[: instance.end])
    fetched = (leaf for expr in later for leaf in leaves(expr) if isinstance(leaf, Fetch))
    return any(leaf.after >= done and leaf.ref in trace.access_paths and leaf.ref in changed for leaf in fetched)


def _is_free(trace: Trace, loop: AlignedLoop, loops: list[AlignedLoop]) -> bool:
    """Whether the trip count decides nothing but the trip counts of these loops: nothing else is specialised on it."""
    token = loop.token
    return token is None or trace.pins.get(token, 0) == sum(one.token == token and one.pinned for one in loops)

"""Finds tensor-terminated loops in a trace: ``while error > limit``, ``if done: break``.

Each iteration of such a loop ends with the same predicate; all outcomes are equal, except perhaps the last. Iterations
need not begin where the user's loop does: a ``while`` has a predicate before the first iteration. ``alignment`` checks
whether the iterations are alike.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchjanus.trace.actions import Op
from torchjanus.trace.events import Decision, Trace
from torchjanus.trace.facts import NumberPredicate, TensorPredicate, is_question
from torchjanus.trace.loops.records import LoopInstance, LoopRecord, TensorTermination, UntracedComputation
from torchjanus.trace.loops.recurrences import find_recurrences
from torchjanus.trace.loops.untraced_computations import are_same, by_iteration, counted, limited, sums
from torchjanus.trace.values import Apply, Expr

__all__ = ["terminated_loops"]

_PREDICATES = frozenset({TensorPredicate, NumberPredicate})


def terminated_loops(trace: Trace) -> Iterator[LoopInstance]:
    """Yield the loops that may be tensor-terminated. Of two that overlap the first one is preferred."""
    for row in _rows(trace):
        found = list(_iterations(trace, row))
        if not found and len(row) > 2 and _is_stopped(trace, row):
            trace.remarks.note(trace.events[row[0]].place, "loop-tensor-exit")
        yield from found


def _rows(trace: Trace) -> Iterator[list[int]]:
    """Yield the positions of consecutive predicates at one source location with equal outcomes, except perhaps the
    last."""
    row: list[int] = []
    for position, event in enumerate(trace.events):
        if type(event) not in _PREDICATES or not is_question(event):
            continue
        first = trace.events[row[0]] if row else None
        same = first is not None and first.place == event.place and type(first) is type(event)
        if row and (not same or _is_stopped(trace, row)):
            yield row
            row = []
        row.append(position)
    if row:
        yield row


def _is_stopped(trace: Trace, row: Sequence[int]) -> bool:
    return _answer(trace, row[0]) != _answer(trace, row[-1])


def _answer(trace: Trace, position: int) -> bool:
    event = trace.events[position]
    assert isinstance(event, TensorPredicate | NumberPredicate)
    return event.outcome


def _iterations(trace: Trace, row: list[int]) -> Iterator[LoopInstance]:
    """Yield the loop that these predicates end, if there is one: first with the iterations that the user wrote, then
    with those from the first predicate on."""
    loop_record = [iteration for iteration in trace.loop_records if _is_among(iteration, row)]
    iteration = loop_record[0] if loop_record else None
    if iteration is not None and row[0] < iteration.starts[0]:
        row = row[1:]  # a predicate before the first iteration (``while error > limit and steps < most``)
    end, stopped, go = row[-1] + 1, _is_stopped(trace, row), _answer(trace, row[0])
    starts = tuple(position + 1 for position in row[:-1])
    if len(loop_record) > 1 or (iteration is not None and not _asks_each_iteration(iteration, row)):
        return  # only some iterations have the predicate, or an inner loop has it
    if iteration is None:
        yield from _counted(trace, LoopInstance(starts, end, TensorTermination(go, None)), trace.plain, stopped)
        return
    if len(row) == 1 and iteration.end is None:
        stopped, go = True, not go  # the first outcome left the loop
    if stopped != (iteration.end is None) or (not stopped and len(row) != len(iteration.starts)):
        return  # it was left in another way, or reached its end whatever the last outcome was
    over = iteration.over
    begins = over.start if over is not None and over.step == 1 else 0
    back = over is not None and over.step == -1 and over.stop in (-1, 0)
    for limit in _limits(iteration):
        if _is_at_end(trace, iteration, row):
            counters = () if over is None else ((over.start, over.step),)
            first = LoopInstance(
                (iteration.starts[0], *starts), end, TensorTermination(go, limit), counters,
                begins=begins, back=back, unpinned=iteration.unpinned,
            )  # fmt: skip
            yield from _counted(trace, first, trace.plain[iteration.plain :], stopped)
        if starts:
            counters = () if over is None else ((over.start + over.step, over.step),)
            less = limit - 1 if isinstance(limit, int) else Apply(operator.sub, (limit, 1))
            later = LoopInstance(
                starts, end, TensorTermination(go, less), counters,
                skipped=1, begins=begins, back=back, unpinned=iteration.unpinned,
            )  # fmt: skip
            yield from _counted(trace, later, trace.plain, stopped)


def _limits(iteration: LoopRecord) -> Iterator[Expr | int]:
    """Yield limits of the trip count: an expression, or else the recorded length, which may decide more than that;
    nothing if the limit is unknown."""
    if iteration.count is not None:
        yield iteration.count
    if iteration.over is not None:
        yield len(iteration.over)


def _counted(
    trace: Trace, instance: LoopInstance, computations: Sequence[UntracedComputation], stopped: bool
) -> Iterator[LoopInstance]:
    """Yield the loop with its induction variables or closed forms, if the iterations compute nothing else with untraced
    numbers except a limit of the trip count (``while error > limit and steps < 100``). ``stopped``: a tensor ended the
    loop."""
    assert isinstance(instance.count, TensorTermination)
    limit = instance.count.limit
    computed = by_iteration(computations, instance.limits)
    columns, most = limited(computed)
    if most is not None:
        if limit is not None and type(limit) is not int:
            return
        limit = most if limit is None else min(limit, most)
    at_limit = not stopped and limit == len(instance.starts)  # then the trip count is the limit
    if not stopped and instance.count.limit is None and not at_limit:
        return  # it is unknown what ended it
    following = trace.events[instance.end] if instance.end < len(trace.events) else None
    end = instance.end + 1 if isinstance(following, Decision) else instance.end
    if not at_limit and any(instance.end <= plain.position <= end for plain in trace.plain):
        return  # native code may have ended it
    left = [iteration for iteration in trace.loop_records if iteration.end is None and not iteration.inner]
    if not are_same(columns) and any(
        instance.starts[0] < start < instance.end for one in left for start in one.starts[:1]
    ):
        return  # an inner iterator may yield any numbers
    asked = [position - 1 for position in instance.limits[1:]]
    if any(position not in trace.changed for position in asked[1:]):
        return  # it is no predicate of the program
    changes = [trace.changed[position] for position in asked[1:]]
    if any(not later <= earlier for earlier, later in itertools.pairwise(changes)):
        return  # not all loop-carried values are known
    counters, forms = counted(columns), None
    if counters is None:
        # A number that was compared with a limit has no closed form.
        before = sum(plain.position < instance.starts[0] for plain in trace.plain)
        forms = find_recurrences(computed, instance.back, before) if columns == computed else None
        if forms is None:
            return
        counters = sums(computed)
    found = () if at_limit else (*instance.counters, *counters)
    yield replace(instance, counters=found, count=replace(instance.count, limit=limit), recurrences=forms)


def _is_among(iteration: LoopRecord, row: Sequence[int]) -> bool:
    """Whether the predicates are in different iterations of the loop, or the only one is in its only iteration."""
    found = {
        bisect_left(iteration.starts, position + 1)
        for position in row
        if iteration.end is None or position < iteration.end
    }
    found.discard(0)
    return len(found) > 1 or (len(row) == 1 == len(iteration.starts) and bool(found))


def _asks_each_iteration(iteration: LoopRecord, row: Sequence[int]) -> bool:
    asked = [bisect_left(iteration.starts, position + 1) for position in row]
    return asked == list(range(1, len(iteration.starts) + 1))


def _is_at_end(trace: Trace, iteration: LoopRecord, row: Sequence[int]) -> bool:
    """Whether no iteration has an operation after the predicate."""
    limits = [*iteration.starts[1:], *(() if iteration.end is None else (iteration.end,))]
    pairs = zip(row, limits, strict=False)  # the rest of an iteration that was left is unknown
    return not any(isinstance(event, Op) for position, limit in pairs for event in trace.events[position:limit])

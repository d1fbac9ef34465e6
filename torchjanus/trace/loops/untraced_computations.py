"""Compares what the iterations of a loop computed with untraced values (numbers, texts, flags).

If all iterations computed the same from the same values, and the variables have reached a fixed point, iterations that
were not watched compute the same, too: a flag or a mode decides alike in each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from torchjanus.rewrite.hooks import COMPARE
from torchjanus.trace.loops.records import UntracedComputation

__all__ = ["are_same", "by_iteration", "counted", "limited", "sums"]


def by_iteration(computations: Iterable[UntracedComputation], limits: Sequence[int]) -> list[list[UntracedComputation]]:
    """Return the computations of each iteration. ``limits``: the events at which iterations begin and the last one
    ends."""
    computations = list(computations)
    return [[one for one in computations if a <= one.position < b] for a, b in itertools.pairwise(limits)]


def are_same(iterations: Sequence[Sequence[UntracedComputation]]) -> bool:
    """Whether all iterations are known to have computed the same."""
    columns = [[one.structure for one in row] for row in iterations]
    return all(None not in column and column == columns[0] for column in columns)


def counted(iterations: Sequence[Sequence[UntracedComputation]]) -> list[tuple[int, int]] | None:
    """Return the affine induction variables as (first value, step), if the iterations differ in nothing else; else
    None."""
    if len({len(row) for row in iterations}) > 1:
        return None
    found: list[tuple[int, int]] = []
    for row in zip(*iterations, strict=True):
        if are_same([[one] for one in row]):
            continue
        totals = [one.total for one in row]
        steps = {b - a for a, b in itertools.pairwise(totals) if a is not None and b is not None}
        if None in totals or len({one.operands[1:] for one in row}) > 1 or len(steps) > 1:
            return None
        if steps and steps != {0}:
            found.append((totals[0] or 0, steps.pop()))
    return found


def sums(iterations: Sequence[Sequence[UntracedComputation]]) -> list[tuple[int, int]]:
    """Return the sums that are affine induction variables, whatever else the iterations computed."""
    columns = [[[one] for one in row] for row in zip(*iterations, strict=True)]
    return [sum_ for column in columns for sum_ in counted(column) or ()]


def limited(iterations: Sequence[Sequence[UntracedComputation]]) -> tuple[list[list[UntracedComputation]], int | None]:
    """Return the iterations without comparisons of an induction variable with an invariant, and the trip count up to
    which all these comparisons have the outcome that they had (None: any)."""
    rows = [list(row) for row in iterations]
    if len({len(row) for row in rows}) > 1:
        return rows, None
    steps = [_step_of(column, rows[0]) for column in zip(*rows, strict=True)]
    limits = [
        _constant_up_to(column[0], len(rows), *step)
        for column, step in zip(zip(*rows, strict=True), steps, strict=True)
        if step
    ]
    left = [[one for one, step in zip(row, steps, strict=True) if step is None] for row in rows]
    return left, min((limit for limit in limits if limit), default=None)


def _step_of(column: Sequence[UntracedComputation], row: Sequence[UntracedComputation]) -> tuple[int, int] | None:
    """Return the steps of the two numbers that each iteration compares; None if unknown or both 0. ``row``: all
    computations of the first iteration."""
    first = column[0]
    if not first.compared or len({(one.compared, one.where) for one in column}) > 1:
        return None
    if any(len(one.operands) != 2 for one in column):
        return None  # a pass has rewritten some of them
    holds, pairs = COMPARE[first.compared], [one.operands for one in column]
    if len({holds(*pair) for pair in pairs}) > 1:
        return None
    found = {(c - a, d - b) for (a, b), (c, d) in itertools.pairwise(pairs)}
    if len(column) == 1:  # a single iteration: the step is what it adds to the number
        sums_ = [
            (one.operands[0], one.total, one.total - one.operands[0])
            for one in row
            if one.total is not None and one.operands
        ]
        found = {(step if a in known else 0, step if b in known else 0) for *known, step in sums_ for a, b in pairs}
        found.discard((0, 0))
    by, other = found.pop() if len(found) == 1 else (0, 0)
    return (by, other) if bool(by) != bool(other) else None


def _constant_up_to(one: UntracedComputation, iterations: int, by: int, other: int) -> int:
    """Return the trip count up to which a comparison keeps its outcome; 0 for any."""
    holds, (a, b) = COMPARE[one.compared], one.operands
    gap, step = b - a, by - other
    about = gap // step  # the iteration in which the two numbers meet
    return min(
        (n for n in range(about - 1, about + 3) if n >= iterations and holds(n * step, gap) != holds(a, b)), default=0
    )

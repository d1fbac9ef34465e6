"""Loop-carried numbers: what a scan gives is what Python's arithmetic gave."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from torchjanus.core.access_path import AccessPath
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.loops.analysis.host_recurrences import ExpressionMerger, pick
from torchjanus.trace.values import Apply, Fetch, InductionVariable, Read

COUNT = 5
N = Read(AccessPath.arg(0, "n"))


def exprs(counters: tuple[tuple[int, int], ...] = ((0, 1),)) -> ExpressionMerger:
    """Of five iterations that make two tensors each, by two operations."""
    made = {number: divmod(number, 2) for number in range(2 * COUNT)}
    return ExpressionMerger(made, [2 * number for number in range(COUNT + 1)], counters, N, 100, 3)


def fetch(number: int) -> Fetch:
    return Fetch(2 * number + 1, 2 * number + 2, float)


def value(expr: Any, columns: dict[int, list[float]], iteration: int = 0) -> Any:
    if isinstance(expr, Fetch):
        return columns[expr.ref]
    if isinstance(expr, InductionVariable):
        return expr.first + expr.step * iteration
    if isinstance(expr, Read):
        return COUNT
    return expr.func(*(value(arg, columns, iteration) for arg in expr.args)) if isinstance(expr, Apply) else expr


def test_what_iterations_fetch_is_a_column() -> None:
    work = exprs()
    merged = work.merged([fetch(number) for number in range(COUNT)])
    assert merged.func is pick
    assert merged.args[0].each
    assert list(work.columns.values()) == [100]


@pytest.mark.parametrize("start", [0.0, N])
def test_a_sum_is_a_scan(start: Any) -> None:
    work, total, row = exprs(), start, []
    for number in range(COUNT):
        total = Apply(operator.add, (Apply(operator.mul, (0.5, total)), fetch(number)))
        row.append(total)
    given = [1.5, -2.0, 0.25, 8.0, 3.0]
    columns = {100: given}
    expected, each = (COUNT if isinstance(start, Read) else 0.0), []
    for number in given:
        expected = 0.5 * expected + number
        each.append(expected)
    merged = work.merged(row)
    assert [value(merged, columns, iteration) for iteration in range(COUNT)] == each
    assert value(exprs().after(row[-1]), columns) == expected
    assert exprs().merged(row).args[0].func is merged.args[0].func  # equal loops have equal scans


def test_counters_are_turns() -> None:
    assert exprs(((3, 2),)).merged([3, 5, 7, 9, 11]) == InductionVariable(3, 2)
    assert exprs().merged([4] * COUNT) == 4
    with pytest.raises(NotMergeable):
        exprs().merged([1, 2, 3, 4, 5])


def test_what_is_fetched_of_other_iterations_is_no_column() -> None:
    with pytest.raises(NotMergeable):
        exprs().merged([fetch(0), *(fetch(number) for number in range(COUNT - 1))])


def test_a_number_of_the_last_iteration_stays() -> None:
    last = Apply(operator.mul, (fetch(COUNT - 1), 2))
    assert exprs().after(last) is last

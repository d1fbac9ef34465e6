"""Numbers that rounds hand on: what a scan gives is what Python's arithmetic gave."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from torchjanus.core.access_path import Origin
from torchjanus.graph.loops.analysis.host_recurrences import Exprs, UnlikeRounds, pick
from torchjanus.trace.values import Apply, Fetch, Read, Turn

COUNT = 5
N = Read(Origin.arg(0, "n"))


def exprs(counters: tuple[tuple[int, int], ...] = ((0, 1),)) -> Exprs:
    """Of five rounds that make two tensors each, by two operations."""
    made = {number: divmod(number, 2) for number in range(2 * COUNT)}
    return Exprs(made, [2 * number for number in range(COUNT + 1)], counters, N, 100, 3)


def fetch(number: int) -> Fetch:
    return Fetch(2 * number + 1, 2 * number + 2, float)


def value(expr: Any, columns: dict[int, list[float]], turn: int = 0) -> Any:
    if isinstance(expr, Fetch):
        return columns[expr.ref]
    if isinstance(expr, Turn):
        return expr.first + expr.step * turn
    if isinstance(expr, Read):
        return COUNT
    return expr.func(*(value(arg, columns, turn) for arg in expr.args)) if isinstance(expr, Apply) else expr


def test_what_rounds_fetch_is_a_column() -> None:
    work = exprs()
    told = work.told([fetch(number) for number in range(COUNT)])
    assert told.func is pick
    assert told.args[0].each
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
    told = work.told(row)
    assert [value(told, columns, turn) for turn in range(COUNT)] == each
    assert value(exprs().after(row[-1]), columns) == expected
    assert exprs().told(row).args[0].func is told.args[0].func  # equal loops have equal scans


def test_counters_are_turns() -> None:
    assert exprs(((3, 2),)).told([3, 5, 7, 9, 11]) == Turn(3, 2)
    assert exprs().told([4] * COUNT) == 4
    with pytest.raises(UnlikeRounds):
        exprs().told([1, 2, 3, 4, 5])


def test_what_is_fetched_of_other_rounds_is_no_column() -> None:
    with pytest.raises(UnlikeRounds):
        exprs().told([fetch(0), *(fetch(number) for number in range(COUNT - 1))])


def test_a_number_of_the_last_round_stays() -> None:
    last = Apply(operator.mul, (fetch(COUNT - 1), 2))
    assert exprs().after(last) is last

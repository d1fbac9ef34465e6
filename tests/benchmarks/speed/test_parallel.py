"""How operations are laid out on lanes, and that a program's graph is found and timed."""

import pytest

from benchmarks.speed.parallel import parallel, side_by_side

NEEDS = {"a": [], "b": [], "c": ["a"], "d": ["b"], "e": ["c", "d"]}


@pytest.mark.parametrize(
    ("costs", "lanes", "expected"),
    [
        ((1, 1, 1, 1, 1), 1, 5.0),
        ((1, 1, 1, 1, 1), 2, 3.0),
        ((1, 1, 1, 1, 1), 9, 3.0),
        ((4, 1, 1, 1, 1), 2, 6.0),  # the longest chain bounds it
        ((1, 3, 1, 3, 1), 2, 7.0),
    ],
)
def test_operations_run_side_by_side_where_they_do_not_wait_for_each_other(costs, lanes, expected):
    over, chain = side_by_side(dict(zip("abcde", costs, strict=True)), NEEDS, lanes)
    assert over == expected
    assert chain == max(costs[0] + costs[2], costs[1] + costs[3]) + costs[4]


def test_a_program_of_the_papers_is_timed():
    row = parallel("lenet", repetitions=2, small=True)
    assert row.operations > 20
    assert 0 < row.chain <= row.lanes <= row.one

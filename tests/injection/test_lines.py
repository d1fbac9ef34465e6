"""Each line of generated code raises in turn: Python makes the call, or completes it where an update has begun."""

from __future__ import annotations

import pytest

from tests.injection.lines import PROGRAMS, struck_lines
from tests.programs import harness
from torchjanus.execute.finishing import rest_of

EVERY = harness.programs_in(harness.load_file(PROGRAMS))
QUICK = frozenset("by_hand asserted kept_in_a_dictionary objects_and_queues printed".split())


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in EVERY])
def test_whatever_line_raises_the_outcome_is_eagers(name: str) -> None:
    found, struck, _ = struck_lines(name)
    assert found == []
    assert struck >= 10


def test_a_call_in_which_an_update_has_begun_is_completed_by_the_graph() -> None:
    """Those whose lines raise before that are Python's: a good part of all."""
    _, struck, served = struck_lines("momentum")
    assert served > 180 - 3 - struck


def test_the_rest_of_straight_lines() -> None:
    assert rest_of(["    a = 1", "    b = 2", "    c = 3"], 1) == ["b = 2", "c = 3"]


def test_the_rest_of_an_iteration_comes_before_the_other_iterations() -> None:
    lines = ["it = enumerate(rows)", "for turn, row in it:", "    one(row)", "    two(row)", "after()"]
    assert rest_of(lines, 3) == ["two(row)", "for turn, row in it:", "    one(row)", "    two(row)", "after()"]


def test_the_rest_of_what_is_done_on_a_condition() -> None:
    lines = ["for turn in it:", "    if chosen:", "        one()", "    two()", "after()"]
    assert rest_of(lines, 2) == ["one()", "two()", *lines[:4], "after()"]

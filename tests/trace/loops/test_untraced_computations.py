"""What iterations compare with a fixed number sets a limit to how many of them are alike."""

from __future__ import annotations

import pytest

from torchjanus.rewrite.hooks import COMPARE
from torchjanus.trace.loops.records import UntracedComputation
from torchjanus.trace.loops.untraced_computations import limited


def compared(first: int, sign: str, second: int) -> UntracedComputation:
    return UntracedComputation(0, (first, second), where=(7, 4), compared=sign)


def counting(first: int, step: int) -> UntracedComputation:
    return UntracedComputation(0, (first, step), total=first + step, where=(8, 4))


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "!="])
@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
@pytest.mark.parametrize("bound", range(-9, 10))
def test_a_comparison_sets_the_limit_at_which_it_turns(sign: str, step: int, bound: int) -> None:
    numbers = [step * iteration for iteration in range(40)]
    answers = [COMPARE[sign](number, bound) for number in numbers]
    loop_record = answers.index(not answers[0]) if not all(one == answers[0] for one in answers) else None
    if loop_record is None or loop_record >= 2:
        rows = [[compared(number, sign, bound)] for number in numbers[:2]]
        assert limited(rows) == ([[], []], loop_record)
        assert limited([[compared(bound, sign, number)] for number in numbers[:1]])[1] is None


def test_one_iteration_tells_by_what_it_adds() -> None:
    added = counting(0, 1)
    assert limited([[compared(0, "<", 12), added]]) == ([[added]], 12)
    assert limited([[added, compared(1, "<", 12)]]) == ([[added]], 11)


def test_other_answers_in_some_iterations_are_no_limit() -> None:
    rows = [[compared(number, "<", 1)] for number in range(3)]
    assert limited(rows) == (rows, None)


def test_what_has_been_reported_otherwise_is_no_limit() -> None:
    rows = [
        [UntracedComputation(0, (), where=(7, 4), compared="==")],
        [UntracedComputation(0, (), where=(7, 4), compared="==")],
    ]
    assert limited(rows) == (rows, None)

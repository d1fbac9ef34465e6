"""Numbers that iterations compute with: by which formula, and that Python's own numbers come out."""

import math

import pytest
import torch

from torchjanus.core.access_path import token_of
from torchjanus.graph.operators.host_column import host_column
from torchjanus.graph.operators.number_operands import full, full_like, new_full, tensor
from torchjanus.trace.loops.records import UntracedComputation
from torchjanus.trace.loops.recurrences import BACK, HOLE, column, find_recurrences, kind_of


def plain(sign, *numbers):
    return UntracedComputation(0, (), structure=("tuple", ("str", sign), ("tuple", *map(token_of, numbers))))


def runners_of(count, compute):
    return [compute(number) for number in range(count)]


def test_a_column_is_what_python_computes():
    form = ("entering", ("const", 0.0), ("add", HOLE, ("given", 0, "float")))
    t, times = 0.0, []
    for _ in range(50):
        times.append(t)
        t += 1 / 3
    assert column(form, 50, [1 / 3]) == times
    assert column(("cos", ("mul", ("index", 2, 3), ("const", 0.1))), 4) == [
        math.cos((2 + 3 * i) * 0.1) for i in range(4)
    ]
    assert column(BACK, 4) == [3, 2, 1, 0]
    assert column(form, 0, [1.0]) == []


def test_kinds():
    assert kind_of(("index", 0, 1)) is int
    assert kind_of(("truediv", ("index", 0, 1), ("given", 0, "int"))) is float
    assert kind_of(("min", ("const", 1.0), ("index", 0, 1))) is None
    assert kind_of(("made", ("const", 0), ("add", HOLE, ("const", 0.5)))) is None


def test_the_operator_gives_rows_behind_those_that_are_skipped():
    given = host_column(repr(("mul", ("index", 1, 1), ("given", 0, "float"))), 3, 1, 0.1)
    assert given.dtype == torch.float64
    assert given[1:].tolist() == [0.1, 0.2, 3 * 0.1]
    with pytest.raises(ZeroDivisionError):
        host_column(repr(("truediv", ("const", 1), ("index", 0, 1))), 3, 0)


@pytest.mark.parametrize("number", [3, 0.1])
def test_filling_with_a_tensor_is_filling_with_its_number(number):
    held = torch.tensor(number, dtype=torch.float64 if type(number) is float else torch.int64)
    like = torch.ones(2, 3, dtype=torch.float32).t()
    for made, wanted in (
        (full((2,), held), torch.full((2,), number)),
        (full((2,), held, dtype=torch.long), torch.full((2,), int(number))),
        (full_like(like, held), torch.full_like(like, number)),
        (new_full(like, (2,), held), like.new_full((2,), number)),
        (tensor(held), torch.tensor(number)),
    ):
        assert made.dtype == wanted.dtype
        assert made.stride() == wanted.stride()
        assert torch.equal(made, wanted)


def test_sums_and_what_is_made_of_them():
    times = [0.0]
    for _ in range(5):
        times.append(times[-1] + 0.1)
    iterations = runners_of(5, lambda n: [plain("+", times[n], 0.05), plain("+", times[n], 0.1)])
    known = find_recurrences(iterations, False, 0)
    assert known is not None
    assert known.form([t + 0.05 for t in times[:5]], 2) == (
        "add", ("entering", ("const", 0.0), ("add", HOLE, ("const", 0.1))), ("const", 0.05),
    )  # fmt: skip
    assert known.form([t + 0.05 for t in times[:5]], 0) is None  # not yet computed
    assert list(known.passing()) == []


def test_what_two_formulas_give_is_not_a_recurrence():
    def computed(n):
        least = UntracedComputation(
            0, (), structure=("min", None, ("call", ("float", "1.0"), ("float", repr(n * 0.1))))
        )
        return [plain("*", n, 0.1), least]

    iterations = runners_of(4, computed)
    known = find_recurrences(iterations, False, 0)
    assert known is not None
    assert known.form([n * 0.1 for n in range(4)], 2) is None
    assert 0.1 in set(known.passing())


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: [plain("<", n * 0.1, 0.5)],  # decides
        lambda n: [plain("*", (3.0, 1.0, 2.5, 0.5)[n], 0.1)],  # nobody knows what comes next
        lambda n: [plain("**", 1, n)],  # stays the same as long as it was seen
        lambda n: [UntracedComputation(0, (), structure=None)],
        lambda n: [plain("*", n, 0.1)] * (1 + (n == 2)),
    ],
)
def test_what_is_not_merged(compute):
    assert find_recurrences(runners_of(4, compute), False, 0) is None


def test_two_iterations_tell_nothing():
    assert find_recurrences(runners_of(2, lambda n: [plain("*", n, 0.1)]), False, 0) is None

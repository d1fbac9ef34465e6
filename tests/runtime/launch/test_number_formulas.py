"""What is computed by one formula of many numbers is what each expression gives."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest

from torchjanus.core.access_path import AccessPath
from torchjanus.runtime.launch.number_formulas import formulas
from torchjanus.trace.values import Apply, Expr, Fetch, Read

FETCHES = tuple(Fetch(number, 0, float) for number in range(6))
RATE = Read(AccessPath.arg(0, "rate"))


def corrections(step: Expr, beta: float = 0.9) -> list[Apply]:
    """What Adam makes of a step."""
    first = Apply(operator.sub, (1, Apply(operator.pow, (beta, step))))
    return [Apply(operator.truediv, (RATE, first)), Apply(math.sqrt, (first,))]


def evaluated(expr: Any, numbers: tuple[float, ...], rate: float) -> Any:
    if isinstance(expr, Fetch):
        return numbers[expr.ref]
    if isinstance(expr, Read):
        return rate
    if isinstance(expr, Apply):
        return expr.func(*(evaluated(arg, numbers, rate) for arg in expr.args))
    return expr


@pytest.mark.parametrize(
    "numbers",
    [(3.0,) * 6, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), (2.0, 2.0, 9.0, 2.0, 9.0, 2.0)],
    ids=["one number", "many numbers", "two numbers"],
)
def test_each_is_computed_as_alone(numbers: tuple[float, ...]) -> None:
    exprs = [expr for fetch in FETCHES for expr in corrections(fetch)]
    (formula,) = formulas(FETCHES, exprs)
    assert formula.places == tuple(range(6))
    assert formula.others == (RATE,)
    found = formula.compiled(FETCHES)(list(numbers), 0.5)
    assert found == [tuple(evaluated(expr, numbers, 0.5) for expr in row) for row in formula.computed]


def test_equal_numbers_that_are_not_the_same_are_not_confused() -> None:
    exprs = [Apply(math.copysign, (1.0, fetch)) for fetch in FETCHES]
    (formula,) = formulas(FETCHES, exprs)
    assert formula.compiled(FETCHES)([0.0, -0.0, 0.0, -0.0, 0.0, -0.0]) == [(1.0,), (-1.0,)] * 3


def test_what_is_computed_otherwise_is_a_formula_of_its_own() -> None:
    exprs = [e for n, fetch in enumerate(FETCHES) for e in corrections(fetch, 0.9 if n else 0.5)]
    (formula,) = formulas(FETCHES, exprs)
    assert formula.places == (1, 2, 3, 4, 5)


def test_few_numbers_and_numbers_of_several_are_left_alone() -> None:
    of_two = [Apply(operator.add, (FETCHES[n], FETCHES[n + 1])) for n in range(5)]
    few = [expr for fetch in FETCHES[:3] for expr in corrections(fetch)]
    assert list(formulas(FETCHES, [*of_two, *few, 1.0, RATE, *FETCHES])) == []

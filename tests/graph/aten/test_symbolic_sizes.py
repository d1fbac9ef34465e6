"""Symbolic sizes: what tracing asks becomes a condition, what it holds is reported, and the host computes sizes
itself."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from tests.graph.generalize.test_generalize import plan_of
from torchjanus.core.access_path import AccessPath, Step
from torchjanus.execute.replay import Replay
from torchjanus.graph.aten.symbolic_sizes import Fixed, Symbolic, geometry, hint, key, value_of_formula
from torchjanus.graph.ir.lowered import Lowered, ViewOf
from torchjanus.graph.ir.program import Dimension, Formula, Input, Symbol
from torchjanus.graph.lowering.lower import lower
from torchjanus.host.assumption import evaluate
from torchjanus.trace.values import Read

X = AccessPath.arg(0, "x")


def symbolic(*hints: int) -> Symbolic:
    return Symbolic(tuple(Dimension(Read(X.then(Step.SIZE, dim)), hint) for dim, hint in enumerate(hints)))


def lowered(fn: Any, make: Any = lambda n: torch.ones(n, 4)) -> Lowered:
    return lower(plan_of(fn, [(make(n),) for n in (3, 5, 6)]).program)


def test_sizes_are_compared_without_asking() -> None:
    made = symbolic(5, 5)
    one, other = (made.fake(Input(torch.ones(5, 3), False, True, symbols=(k, None), strides=(3, 1))) for k in (0, 1))
    assert geometry(one) != geometry(other)
    assert geometry(one) == geometry(made.fake(Input(torch.ones(5, 3), False, True, symbols=(0, None), strides=(3, 1))))
    assert (key(7), hint(7), hint(one.size(0))) == (7, 7, 5)
    assert list(made.conditions()) == []


def test_what_is_asked_is_a_condition() -> None:
    made = symbolic(5)
    assert made.sizes[0] * 2 > 7
    (condition,) = made.conditions()
    assert str(condition) == "((2 * x.shape[0]) > 7)"
    assert [evaluate(condition, (torch.ones(n),), {}) for n in (3, 4)] == [False, True]


def test_what_is_held_is_reported() -> None:
    made = symbolic(5)
    assert int(made.sizes[0]) == 5
    with pytest.raises(Fixed, match=r"x\.shape\[0\] cannot change") as raised:
        list(made.conditions())
    assert list(raised.value.dimensions) == [0]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (Formula(operator.add, (Symbol(0), 1)), 8),
        (Formula(operator.floordiv, (Symbol(0), 2)), 3),
        (Formula(operator.mod, (Symbol(0), 4)), 3),
        (Formula(max, (Symbol(0), 9)), 9),
        (Formula(int, (Formula(operator.truediv, (Symbol(0), 2)),)), 3),
        (Formula(operator.pow, (Symbol(0), 2)), 49),
        (Formula(operator.sub, (Formula(operator.neg, (Symbol(0),)), Symbol(1))), -11),
    ],
    ids=str,
)
def test_the_host_computes_what_the_graph_does(formula: Formula, expected: int) -> None:
    made = symbolic(5, 6)
    value = value_of_formula(formula, made.sizes, {})
    assert evaluate(made.expression(value), (torch.ones(7, 4),), {}) == expected
    assert made.expression(12) == 12


def test_a_graph_serves_other_sizes() -> None:
    graph = lowered(lambda x: (x.view(x.shape[0] * 2, -1) * 2).sum(1))
    (value,) = Replay(graph).run([torch.ones(9, 4)], [])
    assert value.equal(torch.full((18,), 4.0))


def test_views_have_sizes_of_expressions() -> None:
    graph = lowered(lambda x: x[1:])
    (result,) = graph.outputs
    assert isinstance(result.source, ViewOf)
    assert str(result.source) == "view of input 0 [(-1 + x.shape[0]), 4]"
    assert result.source.offset == 4


def test_what_needs_the_number_itself_is_held() -> None:
    with pytest.raises(Fixed):
        lowered(lambda x: x.unbind()[0])

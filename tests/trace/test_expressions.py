"""Walks over expressions and recipes: the order of the visits, and which objects stay the same."""

from __future__ import annotations

import operator
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.trace.expressions import applications, evaluate, map_expr, parts_of_expr
from torchjanus.trace.operands import expressions_in, refs_in
from torchjanus.trace.recipes import (
    CollectedItems,
    ConditionalItem,
    Constant,
    NewObject,
    Number,
    TensorOf,
    inner_recipes,
    map_recipe,
    parts_of,
)
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Fetch, InductionVariable, Read

A, B = (Read(AccessPath.parameter(name)) for name in "ab")
SUM = Apply(operator.add, (A, 3))
WHOLE = Apply(operator.mul, (SUM, Apply(operator.neg, (B,))))


def test_parts_come_before_their_arguments() -> None:
    assert list(parts_of_expr(WHOLE)) == [WHOLE, SUM, A, 3, WHOLE.args[1], B]
    assert list(applications(WHOLE)) == [WHOLE, SUM, WHOLE.args[1]]
    assert list(parts_of_expr(7)) == [7]


def test_an_expression_is_evaluated_with_the_values_of_its_leaves() -> None:
    assert evaluate(WHOLE, lambda leaf: 2 if leaf == A else 5) == -25
    assert evaluate(7, lambda leaf: 1) == 7


def test_what_does_not_change_stays_the_same_object() -> None:
    made = map_expr(WHOLE, lambda part: 8 if part == B else part)
    assert str(made) == str(WHOLE).replace(str(B), "8")
    assert made.args[0] is SUM
    assert map_expr(WHOLE, lambda part: part) is WHOLE
    assert map_expr(WHOLE, lambda part: B if part is SUM else part).args[0] is B


FETCH = Fetch(4, 2, int)
ITEM = TensorOf(TensorRef(1))
RECIPE = NewObject(
    0,
    dict,
    ((Constant("key"), CollectedItems(ITEM, A)), (Constant("other"), ConditionalItem(Number(SUM), Number(FETCH)))),
    (("name", Number(B)),),
)


def test_parts_of_a_recipe_come_in_the_order_of_construction() -> None:
    kinds = [type(part).__name__ for part in parts_of(RECIPE)]
    assert kinds == "NewObject Constant CollectedItems TensorOf Constant ConditionalItem Number Number Number".split()
    assert [
        type(part).__name__ for part in inner_recipes(RECIPE)
    ] == "Constant CollectedItems Constant ConditionalItem Number".split()


def test_a_recipe_is_mapped_by_its_immediate_parts() -> None:
    def change(part: Any) -> Any:
        return Number(InductionVariable(1)) if isinstance(part, Number) else map_recipe(part, change)

    made = map_recipe(RECIPE, change)
    assert made.token[:4] == RECIPE.token[:4]
    assert [part.expr for part in parts_of(made) if isinstance(part, Number)] == [InductionVariable(1)] * 3
    assert next(part for part in parts_of(made) if isinstance(part, TensorOf)) is ITEM


def test_expressions_and_tensors_are_found_in_arguments_and_recipes() -> None:
    given = ([A, {"k": SUM}], slice(FETCH, None, None), TensorRef(3), "text")
    assert list(expressions_in(given)) == [A, SUM, FETCH]
    assert list(refs_in((given, TensorRef(3)))) == [TensorRef(3), TensorRef(3)]
    assert list(expressions_in([RECIPE])) == [A, SUM, FETCH, B]

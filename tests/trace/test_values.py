"""Traced numbers are their real values to everyone else; their expressions say how they were made."""

from __future__ import annotations

import copy
import json
import math
import operator
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchjanus.core.access_path import AccessPath
from torchjanus.trace.values import (
    Apply,
    Fetch,
    Read,
    Traced,
    TracedFloat,
    TracedInt,
    TracedStr,
    leaves,
    plain,
    trace_value,
)

COUNT = Read(AccessPath.arg(0, "count"))
LOSS = Fetch(4, 2, float)


@pytest.mark.parametrize(("value", "cls"), [(3, TracedInt), (2.5, TracedFloat), ("text", TracedStr)])
def test_a_traced_value_is_its_real_value(value: Any, cls: type) -> None:
    traced = trace_value(value, COUNT)
    assert type(traced) is cls
    assert isinstance(traced, Traced)
    assert traced == value and value == traced
    assert hash(traced) == hash(value)
    assert (str(traced), repr(traced), f"{traced}") == (str(value), repr(value), f"{value}")
    assert json.dumps(traced) == json.dumps(value)
    assert {traced: 1}[value] == 1
    assert traced.expr is COUNT
    assert type(plain(traced)) is type(value)
    assert plain(traced) == value


@pytest.mark.parametrize("value", [True, None, b"x", 1j, [1], float], ids=repr)
def test_nothing_else_is_traced(value: Any) -> None:
    assert trace_value(value, COUNT) is value
    assert plain(value) is value


def test_subclasses_are_left_alone() -> None:
    class Metres(float):
        pass

    length = Metres(2.0)
    assert trace_value(length, COUNT) is length
    again = trace_value(3, COUNT)
    assert trace_value(again, LOSS) is again


@pytest.mark.parametrize("value", [3, 2.5, "text", -0.0, 2**80, float("inf")])
@pytest.mark.parametrize(
    "take",
    [lambda v: pickle.loads(pickle.dumps(v)), copy.copy, copy.deepcopy, lambda v: copy.deepcopy([v])[0]],
    ids=["pickle", "copy", "deepcopy", "deepcopy of a list"],
)
def test_copies_are_plain(value: Any, take: Any) -> None:
    taken = take(trace_value(value, COUNT))
    assert type(taken) is type(value)
    assert repr(taken) == repr(value)


SIGNS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.lt]


@given(st.sampled_from(SIGNS), st.integers() | st.floats(), st.integers(1) | st.floats(1e-3, 1e9))
def test_arithmetic_gives_real_numbers(sign: Any, a: Any, b: Any) -> None:
    """Code that does not know of traced numbers gets what it would have got."""

    def attempt(x: Any, y: Any) -> Any:
        try:
            result = sign(x, y)
        except (ArithmeticError, ValueError) as error:
            return type(error)
        assert not isinstance(result, Traced)
        return type(result), repr(result)

    expected = attempt(a, b)
    assert attempt(trace_value(a, COUNT), b) == expected
    assert attempt(a, trace_value(b, LOSS)) == expected
    assert attempt(trace_value(a, COUNT), trace_value(b, LOSS)) == expected


def test_nan_and_the_zeros_keep_their_bits() -> None:
    assert math.isnan(plain(trace_value(math.nan, COUNT)))
    assert math.copysign(1, plain(trace_value(-0.0, COUNT))) == -1


# -- expressions --------------------------------------------------------------------------------------------------


def test_leaves_come_in_order_and_as_often_as_they_are_used() -> None:
    expr = Apply(operator.add, (Apply(operator.mul, (COUNT, 2)), Apply(operator.sub, (LOSS, COUNT))))
    assert list(leaves(expr)) == [COUNT, LOSS, COUNT]
    assert list(leaves(LOSS)) == [LOSS]
    assert list(leaves(Apply(operator.add, (1, 2)))) == []


TEXTS = [
    (COUNT, "count"),
    (LOSS, "%4.item()"),
    (Fetch(4, 2, int, 3), "%4.tolist()[3]"),
    (Apply(operator.add, (COUNT, 1)), "(count + 1)"),
    (Apply(operator.pow, (0.9, Apply(operator.add, (COUNT, 1)))), "(0.9 ** (count + 1))"),
    (Apply(operator.neg, (COUNT,)), "neg(count)"),
    (Apply(math.sqrt, (LOSS,)), "sqrt(%4.item())"),
    (Apply(format, (LOSS, ".3f")), "format(%4.item(), '.3f')"),
    (Apply(operator.ge, (LOSS, 0.5)), "(%4.item() >= 0.5)"),
]


@pytest.mark.parametrize(("expr", "text"), TEXTS, ids=[t for _, t in TEXTS])
def test_text(expr: Any, text: str) -> None:
    assert str(expr) == text


def test_tokens_tell_expressions_apart() -> None:
    different = [
        COUNT,
        Read(AccessPath.arg(1)),
        LOSS,
        Fetch(4, 3, float),
        Fetch(4, 2, int),
        Fetch(4, 2, float, 0),
        Fetch(5, 2, float),
        Apply(operator.add, (COUNT, 1)),
        Apply(operator.add, (COUNT, 1.0)),
        Apply(operator.add, (COUNT, True)),
        Apply(operator.add, (1, COUNT)),
        Apply(operator.sub, (COUNT, 1)),
        Apply(operator.add, (COUNT, 0.0)),
        Apply(operator.add, (COUNT, -0.0)),
    ]
    assert len({expr.token for expr in different}) == len(different)
    assert len(set(different)) == len(different)
    assert Apply(operator.add, (COUNT, 1)) == Apply(operator.add, (Read(AccessPath.arg(0)), 1))

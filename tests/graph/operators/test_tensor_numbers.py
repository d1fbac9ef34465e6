"""Python arithmetic on fetched numbers gives Python's own numbers as tensor operations, or is refused."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import pytest
import torch

from torchjanus.core.errors import Place, Refused
from torchjanus.graph.ir.program import Node, Ref
from torchjanus.graph.operators.tensor_numbers import HostNumber, snapshot, tensorise
from torchjanus.trace.values import Apply, Fetch

HERE = Place("train.py", 3)


def run(expr: Any, tensor: torch.Tensor, fetch: Fetch) -> Any:
    """The expression's value, by the nodes made for it."""
    numbers = itertools.count(1)
    new_ref = lambda: Ref(next(numbers))
    taken, nodes = snapshot(Ref(0), fetch, new_ref)
    result, more = tensorise(expr, {fetch.token: taken}, lambda leaf: HostNumber(leaf, type(leaf)), new_ref, HERE)
    values = {Ref(0): tensor}
    for node in [*nodes, *more]:
        assert isinstance(node, Node)
        args = [values[a] if isinstance(a, Ref) else a for a in node.args]
        (values[node.outs[0]],) = (node.func(*args, **node.kwargs),)
    return result.type, values[result.ref].item()


F, N = Fetch(0, 0, float), Fetch(0, 0, int)
EXPRESSIONS = {
    "add": lambda v: Apply(operator.add, (v, 1)),
    "from the left": lambda v: Apply(operator.sub, (1, v)),
    "float": lambda v: Apply(operator.mul, (v, 0.1)),
    "divide": lambda v: Apply(operator.truediv, (v, 3)),
    "divide from the left": lambda v: Apply(operator.truediv, (1, v)),
    "negative": lambda v: Apply(operator.neg, (v,)),
    "abs": lambda v: Apply(abs, (v,)),
    "less than a float": lambda v: Apply(operator.lt, (v, 67108862.9)),
    "less": lambda v: Apply(operator.lt, (v, 2)),
    "equal": lambda v: Apply(operator.eq, (v, 3)),
    "bool": lambda v: Apply(bool, (v,)),
    "to float": lambda v: Apply(float, (v,)),
    "nan": lambda v: Apply(math.isnan, (v,)),
    "deep": lambda v: Apply(operator.add, (Apply(operator.mul, (v, v)), Apply(operator.truediv, (v, 7)))),
}


def python(expr: Any, value: Any) -> Any:
    if isinstance(expr, Fetch):
        return value
    return expr.func(*(python(a, value) for a in expr.args)) if isinstance(expr, Apply) else expr


@pytest.mark.parametrize("make", EXPRESSIONS.values(), ids=EXPRESSIONS)
@pytest.mark.parametrize("value", [3, -1, 2**26 - 1, 0.1, -2.5, 1e30], ids=repr)
def test_pythons_numbers(make: Any, value: Any) -> None:
    fetch = F if isinstance(value, float) else N
    tensor = torch.tensor(value, dtype=torch.float64 if fetch is F else torch.int64)
    expr = make(fetch)
    expected = python(expr, value)
    kind, met = run(expr, tensor, fetch)
    assert kind is type(expected)
    assert repr(kind(met)) == repr(expected)


def test_elements_of_a_list() -> None:
    fetch = Fetch(0, 0, float, 2)
    assert run(Apply(operator.add, (fetch, 1)), torch.tensor([[1.0, 2.0], [5.0, 7.0]]), fetch) == (float, 6.0)


@pytest.mark.parametrize("func", [math.sqrt, math.exp, operator.pow, round], ids=lambda f: f.__name__)
def test_what_would_not_be_exact_is_refused(func: Any) -> None:
    args = (F, 2) if func is operator.pow else (F,)
    with pytest.raises(Refused, match=r"train.py:3: computes .*%0.item\(\).* Python's exact result") as raised:
        run(Apply(func, args), torch.tensor(2.0), F)
    assert "torch functions" in raised.value.refusal.remedy

"""Every assumption holds where it should, fails where it should, and fails where its path has broken off."""

from __future__ import annotations

import collections
import operator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import NOWHERE
from torchjanus.host.assumption import (
    AmbientState,
    Arguments,
    Assumption,
    Condition,
    ContainerKeys,
    Emptiness,
    Identity,
    KeyPresence,
    SameObject,
    TypeOf,
    ValueOf,
    evaluate,
)
from torchjanus.host.tensor_assumptions import Distinct, Memory, TensorKind, distinct
from torchjanus.semantics.known.details import tensor_detail
from torchjanus.semantics.watch.run import ambient_state
from torchjanus.trace.values import Apply, Fetch, Read

X = AccessPath.arg(0, "x")
K = X.item("k")
THING = [1]


class Thing:
    pass


class SubThing(Thing):
    pass


def kind(tensor: torch.Tensor) -> TensorKind:
    return TensorKind(NOWHERE, K, tensor, tensor_detail(tensor), tensor_detail)


def value(of: Any) -> ValueOf:
    return ValueOf(NOWHERE, K, of)


NAN = float("nan")
ROWS = torch.ones(2, 4)
LIMIT = Condition(NOWHERE, Apply(operator.lt, (Read(K), 3)), True)

# The assumption, what is at x["k"] where it holds, and where it does not.
CASES: dict[str, tuple[Assumption, list[Any], list[Any]]] = {
    "sizes": (
        TensorKind(NOWHERE, K, ROWS, tensor_detail(ROWS), tensor_detail, (True, False), (4, 1)),
        [torch.ones(3, 4), torch.ones(9, 4)],
        [
            torch.ones(3, 5),
            torch.ones(4, 3).t(),
            torch.ones(3, 4, 1),
            torch.ones(3, 4).double(),
            torch.ones(3, 8)[:, ::2],
        ],
    ),
    "identity": (Identity(NOWHERE, K, THING), [THING], [[1], None]),
    "value": (value(1), [1], [1.0, True, 2, None, "1"]),
    "float": (value(0.0), [0.0], [-0.0, 0, False, NAN]),
    "minus zero": (value(-0.0), [-0.0], [0.0]),
    "nan": (value(NAN), [NAN, float("inf") - float("inf")], [1.0]),
    "bool": (value(True), [True], [1, False, 1.0]),
    "string": (value("a"), ["a", "".join(["a"])], ["b", b"a"]),
    "dtype": (value(torch.float32), [torch.float32], [torch.float64, "torch.float32"]),
    "size": (value(torch.Size([2])), [torch.Size([2])], [torch.Size([3]), (2,)]),
    "type": (TypeOf(NOWHERE, K, Thing), [Thing()], [SubThing(), Thing, None]),
    "tensor": (
        kind(torch.ones(2, 3)),
        [torch.zeros(2, 3)],
        [
            torch.ones(3, 2),
            torch.ones(3, 2).T,
            torch.ones(2, 3, dtype=torch.float64),
            torch.ones(2, 3, requires_grad=True),
            torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
            torch.ones(2, 3, device="meta"),
            torch.ones(2, 3, requires_grad=True) * 2,
            None,
        ],
    ),
    "key": (KeyPresence(NOWHERE, K, "a", True), [{"a": 1}], [{}, {"b": 1}]),
    "no key": (KeyPresence(NOWHERE, K, "a", False), [{}, {"b": 1}], [{"a": None}, 3]),
    "empty": (Emptiness(NOWHERE, K, False), [[], {}, ()], [[1], {1: 2}]),
    "filled": (Emptiness(NOWHERE, K, True), [[0], {0: 0}], [[], {}]),
    "keys": (
        ContainerKeys(NOWHERE, K, ("a", 1)),
        [{"a": 2, 1: 3}, ["a", 1]],
        [{1: 3, "a": 2}, {"a": 2}, {"a": 2, 1: 3, 4: 5}, {"a": 2, True: 3}, 3],
    ),
    "condition": (LIMIT, [2, -1, 2.5], [3, NAN]),
    "number": (Condition(NOWHERE, Apply(operator.mul, (Read(K), 2)), 8), [4], [5]),
}
HOLDS = [(name, a, v) for name, (a, good, _) in CASES.items() for v in good]
FAILS = [(name, a, v) for name, (a, _, bad) in CASES.items() for v in bad]


@pytest.mark.parametrize(("name", "assumption", "now"), HOLDS, ids=[n for n, *_ in HOLDS])
def test_holds(name: str, assumption: Assumption, now: Any) -> None:
    assert assumption.holds(({"k": now},), {}) is True


@pytest.mark.parametrize(("name", "assumption", "now"), FAILS, ids=[n for n, *_ in FAILS])
def test_fails(name: str, assumption: Assumption, now: Any) -> None:
    assert assumption.holds(({"k": now},), {}) is False
    assert isinstance(assumption.observed(({"k": now},), {}), str)


@pytest.mark.parametrize("assumption", [a for a, _, _ in CASES.values()], ids=CASES)
@pytest.mark.parametrize("args", [(), ({},), (None,), (3,)], ids=repr)
def test_a_broken_path_fails(assumption: Assumption, args: tuple[Any, ...]) -> None:
    assert assumption.holds(args, {}) is False
    assert assumption.observed(args, {}).startswith("there is nothing (")


def test_checking_makes_no_default() -> None:
    held: Any = collections.defaultdict(list)
    assert not value(1).holds((held,), {})
    assert not Emptiness(NOWHERE, K, False).holds((held,), {})
    assert len(held) == 0


def test_arguments() -> None:
    assumption = Arguments(NOWHERE, 2, ("a", "b"))
    assert assumption.holds((1, 2), {"a": 1, "b": 2})
    assert not assumption.holds((1, 2), {"b": 1, "a": 2})  # **kwargs would show it
    assert not assumption.holds((1,), {"a": 1, "b": 2})
    assert not assumption.holds((1, 2), {"a": 2})
    assert not assumption.holds((1, 2), {"a": 2, "c": 1})
    assert str(assumption) == "called with 2 positional arguments and keywords a, b"
    assert assumption.observed((1,), {"c": 1}) == "it is called with 1 positional argument and keywords c"


def test_ambient_state() -> None:
    assumption = AmbientState(NOWHERE, *ambient_state())
    assert assumption.holds((), {})
    for other in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu")):
        with other:
            assert not assumption.holds((), {})
    torch.set_default_dtype(torch.float64)
    try:
        assert not assumption.holds((), {})
    finally:
        torch.set_default_dtype(torch.float32)
    assert assumption.holds((), {})


def test_same_object() -> None:
    first, second = X.item(0), X.item(1)
    one, other = [1], [1]
    assert SameObject(NOWHERE, first, second, True).holds(([one, one],), {})
    assert not SameObject(NOWHERE, first, second, True).holds(([one, other],), {})
    assert SameObject(NOWHERE, first, second, False).holds(([one, other],), {})
    assert not SameObject(NOWHERE, first, second, False).holds(([one],), {})


def test_memory() -> None:
    base, other = torch.zeros(10), torch.zeros(10)
    memory = Memory([base[2:4], torch.zeros(0)])
    assert memory.holds(base.data_ptr()) and memory.holds(base[9:].data_ptr())
    assert not memory.holds(other.data_ptr())
    assert not memory.holds(base.data_ptr() + 40)
    assert not Memory([]).holds(base.data_ptr())
    assert distinct([base, other])
    assert not distinct([base, base[3:]])


def test_distinct() -> None:
    held, one, two = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    alone = Distinct(NOWHERE, (X.item(0), X.item(1)), (held,), False)
    together = Distinct(NOWHERE, (X.item(0), X.item(1)), (held,), True)
    assert alone.holds(([one, two],), {}) and together.holds(([one, two],), {})
    assert alone.holds(([one, one[1:]],), {}) and not together.holds(([one, one[1:]],), {})
    assert not alone.holds(([one, held[1:]],), {})
    assert not alone.holds(([one],), {})


def test_evaluate() -> None:
    expr = Apply(operator.add, (Apply(operator.mul, (Read(K), 3)), Read(X.then(Step.LEN))))
    assert evaluate(expr, ({"k": 4, "j": 0},), {}) == 14
    with pytest.raises(ValueError, match="not known before the graph has run"):
        evaluate(Fetch(1, 0, float), (), {})


TEXTS: list[tuple[Assumption, str]] = [
    (Identity(NOWHERE, K, THING), "x['k'] is the same list"),
    (value(0.5), "x['k'] == 0.5"),
    (TypeOf(NOWHERE, K, Thing), "x['k'] is of type Thing"),
    (kind(torch.ones(2, 3, dtype=torch.float64)), "x['k'] is float64[2, 3]"),
    (kind(torch.ones(2, device="meta")), "x['k'] is float32[2] on meta"),
    (KeyPresence(NOWHERE, X, "k", True), "'k' in x"),
    (KeyPresence(NOWHERE, X, THING, False), "'<list>' not in x"),
    (Emptiness(NOWHERE, K, False), "x['k'] is empty"),
    (Emptiness(NOWHERE, K, True), "x['k'] is not empty"),
    (ContainerKeys(NOWHERE, X, tuple("abcdefgh")), "keys of x: 'a', 'b', 'c', 'd', 'e', 'f', ..."),
    (SameObject(NOWHERE, X, K, False), "x is not x['k']"),
    (LIMIT, "(x['k'] < 3) is True"),
    (Condition(NOWHERE, Read(K), 8), "x['k'] == 8"),
    (Arguments(NOWHERE, 1, ()), "called with 1 positional argument"),
]


@pytest.mark.parametrize(("assumption", "text"), TEXTS, ids=[t for _, t in TEXTS])
def test_text(assumption: Assumption, text: str) -> None:
    assert str(assumption) == text


def test_what_is_there_instead() -> None:
    assert value(1).observed(({"k": 2.5},), {}) == "it is 2.5"
    assert value(1).observed(({"k": torch.ones(2, 1)},), {}) == "it is float32[2, 1]"
    assert value(1).observed(({"k": SimpleNamespace()},), {}) == "it is a SimpleNamespace"
    assert value(1).observed(({},), {}) == "there is nothing (KeyError: 'k')"


def test_a_condition_on_a_number_does_not_hold_where_there_is_a_tensor() -> None:
    condition = Condition(NOWHERE, Apply(operator.ge, (Read(AccessPath.arg(0, "n")), 1)), True)
    assert condition.holds((2,), {})
    assert not condition.holds((0,), {})
    assert not condition.holds((torch.ones(3),), {})

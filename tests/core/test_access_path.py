"""Access paths are keys, read themselves again without writing, and print as the user would write them."""

from __future__ import annotations

import collections
import contextvars
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchjanus.core.access_path import AccessPath, Floats, Ints, Step, numbers_of, token_of
from torchjanus.trace.values import Apply, Read

ARG = AccessPath.arg(0, "batch")


def cell_of(value: Any) -> Any:
    return (lambda: value).__closure__[0]


# -- tokens -------------------------------------------------------------------------------------------------------

DIFFERENT = [1, 1.0, True, 0, 0.0, -0.0, False, None, "1", b"1", 1j, (1,), (1.0,), (True,), slice(1), slice(1.0)]


@pytest.mark.parametrize("one", DIFFERENT, ids=repr)
def test_values_that_python_calls_equal_have_tokens_of_their_own(one: Any) -> None:
    same = [other for other in DIFFERENT if token_of(other) == token_of(one)]
    assert len(same) == 1
    assert same[0] is one


def test_equal_values_have_equal_tokens() -> None:
    assert token_of(float("nan")) == token_of(math.nan)
    assert token_of((1, ("a", 2.5))) == token_of((1, ("a", 2.5)))
    assert token_of(range(0, 4)) == token_of(range(4))
    assert token_of(torch.Size([2, 3])) == token_of(torch.zeros(2, 3).shape)
    assert token_of(torch.device("cpu")) == token_of(torch.zeros(1).device)
    assert token_of(torch.float32) != token_of(torch.float64)


def test_other_objects_go_by_identity() -> None:
    one, two = [1], [1]
    assert token_of(one) == token_of(one) != token_of(two)
    x = torch.ones(2)
    assert token_of(x) != token_of(x.clone())

    class Three(int):
        pass

    three = Three(3)
    assert token_of(three) == ("id", id(three))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda s: st.tuples(s, s)))
def test_tokens_are_hashable_and_repeat(value: Any) -> None:
    assert hash(token_of(value)) == hash(token_of(value))
    assert token_of(value) == token_of(value)


# -- keys ---------------------------------------------------------------------------------------------------------


def test_access_paths_are_equal_where_their_paths_are() -> None:
    assert ARG == AccessPath.arg(0)  # whatever it is called
    assert ARG != AccessPath.arg(1)
    assert ARG.item(1) != ARG.item(True)
    assert ARG.item(0.0) != ARG.item(-0.0)
    assert ARG.attribute("x") == ARG.then(Step.DICT).item("x")
    assert ARG.then(Step.FIELD, "x") != ARG.attribute("x")
    assert ARG.item("x") != AccessPath.kwarg("x")
    assert len({ARG, AccessPath.arg(0), AccessPath.arg(0).item(1), ARG.item(1)}) == 2
    assert ARG != "batch"
    one: list[int] = []
    assert AccessPath.const(one) == AccessPath.const(one) != AccessPath.const([])


# -- reading ------------------------------------------------------------------------------------------------------

VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE", default=5)  # unset


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


NAMESPACE = SimpleNamespace(a=[10, {"k": 11}])
CELL = cell_of(NAMESPACE)
READ: list[tuple[AccessPath, Any]] = [
    (AccessPath.arg(1), "second"),
    (AccessPath.kwarg("named"), "word"),
    (AccessPath.const(NAMESPACE), NAMESPACE),
    (AccessPath.cell(CELL, "n"), NAMESPACE),
    (AccessPath.arg(0).attribute("a").item(0), 10),
    (AccessPath.arg(0).attribute("a").item(1).item("k"), 11),
    (AccessPath.arg(0).attribute("a").item(-1).item("k"), 11),
    (AccessPath.arg(0).attribute("a").then(Step.LEN), 2),
    (AccessPath.const(Slotted(7)).then(Step.FIELD, "x"), 7),
    (AccessPath.const(VARIABLE).then(Step.CONTEXT), None),
    (AccessPath.arg(0).then(Step.DICT), vars(NAMESPACE)),
]


@pytest.mark.parametrize(("access_path", "value"), READ, ids=[str(o) for o, _ in READ])
def test_read(access_path: AccessPath, value: Any) -> None:
    found = access_path.read((NAMESPACE, "second"), {"named": "word"})
    assert found is value or found == value


BROKEN = [
    (AccessPath.arg(5), IndexError),
    (AccessPath.kwarg("none"), KeyError),
    (AccessPath.arg(0).attribute("none"), KeyError),
    (AccessPath.arg(0).attribute("a").item(9), IndexError),
    (AccessPath.arg(0).attribute("a").item(0).item(0), TypeError),
    (AccessPath.arg(0).then(Step.FIELD, "none"), AttributeError),
    (AccessPath.arg(1).attribute("x"), AttributeError),
]


@pytest.mark.parametrize(("access_path", "error"), BROKEN, ids=[str(o) for o, _ in BROKEN])
def test_a_path_that_has_broken_off_raises_what_python_raises(access_path: AccessPath, error: type[Exception]) -> None:
    with pytest.raises(error):
        access_path.read((NAMESPACE, "second"), {})


@pytest.mark.parametrize("cls", [lambda: collections.defaultdict(list), collections.Counter])
def test_reading_makes_no_default(cls: Any) -> None:
    held = cls()
    with pytest.raises(KeyError):
        AccessPath.arg(0).item("missing").read((held,), {})
    assert len(held) == 0


# -- printing -----------------------------------------------------------------------------------------------------

NET = AccessPath.arg(0, "net")
TEXTS = [
    (AccessPath.arg(2), "args[2]"),
    (AccessPath.kwarg("lr"), "lr"),
    (AccessPath.cell(CELL, "model"), "model"),
    (NET.attribute("x"), "net.x"),
    (NET.then(Step.DICT), "net.__dict__"),
    (NET.then(Step.FIELD, "grad"), "net.grad"),
    (NET.item("k").then(Step.LEN), "len(net['k'])"),
    (NET.item(3), "net[3]"),
    (NET.item(ARG), "net[<AccessPath>]"),
    (NET.then(Step.CONTEXT), "net.get()"),
    (NET.attribute("_parameters").item("weight"), "net.weight"),
    (NET.attribute("_modules").item("0").attribute("_buffers").item("mean"), "net[0].mean"),
    (NET.attribute("_modules").item("head"), "net.head"),
    (NET.item("_parameters").item("weight"), "net['_parameters']['weight']"),
    (AccessPath.const({}, "globals").item("LIMIT"), "LIMIT"),
    (AccessPath.const({}).item("LIMIT"), "<dict>['LIMIT']"),
    (AccessPath.const(cell_of), "cell_of"),
    (AccessPath.const(nn.Linear).then(Step.DICT).item("in_features"), "Linear.in_features"),
    (AccessPath.const(object(), "self").attribute("count"), "self.count"),
]


@pytest.mark.parametrize(("access_path", "text"), TEXTS, ids=[t for _, t in TEXTS])
def test_text(access_path: AccessPath, text: str) -> None:
    assert str(access_path) == text


# -- items by expression, and all of a sequence ---------------------------------------------------------------------


def test_an_item_by_an_expression_follows_it() -> None:
    table = {"a": 1.0, "b": 2.0}
    access_path = AccessPath.const(table, "table").at(Read(AccessPath.arg(0, "name")))
    assert [access_path.read((name,), {}) for name in "aba"] == [1.0, 2.0, 1.0]
    assert str(access_path) == "table[name]"
    direction = AccessPath.const([10, 20, 30], "row").at(Apply(int.__floordiv__, (Read(AccessPath.arg(0, "k")), 2)))
    assert [direction.read((k,), {}) for k in (0, 1, 2, 5, -1)] == [10, 10, 20, 30, 30]
    assert direction != access_path
    assert direction == AccessPath.const(direction.base.key).at(Apply(int.__floordiv__, (Read(AccessPath.arg(0)), 2)))  # type: ignore[union-attr]
    for broken, error in ((("c",), KeyError), ((), IndexError)):
        with pytest.raises(error):
            access_path.read(broken, {})


def test_an_item_by_an_expression_makes_no_default() -> None:
    table: Any = collections.defaultdict(list)
    with pytest.raises(KeyError):
        AccessPath.const(table).at(Read(AccessPath.arg(0))).read(("a",), {})
    assert not table


def test_numbers_of_one_type() -> None:
    assert type(numbers_of([1, 2])) is Ints
    assert type(numbers_of(collections.deque([1.0]))) is Floats
    assert numbers_of((1.5, 2.5)) == (1.5, 2.5)
    mixed: list[Any] = [[], [1, 2.0], [True], [None], [1.0, "a"]]
    for row in mixed:
        with pytest.raises(TypeError):
            numbers_of(row)
    access_path = AccessPath.arg(0, "losses").then(Step.NUMBERS)
    assert access_path.read(([1.0, 2.0],), {}) == (1.0, 2.0)
    assert str(access_path) == "losses[:]"

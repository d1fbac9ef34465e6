"""Origins are keys, read themselves again without writing, and print as the user would write them."""

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

from torchjanus.core.access_path import Floats, Ints, Origin, Step, numbers_of, token_of
from torchjanus.trace.values import Apply, Read

ARG = Origin.arg(0, "batch")


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


def test_origins_are_equal_where_their_paths_are() -> None:
    assert ARG == Origin.arg(0)  # whatever it is called
    assert ARG != Origin.arg(1)
    assert ARG.item(1) != ARG.item(True)
    assert ARG.item(0.0) != ARG.item(-0.0)
    assert ARG.attribute("x") == ARG.then(Step.DICT).item("x")
    assert ARG.then(Step.FIELD, "x") != ARG.attribute("x")
    assert ARG.item("x") != Origin.kwarg("x")
    assert len({ARG, Origin.arg(0), Origin.arg(0).item(1), ARG.item(1)}) == 2
    assert ARG != "batch"
    one: list[int] = []
    assert Origin.const(one) == Origin.const(one) != Origin.const([])


# -- reading ------------------------------------------------------------------------------------------------------

VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE", default=5)  # unset


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


NAMESPACE = SimpleNamespace(a=[10, {"k": 11}])
CELL = cell_of(NAMESPACE)
READ: list[tuple[Origin, Any]] = [
    (Origin.arg(1), "second"),
    (Origin.kwarg("named"), "word"),
    (Origin.const(NAMESPACE), NAMESPACE),
    (Origin.cell(CELL, "n"), NAMESPACE),
    (Origin.arg(0).attribute("a").item(0), 10),
    (Origin.arg(0).attribute("a").item(1).item("k"), 11),
    (Origin.arg(0).attribute("a").item(-1).item("k"), 11),
    (Origin.arg(0).attribute("a").then(Step.LEN), 2),
    (Origin.const(Slotted(7)).then(Step.FIELD, "x"), 7),
    (Origin.const(VARIABLE).then(Step.CONTEXT), None),
    (Origin.arg(0).then(Step.DICT), vars(NAMESPACE)),
]


@pytest.mark.parametrize(("origin", "value"), READ, ids=[str(o) for o, _ in READ])
def test_read(origin: Origin, value: Any) -> None:
    found = origin.read((NAMESPACE, "second"), {"named": "word"})
    assert found is value or found == value


BROKEN = [
    (Origin.arg(5), IndexError),
    (Origin.kwarg("none"), KeyError),
    (Origin.arg(0).attribute("none"), KeyError),
    (Origin.arg(0).attribute("a").item(9), IndexError),
    (Origin.arg(0).attribute("a").item(0).item(0), TypeError),
    (Origin.arg(0).then(Step.FIELD, "none"), AttributeError),
    (Origin.arg(1).attribute("x"), AttributeError),
]


@pytest.mark.parametrize(("origin", "error"), BROKEN, ids=[str(o) for o, _ in BROKEN])
def test_a_path_that_has_broken_off_raises_what_python_raises(origin: Origin, error: type[Exception]) -> None:
    with pytest.raises(error):
        origin.read((NAMESPACE, "second"), {})


@pytest.mark.parametrize("cls", [lambda: collections.defaultdict(list), collections.Counter])
def test_reading_makes_no_default(cls: Any) -> None:
    held = cls()
    with pytest.raises(KeyError):
        Origin.arg(0).item("missing").read((held,), {})
    assert len(held) == 0


# -- printing -----------------------------------------------------------------------------------------------------

NET = Origin.arg(0, "net")
TEXTS = [
    (Origin.arg(2), "args[2]"),
    (Origin.kwarg("lr"), "lr"),
    (Origin.cell(CELL, "model"), "model"),
    (NET.attribute("x"), "net.x"),
    (NET.then(Step.DICT), "net.__dict__"),
    (NET.then(Step.FIELD, "grad"), "net.grad"),
    (NET.item("k").then(Step.LEN), "len(net['k'])"),
    (NET.item(3), "net[3]"),
    (NET.item(ARG), "net[<Origin>]"),
    (NET.then(Step.CONTEXT), "net.get()"),
    (NET.attribute("_parameters").item("weight"), "net.weight"),
    (NET.attribute("_modules").item("0").attribute("_buffers").item("mean"), "net[0].mean"),
    (NET.attribute("_modules").item("head"), "net.head"),
    (NET.item("_parameters").item("weight"), "net['_parameters']['weight']"),
    (Origin.const({}, "globals").item("LIMIT"), "LIMIT"),
    (Origin.const({}).item("LIMIT"), "<dict>['LIMIT']"),
    (Origin.const(cell_of), "cell_of"),
    (Origin.const(nn.Linear).then(Step.DICT).item("in_features"), "Linear.in_features"),
    (Origin.const(object(), "self").attribute("count"), "self.count"),
]


@pytest.mark.parametrize(("origin", "text"), TEXTS, ids=[t for _, t in TEXTS])
def test_text(origin: Origin, text: str) -> None:
    assert str(origin) == text


# -- items by expression, and all of a sequence ---------------------------------------------------------------------


def test_an_item_by_an_expression_follows_it() -> None:
    table = {"a": 1.0, "b": 2.0}
    origin = Origin.const(table, "table").at(Read(Origin.arg(0, "name")))
    assert [origin.read((name,), {}) for name in "aba"] == [1.0, 2.0, 1.0]
    assert str(origin) == "table[name]"
    half = Origin.const([10, 20, 30], "row").at(Apply(int.__floordiv__, (Read(Origin.arg(0, "k")), 2)))
    assert [half.read((k,), {}) for k in (0, 1, 2, 5, -1)] == [10, 10, 20, 30, 30]
    assert half != origin
    assert half == Origin.const(half.base.key).at(Apply(int.__floordiv__, (Read(Origin.arg(0)), 2)))  # type: ignore[union-attr]
    for broken, error in ((("c",), KeyError), ((), IndexError)):
        with pytest.raises(error):
            origin.read(broken, {})


def test_an_item_by_an_expression_makes_no_default() -> None:
    table: Any = collections.defaultdict(list)
    with pytest.raises(KeyError):
        Origin.const(table).at(Read(Origin.arg(0))).read(("a",), {})
    assert not table


def test_numbers_of_one_type() -> None:
    assert type(numbers_of([1, 2])) is Ints
    assert type(numbers_of(collections.deque([1.0]))) is Floats
    assert numbers_of((1.5, 2.5)) == (1.5, 2.5)
    mixed: list[Any] = [[], [1, 2.0], [True], [None], [1.0, "a"]]
    for row in mixed:
        with pytest.raises(TypeError):
            numbers_of(row)
    origin = Origin.arg(0, "losses").then(Step.NUMBERS)
    assert origin.read(([1.0, 2.0],), {}) == (1.0, 2.0)
    assert str(origin) == "losses[:]"

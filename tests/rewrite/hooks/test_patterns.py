"""Patterns ask the hooks, in CPython's order; what they bind is the program's own."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from torchjanus import Semantics, virtualize


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __repr__(self) -> str:
        return f"Point({self.x}, {self.y})"


class Limits:
    low = 3


class Clock(Semantics):
    """Numbers are equal if they are so on a clock of ten hours."""

    def compare(self, at: Any, op: str, a: Any, b: Any) -> Any:
        if op == "==" and isinstance(a, int) and isinstance(b, int):
            return (a - b) % 10 == 0
        return super().compare(at, op, a, b)


def reported(value: Any) -> Any:
    match value:
        case 0:
            return "none"
        case Limits.low | (Limits.low, _):
            return "low"
        case Point(1, y=[first, *rest]):
            return first, rest
        case Point(x=Point() as inner) if inner.y:
            return inner
        case {"key": int(k), **others} if k > 0:
            return k, others
        case [*_, None]:
            return "ends"
        case str(text) | {"text": text}:
            return text
        case other:
            return other


INNER = Point(1, 2)
SUBJECTS: list[Any] = [
    0, 3, 10, 13, (3, None), (13, None), [1, None], Point(1, [5, 6, 7]), Point(11, (5,)), Point(INNER, 0), Point(2, 0),
    {"key": 4, "text": "t", "other": 1}, {"key": -4, "text": "t"}, collections.OrderedDict(key=2), "text", b"text",
    None, True, collections.deque([1, None]),
]  # fmt: skip


@pytest.mark.parametrize("value", SUBJECTS, ids=repr)
def test_what_is_bound_is_the_value_itself(value: Any) -> None:
    expected, found = reported(value), virtualize(reported, Semantics())(value)
    assert found == expected and type(found) is type(expected)
    assert (found is value) is (expected is value)


def test_patterns_have_the_meaning_that_the_hooks_give_them() -> None:
    on_clock = virtualize(reported, Clock())
    assert on_clock(10) == "none" and reported(10) == 10
    assert on_clock(13) == "low" and on_clock((23, 1)) == "low" and on_clock(4) == 4
    assert on_clock(Point(11, (5,))) == (5, [])


def test_hooks_are_asked_in_cpythons_order() -> None:
    asked: list[Any] = []

    class Merged(Semantics):
        def attr(self, at: Any, obj: Any, name: str) -> Any:
            asked.append(name)
            return super().attr(at, obj, name)

        def item(self, at: Any, obj: Any, key: Any) -> Any:
            asked.append(key)
            return super().item(at, obj, key)

        def compare(self, at: Any, op: str, a: Any, b: Any) -> Any:
            asked.append((op, a, b))
            return super().compare(at, op, a, b)

    assert virtualize(reported, Merged())(Point(1, (5, 6))) == (5, [6])
    own = [one for one in asked if one != "low"]
    values = [one for one in own if one in ("x", "y", 0, 1, ("==", 1, 1))]
    assert values == ["x", "y", ("==", 1, 1), 0, 1]
    assert "low" in asked


def test_bound_names_of_the_module_and_of_closures_are_reported() -> None:
    stored: list[Any] = []
    last: Any = None

    class Merged(Semantics):
        def set_cell(self, at: Any, cell: Any, name: str, value: Any) -> Any:
            stored.append((name, value))
            return super().set_cell(at, cell, name, value)

    def keep(value: Any) -> None:
        nonlocal last
        match value:
            case [last, _]:
                pass

    virtualize(keep, Merged())([4, 5])
    assert (last, stored) == (4, [("last", 4)])
    keep([6, 7])
    assert last == 6


def test_an_error_of_an_attribute_is_the_programs() -> None:
    class Broken:
        @property
        def x(self) -> Any:
            raise ValueError("broken")

    def step(value: Any) -> Any:
        match value:
            case Broken(x=1):
                return 1

    with pytest.raises(ValueError, match="broken"):
        virtualize(step, Semantics())(Broken())

"""Marks are equal as long as an object holds the same, and otherwise not."""

from __future__ import annotations

import array
import collections
import functools
from typing import Any

import pytest
import torch

from torchjanus.semantics.record.marks import AppendOnlyList, ContentMarker, attributes_of


class Plain:
    def __init__(self) -> None:
        self.value: Any = "a"


class Slots:
    __slots__ = ("empty", "value")

    def __init__(self) -> None:
        self.value = "a"

    @property
    def computed(self) -> str:
        raise AssertionError("this is code of the program's")


class Shouting(dict[Any, Any]):
    def items(self) -> Any:
        raise AssertionError("this is code of the program's")

    keys = values = __iter__ = items  # type: ignore[assignment]


def reported(text: str) -> Any:
    return lambda: text


def looking() -> ContentMarker:
    return ContentMarker((), {})


def mark(value: Any, marker: ContentMarker | None = None) -> Any:
    return (marker or looking()).unnamed("name", value, False)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: {"a": 1}, lambda held: held.update(b=2)),
        (lambda: {"a": "x"}, lambda held: held.update(a="y")),
        (lambda: Shouting(a=1), lambda held: dict.update(held, a=2)),
        (lambda: {"p"}, lambda held: held.add("n")),
        (lambda: {"a": {"b": {"c": {"d": ["e"]}}}}, lambda held: held["a"]["b"]["c"]["d"].append("f")),
        (lambda: (["a"],), lambda held: held[0].append("b")),
        (Plain, lambda held: setattr(held, "value", "b")),
        (Plain, lambda held: setattr(held, "other", "a")),
        (Slots, lambda held: setattr(held, "value", "b")),
        (Slots, lambda held: setattr(held, "empty", "a")),
        (lambda: bytearray(b"a"), lambda held: held.append(1)),
        (lambda: array.array("b", [1]), lambda held: held.append(2)),
        (lambda: functools.partial(max, ["a"]), lambda held: held.args[0].append("b")),
        (lambda: collections.Counter("a"), lambda held: held.update("b")),
    ],
)
def test_what_changes_has_another_mark(make: Any, change: Any) -> None:
    held = make()
    before = mark(held)
    assert mark(held) == before
    change(held)
    assert mark(held) != before


def test_functions_are_distinguished_by_what_they_hold() -> None:
    assert mark(reported("p")) != mark(reported("n"))
    assert mark(reported("p")) == mark(reported("p"))
    assert mark(lambda: "p") != mark(lambda: "n")


def test_what_a_running_function_shares_is_named_there() -> None:
    label = "p"

    def inner() -> str:
        return label

    running = ContentMarker([test_what_a_running_function_shares_is_named_there.__code__], {})
    before = mark(inner, running)
    label = "n"
    assert mark(inner, running) == before
    assert mark(inner) != before


def test_what_holds_itself_and_what_is_too_large() -> None:
    held: dict[Any, Any] = {}
    held["self"] = held
    assert mark(held) == mark(held)
    large = tuple([str(number)] for number in range(5000))
    assert mark(large) != mark(large)  # nobody knows


def test_a_list_that_only_grows_keeps_its_record() -> None:
    records: dict[Any, AppendOnlyList] = {}

    def look(held: list[Any]) -> tuple[Any, ...]:
        found = ContentMarker((), records).unnamed("name", held, True)
        assert found is not None
        return found

    held: list[Any] = [torch.ones(1), {"a": "x"}]
    record, length = look(held)
    held.append("b")
    grown, more = look(held)
    assert grown is record
    assert (length, more) == (2, 3)
    assert record.marks[2] == "b"
    held[1]["a"] = "y"
    assert look(held)[0] is not record
    record = look(held)[0]
    held[0] = torch.zeros(1)
    assert look(held)[0] is not record
    record = look(held)[0]
    held.pop()
    assert look(held)[0] is not record


def test_attributes_are_read_without_any_code_of_the_programs() -> None:
    assert attributes_of(Slots(), slots=True) == {"value": "a"}
    assert attributes_of(Plain()) == {"value": "a"}
    assert attributes_of(torch.nn.Linear(1, 1)) == {}

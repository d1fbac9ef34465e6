"""The text form: it leads back to the tree, says what is wrong with it, and is the same for runs of one path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.loops.outline import outlined
from torchjanus.tracegraph.flatten import flatten
from torchjanus.tracegraph.graph import Const, Graph
from torchjanus.tracegraph.record import tree_of
from torchjanus.tracegraph.text.constants import Unknown, name_of_object, named
from torchjanus.tracegraph.text.parsing import parse_graph
from torchjanus.tracegraph.text.printing import constants_of, print_graph
from torchjanus.tracegraph.text.reading import Symbol, TextError, Vector, quoted, read
from torchjanus.tracegraph.verify import verify


def tree(step: Callable[..., Any], *args: Any) -> Graph:
    with outlined():
        return tree_of(watch_call(step, (), args, {})[1])  # type: ignore[arg-type]


def step(x: torch.Tensor, n: int) -> Any:
    rows = {"a b": [], 2: (x, n)}
    for i in range(3):
        if i % 2:
            x = x * n
        rows["a b"].append(x.to(torch.float64))  # type: ignore[union-attr]
    return rows, '\u00e9\n"', float("inf"), -0.0, 1e-7, None


def test_the_text_leads_back() -> None:
    graph = tree(step, torch.ones(2), 3)
    text = print_graph(graph)
    again = parse_graph(text, constants_of(graph))
    assert again == graph
    assert flatten(again).tokens() == flatten(graph).tokens()
    verify(again)


class Pair(NamedTuple):
    """A class of tuples."""

    one: torch.Tensor
    two: int


def test_classes_of_tuples() -> None:
    def sized(x: torch.Tensor, n: int) -> Any:
        return torch.zeros(x[:n].size()), torch.stack(Pair(x, x)[:1]), Pair(x + 1, n)

    graph = tree(sized, torch.ones(4), 2)
    again = parse_graph(print_graph(graph), constants_of(graph))
    assert again == graph
    assert flatten(again).tokens() == flatten(graph).tokens()


def test_without_the_objects_the_text_stays() -> None:
    graph = tree(step, torch.ones(2), 3)
    text = print_graph(graph)
    again = parse_graph(text)
    assert print_graph(again) == text
    verify(again)
    assert again != graph  # an object of the program has no name
    assert "torch.float64" in text


def test_each_difference_shows_in_equality() -> None:
    graph = tree(step, torch.ones(2), 3)
    text = print_graph(graph)
    for old, new in (('"Tensor.mul"', '"Tensor.add"'), ("(block then", "(block else"), ("(writes", "(writes")):
        changed = text.replace(old, new, 1)
        assert (parse_graph(changed, constants_of(graph)) == graph) is (changed == text)


def test_literals_are_distinguished() -> None:
    assert Const(1) != Const(True)
    assert Const(1) != Const(1.0)
    assert Const(0.0) != Const(-0.0)
    assert Const(float("nan")) == Const(float("nan"))


def test_expressions() -> None:
    assert read('(a [1 -2.5 "x (y" true] ; rest\n none)') == [Symbol("a"), Vector([1, -2.5, "x (y", True]), None]
    assert read(quoted('"\\\n\u00e9')) == '"\\\n\u00e9'
    assert isinstance(read("a"), Symbol)
    assert type(read('"a"')) is str


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("(a", "line 1: the text ends too early"),
        ("(a)\n(b)", "line 2: .* goes on after its end"),
        ("(a\n]", r"line 2: \] closes nothing"),
        ('(a "b', "line 1: a text in quotes does not end"),
        ("(tracegraph 0)", "it does not begin with"),
        ("(tracegraph 1)", "there must be one graph"),
        ('(tracegraph 1 (graph "f" 0 (ambient none) (note 1)))', r"a graph does not hold \(note"),
        ('(tracegraph 1 (graph "f" 0 (ambient none) (block body (do (jump)) (yield))))', "there is no node jump"),
        (
            '(tracegraph 1 (graph "f" 0 (ambient none) (block body (do (assert %0 true)) (yield))))',
            "%0 is made nowhere",
        ),
        ('(tracegraph 1 (graph "f" 0 (ambient none) (block body)))', "a block has a role"),
    ],
)
def test_what_is_wrong_is_said(text: str, what: str) -> None:
    with pytest.raises(TextError, match=what):
        parse_graph(text)


@pytest.mark.parametrize("value", [torch.float32, torch.strided, torch.add, torch.Tensor.add, len, torch.nn, dict])
def test_names_lead_to_the_object(value: Any) -> None:
    name = name_of_object(value)
    assert name is not None
    assert named(name) is value


def test_what_has_no_name() -> None:
    assert name_of_object(lambda: 0) is None
    assert name_of_object(torch.ones(1)) is None
    assert named("no_such_module:f") == Unknown("no_such_module:f")

"""Walks over the arguments of calls keep the order, the classes and the dictionaries' keys."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch

from torchjanus.core.trees import held_by, leaves_of, leaves_of_kind, map_leaves, map_parts, tree_token


class Pair(NamedTuple):
    first: Any
    second: Any


TREE = [1, (2, {"b": 3, "a": "x"}), slice(4, None, 5), [], Pair(6, ())]


def test_leaves_come_in_the_order_of_the_parts() -> None:
    assert list(leaves_of(TREE)) == [1, 2, 3, "x", 4, None, 5, 6]
    assert list(leaves_of_kind(TREE, str)) == ["x"]
    assert list(leaves_of(7)) == [7]


def test_what_containers_hold_is_found_in_those_that_hold_themselves_and_in_deep_ones() -> None:
    class Own(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise AssertionError

    own = Own([1])
    held: Any = [1, Pair({"a": 2}, own)]
    held.append(held)
    assert sorted(map(id, held_by(held))) == sorted(map(id, (1, 2, own)))
    deep: Any = 5
    for _ in range(5000):
        deep = [deep]
    assert list(held_by(deep)) == [5]
    assert list(held_by(7)) == [7]


def test_a_mapped_tree_has_the_form_of_the_tree() -> None:
    made = map_leaves(TREE, lambda leaf: leaf * 10 if type(leaf) is int else leaf)
    assert made == [10, (20, {"b": 30, "a": "x"}), slice(40, None, 50), [], Pair(60, ())]
    assert list(made[1][1]) == ["b", "a"]
    assert type(made[4]) is Pair
    assert map_leaves(7, str) == "7"


@pytest.mark.parametrize(
    ("tree", "plain"),
    [(torch.Size([2, 3]), (2, 3)), (OrderedDict(b=1, a=2), {"b": 1, "a": 2})],
    ids=["size", "ordered"],
)
def test_other_containers_become_plain_ones(tree: Any, plain: Any) -> None:
    made = map_leaves(tree, lambda leaf: leaf)
    assert made == plain and type(made) is type(plain)


def test_only_immediate_parts_are_changed() -> None:
    assert map_parts([1, (2, 3)], lambda part: [part]) == [[1], [(2, 3)]]
    leaf = object()
    assert map_parts(leaf, lambda part: [part]) is leaf


def test_tokens_tell_forms_apart() -> None:
    trees: list[Any] = [
        [1, 2],
        (1, 2),
        [1, [2]],
        [[1], 2],
        {"a": 1},
        {"b": 1},
        {1: 1},
        {True: 1},
        slice(1, 2),
        Pair(1, 2),
    ]
    tokens = [tree_token(tree, repr) for tree in trees]
    assert len(set(tokens)) == len(trees)
    assert tokens == [tree_token(map_leaves(tree, lambda leaf: leaf), repr) for tree in trees]

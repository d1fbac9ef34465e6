"""Recursive calls, each watched for itself: results, what calls write, and what they find around themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.agreement import agree
from tests.programs.harness import Program

CLOSE = 1e-5


class Node:
    def __init__(self, value: int, *children: Node) -> None:
        self.value, self.children = value, list(children)


def tree(depth: int, width: int = 2, value: int = 0) -> Node:
    """A tree in which each node but the last has so many children."""
    return Node(value, *(tree(depth - 1, width, value + n + 1) for n in range(width if depth else 0)))


SHAPES = [tree(1), tree(2), tree(0), tree(3), Node(1, tree(1), tree(2)), tree(2, 1), tree(2), Node(4, tree(0), tree(3))]


def program(body: Any, state: Any = None, trees: list[Node] | None = None) -> Any:
    def make() -> Program:
        torch.manual_seed(0)
        words = torch.randn(16, 3, requires_grad=True)
        held = {} if state is None else state()

        def step(root: Node) -> Any:
            words.grad = None
            made = body(root, words, held)
            made.sum().backward()
            return made.detach(), words.grad

        return Program(step, [(root,) for root in (trees or SHAPES) * 2], state=held)

    return make


def plain(root: Node, words: torch.Tensor, state: Any) -> torch.Tensor:
    def encode(node: Node) -> torch.Tensor:
        total = words[node.value % 16]
        for child in node.children:
            total = total + torch.tanh(encode(child))
        return total

    return encode(root)


def counts(root: Node, words: torch.Tensor, state: Any) -> torch.Tensor:
    def encode(node: Node) -> torch.Tensor:
        state["calls"] = state.get("calls", 0) + 1
        state.setdefault("seen", []).append(node.value)
        h = words[node.value % 16] * 1.0
        for child in node.children:
            h = h + encode(child)
        return h

    return encode(root)


def pairs(root: Node, words: torch.Tensor, state: Any) -> torch.Tensor:
    def encode(node: Node) -> tuple[torch.Tensor, int]:
        h, size = words[node.value % 16] * 1.0, 1
        for child in node.children:
            below, more = encode(child)
            h, size = torch.tanh(h + below), size + more
        return h, size

    h, size = encode(root)
    return h * size


def passes_down(root: Node, words: torch.Tensor, state: Any) -> torch.Tensor:
    def encode(node: Node, above: torch.Tensor, depth: int) -> torch.Tensor:
        h = torch.tanh(words[node.value % 16] + above)
        return h if not node.children else sum((encode(c, h, depth + 1) for c in node.children), h) / (depth + 1)

    return encode(root, torch.zeros(3), 0)


def raises(root: Node, words: torch.Tensor, state: Any) -> torch.Tensor:
    def encode(node: Node) -> torch.Tensor:
        if node.value > 5:
            raise ValueError(f"node {node.value}")
        return words[node.value % 16] + sum((encode(c) for c in node.children), torch.zeros(3))

    return encode(root)


LONG = [pytest.param(body, id=body.__name__, marks=pytest.mark.slow) for body in (plain, pairs, passes_down, raises)]


@pytest.mark.parametrize("body", [pytest.param(counts, id="counts"), *LONG])
def test_recursive_calls_are_as_in_eager(body: Any) -> None:
    agree(program(body), close=CLOSE)


@pytest.mark.slow
def test_trees_that_were_never_seen_are_served() -> None:
    unseen = [tree(3, 2, 5), Node(2, tree(3, 1), tree(2))]
    (speculated,) = agree(program(plain, trees=[*SHAPES, *unseen]), close=CLOSE)
    assert speculated.statistics().speculated >= 10
    assert speculated.statistics().entries == 1


def test_a_tree_of_one_node() -> None:
    (speculated,) = agree(program(plain, trees=[tree(0)]), close=CLOSE)
    assert speculated.statistics().calls == 2

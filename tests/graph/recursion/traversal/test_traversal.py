"""Calls followed on the host: which rows they take, unknown ways, recursion too deep, parameters that nobody uses."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tests.graph.recursion.learnt import Learnt, Node, chain_of, sums_of
from torchjanus.core.errors import InternalFault
from torchjanus.graph.recursion.traversal.traversal import HostTraversal, with_aliases

WORDS = torch.randn(5, 3)


@pytest.fixture(scope="module")
def sums() -> Learnt:
    return Learnt(sums_of(WORDS), *(Node(0, *(Node(1) for _ in range(n))) for n in (0, 1, 2)))


def test_a_walk_reads_what_calls_read_and_changes_nothing(sums: Learnt) -> None:
    tree = Node(0, Node(1), Node(2))
    before = [vars(node).copy() for node in (tree, *tree.children)]
    forest = sums.walk(tree)
    assert forest is not None
    assert [vars(node) for node in (tree, *tree.children)] == before
    rows = torch.cat([column.reshape(-1, 3) for columns in forest.columns for column in columns])
    assert sorted(rows.tolist()) == sorted(WORDS[:3].tolist())


def test_one_row_of_the_result_for_each_entry_call(sums: Learnt) -> None:
    forest = sums.walk(Node(3))
    assert forest is not None
    assert [rows.numel() for rows in forest.results] == [1]
    assert sum(batch.count for batch in forest.batches) == 1


def test_unknown_variants_end_the_walk(sums: Learnt) -> None:
    assert sums.walk(Node(0, Node(1), Node(1), Node(1))) is None
    assert sums.walk(Node(0.5)) is None
    assert sums.walk(Node(0, 3)) is None  # a child that is no node


def test_nodes_that_lack_what_was_read_end_the_walk(sums: Learnt) -> None:
    node = Node(0)
    del node.word
    assert sums.walk(node) is None


def test_a_recursion_deeper_than_eager_could_go_ends_the_walk() -> None:
    learnt = Learnt(chain_of(WORDS), Node(0), Node(1, Node(2)), Node(1, Node(2, Node(3))))
    tree = Node(0)
    for _ in range(50):
        tree = Node(1, tree)
    assert learnt.walk(tree) is not None
    for _ in range(sys.getrecursionlimit()):
        tree = Node(1, tree)
    assert learnt.walk(tree) is None


def test_every_parameter_has_to_be_used() -> None:
    words, w = torch.randn(5, 3), torch.randn(3, 3, requires_grad=True)

    def encode(node: Any) -> torch.Tensor:
        h = words[node.word] * 1.0
        for child in node.children:
            h = torch.tanh(h + encode(child) @ w)
        return h

    def step(tree: Any) -> torch.Tensor:
        w.grad = None
        loss = encode(tree).sum()
        if loss.requires_grad:
            loss.backward()
        return loss.detach()

    learnt = Learnt.of(step, *(Node(0, *(Node(1) for _ in range(n))) for n in (1, 2, 3)))
    assert learnt.walk(Node(0, Node(1))) is not None
    assert learnt.walk(Node(0)) is None  # the parameter would have no gradient


def test_faults_of_the_traversal_are_not_hidden(sums: Learnt, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise NameError("no such name")

    walker: HostTraversal = sums.call_group.walker
    monkeypatch.setattr(walker, "_follow", broken)
    with pytest.raises((InternalFault, NameError)):
        sums.walk(Node(0))


def test_a_walk_says_what_it_needs_of_the_step(sums: Learnt) -> None:
    walker: HostTraversal = sums.call_group.walker
    assert [path for _, path in walker.needs.values()] == walker.reads
    assert walker.reads == sums.call_group.reads


def test_tokens_of_one_tensor_stand_for_each_other() -> None:
    alike = {"a": frozenset({"a", "b"}), "b": frozenset({"a", "b"})}
    assert with_aliases(["a", "c"], alike) == {"a", "b", "c"}
    assert with_aliases([], alike) == frozenset()

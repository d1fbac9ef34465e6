"""Variants of recursive functions, the recursion that they make together, and who follows the calls of a run."""

import pytest
import torch

from tests.graph.recursion.learnt import Learnt, Node, chain_of, sums_of
from torchjanus.graph.recursion.cells.buffers import TRUTH, assemble

WIDTH = 3


@pytest.fixture
def words():
    return torch.randn(5, WIDTH)


def test_a_way_is_cut_where_it_waits_for_a_call(words):
    learnt = Learnt(chain_of(words), Node(0), Node(1, Node(2)), Node(1, Node(2, Node(3))))
    leaf, inner = learnt.variant(0), learnt.variant(1)
    assert [part.stage for part in leaf.parts] == [0]
    assert leaf.sites == []
    assert inner.sites[0].stage == 0
    # All is computed as late as possible: after the call.
    assert [part.stage for part in inner.parts] == [1]
    (part,) = inner.parts
    assert [inner.source_of(ref) for ref in part.takes] == [("call", 0, 0)]
    assert inner.order == [("site", 0), ("part", 0)]


def test_iterations_of_a_loop_that_is_run_more_or_less_often_are_one_cell(words):
    learnt = Learnt(sums_of(words), *(Node(0, *(Node(1) for _ in range(n))) for n in (0, 1, 2, 3)))
    iterations = [part.form for variant in learnt.variants for part in variant.parts if part.takes]
    assert len(iterations) == 1 + 2 + 3
    assert len(set(iterations)) == 1


def test_rows_of_what_a_function_returns_are_in_one_buffer(words):
    learnt = Learnt(chain_of(words), Node(0), Node(1, Node(2)), Node(1, Node(2, Node(3))))
    shared = {o.token: words for variant in learnt.variants for part in variant.parts for _, o in part.shared}
    variant = learnt.variant(0)
    key = ("result", variant.callee, variant.made, 0)
    assembled = assemble(learnt.variants, shared, (), (key,))
    recursion = assembled.recursion
    assert len(recursion.cells) == 2
    assert len(recursion.buffers) == 1
    assert recursion.buffers[0].shape == (WIDTH,)
    assert all(cell.gives == (assembled.buffers[key],) for cell in recursion.cells)
    assert recursion.truths == recursion.kept == ()


def test_a_walk_lays_out_a_tree_level_by_level(words):
    trees = [Node(0, *(Node(1) for _ in range(n))) for n in (0, 1, 2, 3)]
    learnt = Learnt(sums_of(words), *trees)
    forest = learnt.walk(Node(0, Node(1, Node(2)), Node(3)))
    assert forest is not None
    counts = [(learnt.call_group.assembled.recursion.cells[b.cell].takes != (), b.count) for b in forest.batches]
    # Words of all four nodes at once, then the three iterations: that of the inner child, and two one after the other.
    assert counts == [(False, 4), (True, 1), (True, 1), (True, 1)]
    (rows,) = forest.results
    assert rows.numel() == 1
    wanted = sums_of(words)(Node(0, Node(1, Node(2)), Node(3)))
    assert torch.equal(learnt.step(Node(0, Node(1, Node(2)), Node(3))), wanted)


def test_terms_of_a_sum_over_iterations_are_computed_all_at_once(words):
    def encode(node):
        h = words[node.word] * 1.0
        for child in node.children:
            h = h + torch.tanh(encode(child))
        return h

    trees = [Node(0, *(Node(1) for _ in range(n))) for n in (0, 1, 2, 3)]
    learnt = Learnt(encode, *trees)
    assert [len(variant.folds) for variant in learnt.variants] == [
        min(1, len(variant.sites)) for variant in learnt.variants
    ]
    forest = learnt.walk(Node(0, Node(1, Node(2), Node(2)), Node(3)))
    assert forest is not None
    # Five words; terms of the three leaves, the sum of the inner node; its term, and the sum of the root.
    assert [batch.count for batch in forest.batches] == [5, 3, 1, 1, 1]
    assert [added.terms.numel() for added in forest.added] == [4]
    tree = Node(0, Node(1, Node(2), Node(2)), Node(3))
    assert torch.equal(learnt.step(tree), encode(tree))


def test_a_way_that_was_not_seen_ends_the_walk(words):
    trees = [Node(0, *(Node(1) for _ in range(n))) for n in (0, 1, 2)]
    learnt = Learnt(sums_of(words), *trees)
    assert learnt.walk(Node(0, Node(1), Node(2, Node(3)))) is not None
    assert learnt.walk(Node(0, Node(1), Node(2, Node(3), Node(3), Node(3)))) is None
    assert learnt.walk(Node(0, Node("text"))) is None


def checked(words):
    def encode(node):
        h = words[node.word] * 1.0
        for child in node.children:
            h = h + encode(child)
        return h if torch.isfinite(h).all() else h * 0

    return encode


def test_what_tensors_decide_is_one_truth_of_each_call(words):
    trees = [Node(0, *(Node(1) for _ in range(n))) for n in (0, 1, 2)]
    learnt = Learnt(checked(words), *trees)
    assert all(len(variant.truths) == 1 for variant in learnt.variants)
    (truths,) = learnt.call_group.assembled.recursion.truths
    assert truths == learnt.call_group.assembled.buffers[TRUTH]
    forest = learnt.walk(Node(0, Node(1), Node(2)))
    assert forest.sizes[truths] == 3
    (assertion,) = learnt.entry.lowered.assertions
    assert assertion.expected
    assert assertion.place.file == __file__
    words[4] = torch.inf
    found, wanted = learnt.step(Node(0, Node(4))), checked(words)(Node(0, Node(4)))
    assert torch.equal(found.isnan(), wanted.isnan())
    assert learnt.step.statistics().violated == 1


def test_variants_between_which_a_tensor_decides_are_merged(words):
    words[0], words[1] = 1.0, torch.inf
    trees = [Node(0), Node(0, Node(0)), Node(1), Node(0, Node(1)), Node(0, Node(0))]
    learnt = Learnt(checked(words), *trees)
    assert sorted((len(variant.sites), len(variant.truths)) for variant in learnt.variants) == [(0, 0), (1, 0)]
    tree = Node(0, Node(0, Node(1)))
    before = learnt.step.statistics().speculated
    assert torch.equal(learnt.step(tree).isnan(), checked(words)(tree).isnan())
    assert learnt.step.statistics().speculated == before + 1


def test_a_tensor_that_decides_whether_to_go_on_unrolls(words):
    def encode(node):
        h = words[node.word] * 1.0
        if torch.isfinite(h).all():
            for child in node.children:
                h = h + encode(child)
        return h

    words[0], words[1] = 1.0, torch.inf
    learnt = Learnt(encode, Node(0), Node(0, Node(0)), Node(0, Node(0)), Node(0, Node(1, Node(0))))
    merged = [event.text for event in learnt.step.events if event.kind == "unrolled"]
    assert any("a tensor decides which variant" in text and "both have been seen" in text for text in merged)


def logged(words, log):
    def encode(node):
        log.append(node.word)
        h = words[node.word] * 1.0
        for child in node.children:
            h = h + encode(child)
        log.append(h)
        node.state = h
        return h * 1.0

    return encode


def test_writes_are_noted_in_the_order_in_which_calls_are_made(words):
    log = []
    trees = [Node(0, *(Node(1) for _ in range(n))) for n in (0, 1, 2)]
    learnt = Learnt(logged(words, log), *trees)
    tree = Node(0, Node(1, Node(2)), Node(3))
    forest = learnt.walk(tree)
    writes = learnt.call_group.assembled.writes
    lists = [value for number, target, value in forest.writes if target is log and writes[number].ref is None]
    assert lists == [0, 1, 2, 3]
    inner = tree.children[0]
    objects = [target for _, target, _ in forest.writes if target is not log]
    wanted = [node.__dict__ for node in (inner.children[0], inner, tree.children[1], tree)]
    assert all(one is other for one, other in zip(objects, wanted, strict=True))
    log.clear()
    learnt.step(tree)
    before, eager = list(log), []
    twin = Node(0, Node(1, Node(2)), Node(3))
    logged(words, eager)(twin)
    assert len(before) == len(eager)
    assert all(torch.allclose(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(before, eager, strict=True))
    assert tree.state is before[-1]
    assert learnt.step.statistics().speculated

"""Variants assembled into cells and buffers: which values share a buffer, and what cannot be assembled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.graph.recursion.learnt import Learnt, Node, sums_of
from torchjanus.core.errors import Place, Refused
from torchjanus.graph.recursion.cells import buffers
from torchjanus.graph.recursion.cells.buffers import AssembledRecursion, UnequalTerms, assemble
from torchjanus.graph.recursion.variants.plan import Buffer, Reduction

WORDS, W = torch.randn(5, 3), torch.randn(3, 3)
CPU = torch.device("cpu")


def encode(node: Any) -> torch.Tensor:
    if not node.children:
        return WORDS[node.word] * 1.0
    return torch.tanh(encode(node.children[0]) @ W + WORDS[node.word])


@pytest.fixture(scope="module")
def chain() -> Learnt:
    return Learnt(encode, Node(0), Node(1, Node(2)), Node(1, Node(2, Node(3))))


def tokens(learnt: Learnt) -> dict[Any, torch.Tensor]:
    return {path.token: W for variant in learnt.variants for part in variant.parts for _, path in part.shared}


def made(learnt: Learnt, **options: Any) -> AssembledRecursion:
    variant = learnt.variants[0]
    return assemble(learnt.variants, tokens(learnt), (), (("result", variant.callee, variant.made, 0),), **options)


def test_equal_segments_are_one_cell(chain: Learnt) -> None:
    assembled = made(chain)
    assert len(assembled.cell_of) == sum(len(variant.parts) for variant in chain.variants)
    assert set(assembled.cell_of.values()) == set(range(len(assembled.recursion.cells)))
    assert len(assembled.examples) == len(assembled.recursion.cells) == 2
    assert [part.form for _, part in assembled.examples] == list(assembled.forms)


def test_a_cell_computes_what_one_call_computes(chain: Learnt) -> None:
    assembled = made(chain)
    leaf = next(cell for cell in assembled.recursion.cells if not cell.takes)
    inner = next(cell for cell in assembled.recursion.cells if cell.takes)
    (below,) = leaf.function([W], [WORDS[2]])  # the host picks the rows of words
    assert torch.equal(below, WORDS[2])
    (above,) = inner.function([W], [below, WORDS[1]])
    assert torch.equal(above, torch.tanh(WORDS[2] @ W + WORDS[1]))


def test_results_and_what_waits_for_them_share_a_buffer(chain: Learnt) -> None:
    recursion = made(chain).recursion
    inner = next(cell for cell in recursion.cells if cell.takes)
    assert inner.takes == inner.gives == recursion.results
    assert [(one.shape, one.dtype, one.differentiable) for one in recursion.buffers] == [((3,), torch.float32, False)]


def test_shared_tensors_that_the_step_does_not_hold_are_refused(chain: Learnt) -> None:
    with pytest.raises(Refused, match="the step does not hold") as error:
        assemble(chain.variants, {}, (), ())
    assert error.value.refusal.reason == "recursion-unseen"


def test_too_many_cells_are_refused(chain: Learnt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MAX_CELLS", 1)
    with pytest.raises(Refused, match="2 bodies") as error:
        made(chain)
    assert error.value.refusal.reason == "recursion-too-many-variants"


def test_a_recursion_without_an_end_is_refused(chain: Learnt) -> None:
    inner = chain.variant(1)
    with pytest.raises(Refused, match="no end that was seen"):
        assemble([inner], tokens(chain), (), (("result", inner.callee, inner.made, 0),))


def test_gradients_flow_where_the_shared_tensor_has_them() -> None:
    words = torch.randn(5, 3, requires_grad=True)
    learnt = Learnt(sums_of(words), *(Node(0, *(Node(1) for _ in range(n))) for n in (0, 1, 2)))
    shared = {path.token: words for one in learnt.variants for part in one.parts for _, path in part.shared}
    variant = learnt.variants[0]
    roots = (("result", variant.callee, variant.made, 0),)
    recursion = assemble(learnt.variants, shared, (), roots, reached=frozenset(shared)).recursion
    assert all(one.differentiable for one in recursion.buffers)


def test_rows_of_one_buffer_are_of_one_size() -> None:
    known: dict[int, Buffer] = {}
    assert buffers._settle(known, 0, torch.ones(3), None)
    assert not buffers._settle(known, 0, torch.zeros(3), None)
    assert buffers._settle(known, 0, torch.ones(3, requires_grad=True), None) and known[0].differentiable
    with pytest.raises(Refused, match=r"\[3\] and \[2\]") as error:
        buffers._settle(known, 0, torch.ones(2), None)
    assert error.value.refusal.reason == "recursion-sizes"


def test_terms_of_a_sum_are_alike() -> None:
    place, total = Place("step.py", 4), Reduction("sum", 0, 1, 2, True)
    row = Buffer((3,), torch.float32, CPU, True)
    known = {0: row}
    assert not buffers._added_up(known, total, place)  # the terms are not known yet
    known[1] = replace(row, differentiable=False)
    assert buffers._added_up(known, total, place) and known[2] == row
    for other in (replace(row, shape=(2,)), replace(row, dtype=torch.int64)):
        with pytest.raises(UnequalTerms):
            buffers._added_up({0: other, 1: row}, total, place)
    with pytest.raises(UnequalTerms):  # a sum of integers may be of a wider type
        buffers._added_up({1: replace(row, dtype=torch.int64)}, replace(total, start=None), place)


def test_joined_keys_are_one_class() -> None:
    classes = buffers._UnionFind()
    classes.join("a", "b")
    classes.join("b", "c")
    assert len({classes.of(key) for key in "abc"}) == 1 and classes.of("d") == "d"
    assert set(classes.members()) == set("abcd")

"""The benchmark of recursive networks: what is batched by hand equals eager, and the figures are what they say."""

from __future__ import annotations

import pytest
import torch

from benchmarks.programs.batched_trees import BATCHED
from benchmarks.programs.trees import MODELS, Node, Tree, batches, chain, make_step
from benchmarks.speed import trees


@pytest.mark.parametrize("model", MODELS)
def test_batched_by_hand_equals_eager(model: str) -> None:
    torch.manual_seed(0)
    plain, batched = MODELS[model](16), BATCHED[model](16)
    batched.load_state_dict(plain.state_dict())
    one, other = make_step(plain), make_step(batched)
    for given, labels in batches(model, 6, seed=0, trees=5):
        loss, same = one(given, labels), other(given, labels)
        assert abs(loss - same) <= 1e-5 * loss
    for name, value in plain.named_parameters():
        assert torch.allclose(value, batched.get_parameter(name), rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("model", MODELS)
def test_batched_by_hand_of_trees_of_one_node(model: str) -> None:
    plain, batched = MODELS[model](8), BATCHED[model](8)
    batched.load_state_dict(plain.state_dict())
    leaf = Node(3) if model == "childsum" else Tree(3)
    for given in ([leaf], [leaf, chain(model, 9, 0), leaf]):
        assert torch.allclose(plain(given), batched(given), atol=1e-6)


def test_batches_are_ever_new_and_repeat_themselves() -> None:
    first, again, other = batches("treelstm", 2, 0), batches("treelstm", 2, 0), batches("treelstm", 2, 1)
    assert torch.equal(first[0][1], again[0][1])
    assert not torch.equal(first[0][1], other[0][1])
    assert len(first[0][0]) == 25


def test_operations_are_those_of_the_products() -> None:
    """A node of a TreeRNN is one product of a vector and a matrix: 2 operations an element, thrice with backward."""
    width, chains = 8, [([chain("treernn", 10, 0)], torch.tensor([1]))]
    assert trees.operations("treernn", width, chains) == 3 * 2 * (10 * 2 * width * width + width * 5)


def test_a_small_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "batches", lambda model, count, seed: batches(model, count, seed, trees=1))
    monkeypatch.setattr(trees, "BLOCK", 2)
    rows = {row.contender: row for row in trees.measure("treernn", 8, 4, warm=4, executor="replay")}
    assert set(rows) == {"floor", "eager", "batched by hand", "torchjanus"}
    assert rows["eager"].times_eager == 1.0
    assert rows["eager"].difference == 0.0
    assert rows["torchjanus"].difference <= 1e-5
    assert rows["batched by hand"].difference <= 1e-5
    found = trees.verdicts(list(rows.values()))
    assert any("batched by hand" in verdict["what"] for verdict in found)

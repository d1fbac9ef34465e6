"""Iterations that train: what they begin with, what they leave, and what is refused."""

from __future__ import annotations

import pytest
import torch

from torchjanus.core.errors import Refused
from torchjanus.graph.loops.roll import training_calls


def test_the_first_gradient_is_added_to_what_changes_nothing() -> None:
    start = training_calls.gradient_before(torch.ones(3, requires_grad=True))
    given = torch.tensor([-0.0, 0.0, 2.0])
    assert torch.equal(torch.signbit(start + given), torch.signbit(given))


def test_a_iteration_has_a_tensor_of_its_own() -> None:
    value = torch.ones(2)
    own = training_calls.enter(value, True)
    own.data.add_(1)
    assert own.is_leaf
    assert torch.equal(value, torch.ones(2))


def test_an_added_gradient_stays_the_tensor_that_it_was() -> None:
    leaf = torch.ones(2, requires_grad=True)
    before = leaf.grad = torch.zeros(2)
    training_calls.put_gradient(leaf, torch.full((2,), 3.0), True)
    assert leaf.grad is before
    assert before.tolist() == [3.0, 3.0]
    training_calls.put_gradient(leaf, torch.full((2,), 4.0), False)
    assert leaf.grad is not before


def test_a_parameter_without_a_gradient_is_refused() -> None:
    own = training_calls.enter(torch.ones(2), True)
    with pytest.raises(Refused, match="gives no gradient"):
        training_calls.leave_gradient(own)
    entered = training_calls.enter_gradient(own, torch.zeros(2))
    with pytest.raises(Refused, match="gives no gradient"):
        training_calls.leave_gradient(own, entered)
    (own * 2).sum().backward()
    assert training_calls.leave_gradient(own, entered).tolist() == [2.0, 2.0]


def test_backward_graphs_do_not_cross() -> None:
    made = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(Refused, match="backward graph"):
        training_calls.values_of(made, True)
    with pytest.raises(Refused, match="backward graph"):
        training_calls.without_graph(made)
    leaf = torch.ones(2, requires_grad=True)
    leaf.grad = torch.ones(2)
    with pytest.raises(Refused, match="other iterations do not begin with"):
        training_calls.none_before(leaf)

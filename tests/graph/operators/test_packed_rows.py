"""Rows taken and put back, against ATen's own operations."""

import torch

from torchjanus.graph.operators.packed_rows import placed, taken

PLACES = torch.tensor([4, 0, 3])


def test_rows_that_are_taken() -> None:
    rows = torch.randn(6, 2, requires_grad=True)
    met, expected = taken(rows, PLACES), rows.index_select(0, PLACES)
    assert torch.equal(met, expected)
    (one,), (other,) = (torch.autograd.grad(made.pow(2).sum(), rows) for made in (met, expected))
    assert torch.equal(one, other)


def test_rows_that_are_put_back() -> None:
    rows, data = torch.full((6, 2), -1.0), torch.randn(3, 2, requires_grad=True)
    met, expected = placed(rows, PLACES, data), rows.index_copy(0, PLACES, data)
    assert torch.equal(met, expected)
    (one,), (other,) = (torch.autograd.grad(made.pow(2).sum(), data) for made in (met, expected))
    assert torch.equal(one, other)
    assert torch.equal(rows, torch.full((6, 2), -1.0))

"""Recurrent layers on batches and sequences of unknown length; parts of tensors of unknown length."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchjanus
from tests.semantics.staged.checking import agree
from torchjanus import Rep

torch.manual_seed(0)
LAYERS = {
    "LSTM": nn.LSTM(3, 4),
    "GRU of two layers, both ways": nn.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True),
    "RNN": nn.RNN(3, 4),
    "RNN of relu": nn.RNN(3, 4, nonlinearity="relu"),
}
SIZES = {"any length": ("T", 2, 3), "any batch": (4, "B", 3), "both": ("T", "B", 3)}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("layer", LAYERS)
def test_recurrent_layers(layer, sizes):
    module = LAYERS[layer]

    def f(x, n):
        y, state = module(x)
        while n > 0 and y.abs().max() > 0.1:
            y, n = y * 0.5, n - 1
        return y, state, n

    def of(number):
        return torch.randn(*(one if isinstance(one, int) else number for one in SIZES[sizes]))

    inputs = [(of(number), n) for number in (1, 2, 3, 7, 12) for n in (0, 3)]
    agree(f, (Rep(torch.float32, SIZES[sizes]), Rep(int)), *inputs)


def test_chunks_along_a_known_size():
    def f(x, n):
        first, second = x.chunk(2, 1)
        return first * n + second

    inputs = [(torch.randn(size, 4), n) for size in (1, 2, 5, 7) for n in (0, 1, 3)]
    agree(f, (Rep(torch.float32, ("T", 4)), Rep(int)), *inputs)


@pytest.mark.parametrize("of", ["chunk", "split"])
def test_how_many_parts_there_are_is_a_size(of):
    def f(x):
        return [part.sum() for part in getattr(x, of)(2)]

    with pytest.raises(torchjanus.NotStaged) as caught:
        torchjanus.staged(f)(Rep(torch.float32, ("T", 4)))
    refusal = caught.value.refusal
    assert refusal.reason == "staged-shape"
    assert refusal.place.line == f.__code__.co_firstlineno + 1
    assert "Give the sizes" in refusal.remedy


def test_elements_at_tensors_of_one_number():
    def f(x, n):
        i, j = x.sum(1).argmax(), x.sum(0).argmin()
        y = x.clone()
        y[i, j] += n
        y[i] = y[i] * 2
        return y, x[i, j], x[..., j], x[i, 1:], x[[i, i]], x[j - 3, i]

    inputs = [(torch.randn(size, 3), n) for size in (3, 4, 5, 7) for n in (0, 1, 3)]
    for x, _ in inputs:
        x[2] += 10  # of the rows, the one whose number is one of a column, too
    agree(f, (Rep(torch.float32, ("N", 3)), Rep(int)), *inputs)

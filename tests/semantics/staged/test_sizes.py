"""Operators on tensors of which a size is not known, also those of which fake tensors do not tell the result."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import torchjanus
from tests.semantics.staged.checking import agree
from torchjanus import Rep
from torchjanus.semantics.staged.unknown.sampling import sampled

GRU, LSTM, NORM = nn.GRUCell(3, 4), nn.LSTMCell(3, 4), nn.BatchNorm1d(3, track_running_stats=False)
KNOWN = (Rep(torch.float32, ("N", 3)),)
_DRAWN = torch.Generator().manual_seed(0)
INPUTS = [(torch.randn(n, 3, generator=_DRAWN),) for n in (2, 1, 3, 5, 30)]

OPERATORS = {
    "gru_cell": lambda x: GRU(x, x.new_zeros(x.shape[0], 4)),
    "lstm_cell": lambda x: LSTM(x),
    "batch_norm": lambda x: NORM(x) if x.shape[0] > 1 else x,
    "cdist": lambda x: torch.cdist(x, torch.ones(2, 3)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "pad": lambda x: F.pad(x, (1, 1)),
    "pad of the size that is not known": lambda x: F.pad(x, (0, 0, 2, 1)),
    "roll": lambda x: x.roll(1, 0),
    "max_pool": lambda x: F.max_pool1d(torch.cat([x, x]).t()[None], 2),
    "conv": lambda x: torch.conv1d(torch.cat([x, x])[None].transpose(1, 2), torch.ones(2, 3, 2)),
    "half": lambda x: x[: x.shape[0] // 2] + x[: x.shape[0] // 2].flip(0),
    "pairs": lambda x: (x.unsqueeze(1) - x.unsqueeze(0)).norm(dim=-1),
    "size of what was sampled": lambda x: F.pad(x, (0, 0, 2, 1)).shape[0] + F.pad(x, (1, 0)).shape[1],
    "sizes compared": lambda x: x * 2 if x.shape == (3, 3) else x if x.size() != (5, 3) else -x,
    "written": lambda x: F.dropout(F.relu(x, inplace=False), 0.0),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_agrees_for_all_sizes(name):
    agree(OPERATORS[name], KNOWN, *INPUTS)


def test_running_statistics_are_written():
    norms = [nn.BatchNorm1d(3) for _ in range(2)]
    graph = torchjanus.staged(norms[0])(*KNOWN)
    assert norms[0].num_batches_tracked == 0
    for (x,) in INPUTS:
        if len(x) > 1:
            torch.testing.assert_close(graph(x), norms[1](x), rtol=0, atol=0)
    torch.testing.assert_close(norms[0].state_dict(), norms[1].state_dict(), rtol=0, atol=0)


def test_how_many_results_there_are_has_to_be_known():
    with pytest.raises(torchjanus.NotStaged) as refused:
        torchjanus.staged(lambda x: x.chunk(2))(*KNOWN)
    assert refused.value.refusal.reason == "staged-shape"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules(kind):
    module = kind(3, 4, num_layers=2, bidirectional=True)
    agree(lambda x: module(x), (torch.ones(2, 5, 3),), (torch.randn(2, 5, 3, generator=_DRAWN),))


@pytest.mark.parametrize(("copied", "sizes"), [(True, [1, 2, 3]), (False, [1])])
def test_an_operator_whose_results_differ_in_number_is_not_called_for_large_sizes(copied, sizes):
    """Nor is one that returns views."""
    asked = []

    def parts(x):
        asked.append(x.shape[0])
        return [part.clone() if copied else part for part in x.split(2)]

    mode = FakeTensorMode(shape_env=ShapeEnv())
    dynamic = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    given = mode.from_tensor(torch.zeros(6, 4), symbolic_context=dynamic)
    assert sampled(parts, (given,), {}, lambda: None) is None
    assert asked == sizes

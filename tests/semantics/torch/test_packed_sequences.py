"""What the host finds out of lengths, and what a step with packed sequences becomes."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torchjanus
from torchjanus.semantics.torch import packed_sequences

LENGTHS = torch.tensor([4, 2, 2, 1])
COUNTS = torch.tensor([4, 3, 1, 1])


def test_the_host_finds_what_torch_finds() -> None:
    assert torch.equal(packed_sequences._counts_checked(LENGTHS), COUNTS)
    assert torch.equal(packed_sequences._counts(LENGTHS[[2, 0, 3, 1]]), COUNTS)
    assert torch.equal(packed_sequences._lengths(COUNTS), LENGTHS)
    batch = torch.randn(4, 4, 3)  # steps first
    data, _ = torch._VF._pack_padded_sequence(batch, LENGTHS, False)
    assert torch.equal(batch.flatten(0, 1)[packed_sequences._places(COUNTS)], data)


@pytest.mark.parametrize("lengths", [[1, 2], [2, 0], []])
def test_lengths_are_refused_as_torch_does(lengths: list[int]) -> None:
    with pytest.raises(RuntimeError):
        packed_sequences._counts_checked(torch.tensor(lengths, dtype=torch.int64))


@pytest.mark.parametrize("executor", ["replay", pytest.param("inductor", marks=pytest.mark.slow)])
def test_one_graph_for_all_lengths(executor: str) -> None:
    torch.manual_seed(0)
    layer, out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1)
    sgd = torch.optim.SGD([*layer.parameters(), *out.parameters()], lr=0.1)

    def step(x: torch.Tensor, lengths: torch.Tensor) -> float:
        sgd.zero_grad()
        made, _ = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        loss = out(pad_packed_sequence(made, batch_first=True)[0]).pow(2).mean()
        loss.backward()
        sgd.step()
        return loss.item()

    def batch(*lengths: int) -> Any:
        return torch.randn(len(lengths), max(lengths), 3), torch.tensor(lengths)

    fast = torchjanus.speculate(step, executor=executor, verify=1)
    for lengths in ((2, 5, 1), (4, 4, 3), (1, 6, 2), (7, 1, 1), (2, 3, 3), (5, 8, 2)):
        fast(*batch(*lengths))
        fast.wait()
    counts = fast.statistics()
    assert (counts.compiles, counts.verified, counts.refused) == (1, 3, 0)
    assert not [event for event in fast.events if event.kind in ("verify", "fault")]

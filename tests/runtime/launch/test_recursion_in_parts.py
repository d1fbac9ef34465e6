"""A graph with recursive calls that the host interrupts: every part of it finds the calls laid out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import torchjanus
from benchmarks.programs import trees


def training() -> tuple[torch.nn.Module, Callable[..., Any]]:
    torch.manual_seed(0)
    model = trees.TreeRNN(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(forest: Any, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(forest), labels)
        loss.backward()
        gradient = model.inner.weight.grad
        gradient.copy_(torch.from_numpy(gradient.numpy() * np.float32(2)))  # by the host, in the middle
        optimizer.step()
        return loss.detach()

    return model, step


def test_host_calls_between_recursion_and_update() -> None:
    eager, plain = training()
    net, step = training()
    fast = torchjanus.speculate(step, executor="replay")
    for batch in trees.batches("treernn", 14, 0, trees=3):
        torch.testing.assert_close(fast(*batch), plain(*batch))
        fast.wait()
        torch.testing.assert_close(net.state_dict(), eager.state_dict())
    assert fast.statistics().speculated, torchjanus.explain(fast)
    assert "internal fault" not in str(torchjanus.explain(fast, detail=True))

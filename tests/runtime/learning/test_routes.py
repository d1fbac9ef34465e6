"""Which graphs are in use."""

from __future__ import annotations

import pytest
import torch

from torchjanus import speculate
from torchjanus.runtime.learning import routes


def test_the_graph_used_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_ENTRIES", 3)

    def step(x: torch.Tensor, name: str) -> torch.Tensor:
        return {"a": x + 1, "b": x + 2, "c": x + 3, "d": x + 4}[name]

    fast = speculate(step, executor="replay")
    for name in "aaaabbbbccccaadddd":
        assert torch.equal(fast(torch.zeros(2), name), step(torch.zeros(2), name))
    assert len(fast.entries) <= 3
    assert not fast.given_up
    for name in "abcdabcd":
        assert torch.equal(fast(torch.zeros(2), name), step(torch.zeros(2), name))
    assert len(fast.entries) <= 3

"""A step that does much in plain Python beside its tensor work, as scripts without a loader's workers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["made"]


def made() -> tuple[Callable[..., float], list[tuple[torch.Tensor, torch.Tensor]], Any]:
    """Return the step of a convnet that also counts the words of the next text, its inputs, and what it changes."""
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    words = " ".join(f"word{number % 97}" for number in range(40_000))
    counts: dict[str, int] = {}

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(pictures), labels)
        loss.backward()
        optimizer.step()
        for word in words.split():
            counts[word] = counts.get(word, 0) + len(word) % 3
        return loss.item()

    inputs = [(torch.randn(16, 3, 32, 32), torch.randint(10, (16,))) for _ in range(8)]
    return step, inputs, [net, optimizer, counts]

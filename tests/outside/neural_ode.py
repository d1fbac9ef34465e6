"""A neural ordinary differential equation with a solver of adaptive step size, spelled out in Python: steps are taken
again where the estimated error is too large."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Taken(NamedTuple):
    state: Tensor
    steps: int
    rejected: int


class Field(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))
        self.evaluations = 0

    def forward(self, t: float, y: Tensor) -> Tensor:
        self.evaluations += 1
        return self.net(torch.cat([y, torch.full_like(y[:, :1], t)], 1))


def solved(field: Field, y: Tensor, begin: float, end: float, tolerance: float) -> Taken:
    """Heun's method with Euler's as the estimate."""
    t, h, steps, rejected = begin, (end - begin) / 4, 0, 0
    while t < end - 1e-9:
        h = min(h, end - t)
        k1 = field(t, y)
        k2 = field(t + h, y + h * k1)
        error = (0.5 * h * (k2 - k1)).detach().norm().item() + 1e-12
        if error <= tolerance or h < 1e-3:
            y, t = y + 0.5 * h * (k1 + k2), t + h
            steps += 1
        else:
            rejected += 1
        h = h * min(2.0, max(0.3, 0.9 * (tolerance / error) ** 0.5))
    return Taken(y, steps, rejected)


class Trainer:
    def __init__(self) -> None:
        self.field = Field()
        self.optimizer = torch.optim.Adam(self.field.parameters(), lr=5e-3)
        self.log: list[tuple[int, int]] = []

    def step(self, begin: Tensor, target: Tensor) -> float:
        self.optimizer.zero_grad()
        taken = solved(self.field, begin, 0.0, 1.0, 0.05)
        loss = (taken.state - target).square().mean()
        loss.backward()
        self.optimizer.step()
        self.log.append((taken.steps, taken.rejected))
        return loss.item()


def make() -> Any:
    trainer, calls = Trainer(), []
    for _ in range(40):
        begin = torch.randn(8, 2)
        calls.append((begin, torch.stack([begin[:, 1], -begin[:, 0]], 1)))
    return trainer.step, calls, lambda: (trainer.field, trainer.log, trainer.field.evaluations)

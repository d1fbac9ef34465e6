"""Small programs whose reports are looked at: a training step that changes, one that is refused, one with parts."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch import nn

import torchjanus


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 4, 3)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return self.fc(x.flatten(1))


def train_step(model: Any, optimizer: Any, images: torch.Tensor, labels: torch.Tensor, mode: str) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    if mode == "double":
        loss = loss * 2
    if loss > 1000:  # an outlier
        return loss.detach()
    loss.backward()
    optimizer.step()
    return loss.detach()


def trained(calls: int = 14, **options: Any) -> Any:
    torch.manual_seed(0)
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = torchjanus.speculate(train_step, **{"executor": "replay", **options})
    for number in range(calls):
        optimizer.param_groups[0]["lr"] = 0.1 if number < 6 else 0.1 / number
        size = 8 if number != 8 else 6
        mode = "double" if number >= 10 else "plain"
        step(model, optimizer, torch.randn(size, 1, 8, 8), torch.randint(10, (size,)), mode)
    return step


def looks(x: torch.Tensor) -> torch.Tensor:
    y = x * len(locals())
    return y * 2


def refused(calls: int = 8) -> Any:
    step = torchjanus.speculate(looks, executor="replay")
    for _ in range(calls):
        step(torch.ones(3))
    return step


class Forbidden:
    """Something that no graph reads: it tells when it is gone."""


def gone() -> int:
    return 0 if weakref.ref(Forbidden())() is None else 1


def many(x: torch.Tensor) -> torch.Tensor:
    return x.exp() - (1 + x * x).log() + x.sin() * x.cos() + x * 3


def in_parts(x: torch.Tensor) -> torch.Tensor:
    y = many(x)
    z = y * (1 + gone())
    return many(z).sum()


def parted(calls: int = 20) -> Any:
    step = torchjanus.speculate(in_parts, executor="replay")
    for _ in range(calls):
        step(torch.ones(64))
    return step


def uncalled() -> Any:
    return torchjanus.speculate(many)


PROGRAMS = (trained, refused, parted, uncalled)


@functools.cache
def steps() -> dict[str, Any]:
    """The step of each program, after its calls: made once, since the graphs of ``trained`` take seconds."""
    return {make.__name__: make() for make in PROGRAMS}

"""What a call costs beside its arithmetic: finding that all assumptions hold, launching, committing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import torchjanus
from benchmarks.speed import interleaved

__all__ = ["MODULES", "ManyModules", "Overhead", "many_modules"]

MODULES = 300
WARM = 12
BLOCK = 50


@dataclass(frozen=True)
class Overhead:
    """Medians, in microseconds. ``bare``: the same arithmetic, called directly in eager PyTorch."""

    program: str
    contender: str
    call_us: float
    bare_us: float
    beside_us: float


class Block(nn.Module):
    """Two parameters, a flag and no arithmetic: all that its call can cost is looking at it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not (self.weight.requires_grad and self.bias.requires_grad):
            return x + self.bias
        return x


class ManyModules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(MODULES)))

    def forward(self, x: Tensor) -> Tensor:
        return bare(self.blocks(x))


def bare(x: Tensor) -> Tensor:
    """All the arithmetic of ManyModules."""
    return (x * 2.0).sum()


def many_modules(rounds: int, device: str = "cpu") -> list[Overhead]:
    """Calls of a model of 300 submodules whose forward is a multiplication and a sum."""
    torch._dynamo.reset()
    batch = (torch.randn(4, 4, device=device),)
    speculated = torchjanus.speculate(ManyModules().to(device), executor="inductor")
    calls = {
        "bare": bare,
        "eager": ManyModules().to(device),
        "torch.compile": torch.compile(ManyModules().to(device)),
        "torchjanus": speculated,
    }
    for call in calls.values():
        for _ in range(WARM):
            call(*batch)
    speculated.wait()
    times = interleaved(calls, [batch], rounds, device, BLOCK)
    medians = {name: statistics.median(taken) * 1e6 for name, taken in times.items()}
    floor = medians["bare"]
    return [
        Overhead(f"{MODULES} submodules", name, median, floor, median - floor)
        for name, median in medians.items()
        if name != "bare"
    ]

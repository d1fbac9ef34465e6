"""What a call costs beside its arithmetic: finding that all assumptions hold, launching, committing.

The one measurement that looks behind the public API: it times the executor inside of a call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch
from torch import Tensor, nn

import torchjanus
from benchmarks.programs.steps import Batch, make
from benchmarks.speed.timing import interleaved, seconds
from torchjanus.runtime import Speculated

__all__ = ["MODULES", "ManyModules", "Overhead", "many_modules", "whole_step"]

MODULES = 300
WARM = 12
BLOCK = 50


@dataclass(frozen=True)
class Overhead:
    """Medians, in microseconds. ``bare``: the arithmetic alone; ``beside``: what the call costs on top of it."""

    program: str
    contender: str
    call_us: float
    bare_us: float
    beside_us: float

    @property
    def share(self) -> float:
        return self.beside_us / self.call_us


class Block(nn.Module):
    """Two parameters, a flag and no arithmetic: all that its call can cost is looking at it."""

    def __init__(self, looking: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.bias = nn.Parameter(torch.zeros(4))
        self.looking = looking

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.looking and not (self.weight.requires_grad and self.bias.requires_grad):
            return x + self.bias
        return x


class ManyModules(nn.Module):
    """``looking``: whether each submodule also asks its two parameters whether they require grad."""

    def __init__(self, looking: bool = True) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(looking) for _ in range(MODULES)))

    def forward(self, x: Tensor) -> Tensor:
        return bare(self.blocks(x))


def bare(x: Tensor) -> Tensor:
    """All the arithmetic of ManyModules."""
    return (x * 2.0).sum()


def many_modules(repetitions: int, device: str = "cpu") -> list[Overhead]:
    """300 submodules of which nothing but their flag is asked, and 300 whose parameters are looked at, too."""
    return [row for looking in (False, True) for row in _many_modules(repetitions, device, looking)]


def _many_modules(repetitions: int, device: str, looking: bool) -> list[Overhead]:
    """Calls of a model of 300 submodules whose forward is a multiplication and a sum; that, in eager, is ``bare``."""
    torch._dynamo.reset()
    batch = (torch.randn(4, 4, device=device),)
    speculated = torchjanus.speculate(ManyModules(looking).to(device), executor="inductor")
    calls = {
        "bare": bare,
        "eager": ManyModules(looking).to(device),
        "torch.compile": torch.compile(ManyModules(looking).to(device)),
        "torchjanus": speculated,
    }
    for call in calls.values():
        for _ in range(WARM):
            call(*batch)
    speculated.wait()
    times = interleaved(calls, [batch], repetitions, device, BLOCK)
    program = f"{MODULES} submodules" + (", parameters looked at" if looking else "")
    medians = {name: statistics.median(taken) * 1e6 for name, taken in times.items()}
    floor = medians["bare"]
    return [
        Overhead(program, name, median, floor, median - floor) for name, median in medians.items() if name != "bare"
    ]


def whole_step(program: str, optimizer: str, repetitions: int, device: str = "cpu") -> Overhead:
    """A training step's call against the time in its executor, which is ``bare``; both of the same calls."""
    job = make(program, optimizer, device=device)
    step = torchjanus.speculate(job.step, executor="inductor")
    for batch in job.batches[:WARM]:
        step(*batch)
        step.wait()
    calls, runs = executor_times(step, job.batches, repetitions * BLOCK, device)
    call, bare_time = (statistics.median(times) * 1e6 for times in (calls, runs))
    beside = statistics.median(c - r for c, r in zip(calls, runs, strict=True)) * 1e6
    return Overhead(f"{program} {optimizer}", "torchjanus", call, bare_time, beside)


def executor_times(
    step: Speculated[..., Tensor], batches: list[Batch], count: int, device: str
) -> tuple[list[float], list[float]]:
    """Seconds of ``count`` calls, and of the executor's run inside of each. Timing it costs each call some 0.2 us."""
    (entry,) = step.entries
    run = entry.launch.names["run"]
    runs: list[float] = []

    def timed(inputs: Sequence[Tensor], slots: Sequence[float | int]) -> object:
        begin = time.perf_counter()
        values = run(inputs, slots)
        runs.append(time.perf_counter() - begin)
        return values

    entry.launch.use(timed)
    calls = [seconds(step, batch, device) for batch in islice(cycle(batches), count)]
    entry.launch.use(run)
    if len(runs) != count:
        raise RuntimeError(f"only {len(runs)} of {count} calls ran the graph: the rest missed or were imperative")
    return calls, runs

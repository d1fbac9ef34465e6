"""Time whole training steps: contenders take turns in short blocks, so that the machine's moods fall on all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice

import torch

import torchjanus
from benchmarks.programs.steps import Batch, make

__all__ = ["Timing", "interleaved", "race"]

WARM = 12  # calls before timing: watched runs, compilation, the first calls of what was compiled
BLOCK = 10


@dataclass(frozen=True)
class Timing:
    """One contender's step times over all blocks, in milliseconds, and what its warm-up cost beyond eager's."""

    program: str
    optimizer: str
    dropout: float
    contender: str
    median_ms: float
    low_ms: float  # quartiles
    high_ms: float
    times_eager: float
    compile_s: float
    steps: int


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def seconds(step: Callable[..., object], batch: Batch, device: str) -> float:
    synchronize(device)
    begin = time.perf_counter()
    step(*batch)
    synchronize(device)
    return time.perf_counter() - begin


def interleaved(
    steps: dict[str, Callable[..., object]], batches: list[Batch], repetitions: int, device: str, block: int = BLOCK
) -> dict[str, list[float]]:
    """Seconds of every step; in each repetition every contender runs one block on the same batches."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    supply = cycle(batches)
    for turn in range(repetitions):
        chosen = list(islice(supply, block))
        # The order rotates: whoever runs after a heavy neighbour finds its caches cold.
        names = list(steps)
        names = names[turn % len(names) :] + names[: turn % len(names)]
        for name in names:
            times[name] += [seconds(steps[name], batch, device) for batch in chosen]
    return times


@dataclass(frozen=True)
class Contender:
    """A way to run a step; ``settle`` returns when nothing that a call set going is pending."""

    step: Callable[..., object]
    settle: Callable[[], object] = lambda: None


def contenders(program: str, optimizer: str, dropout: float, device: str) -> dict[str, Contender]:
    """Each with a model and an optimizer of its own."""
    torch._dynamo.reset()

    def step() -> Callable[..., object]:
        return make(program, optimizer, 0, dropout, device).step

    speculated = torchjanus.speculate(step(), executor="inductor")
    return {
        "eager": Contender(step()),
        "torch.compile": Contender(torch.compile(step())),
        "torchjanus": Contender(speculated, speculated.wait),
    }


def race(program: str, optimizer: str, dropout: float, repetitions: int, device: str = "cpu") -> list[Timing]:
    batches = make(program, optimizer, 0, dropout, device).batches
    entrants = contenders(program, optimizer, dropout, device)
    warm: dict[str, float] = {}
    for name, entrant in entrants.items():
        begin = time.perf_counter()
        for batch in batches[:WARM]:
            entrant.step(*batch)
            entrant.settle()
        warm[name] = time.perf_counter() - begin
    times = interleaved({name: entrant.step for name, entrant in entrants.items()}, batches, repetitions, device)
    reference = statistics.median(times["eager"])
    rows = []
    for name, taken in times.items():
        low, median, high = statistics.quantiles(taken, n=4)
        rows.append(
            Timing(
                program,
                optimizer,
                dropout,
                name,
                median * 1e3,
                low * 1e3,
                high * 1e3,
                reference / median,
                max(warm[name] - warm["eager"], 0.0),
                len(taken),
            )
        )
    return rows

"""Call one step many thousand times while its state changes now and then: memory must stay flat, results eager's.

    python -m benchmarks.robustness.soak [--calls 20000] [--record]

Takes some minutes.

The step trains a small network, keeps a bounded list of losses, and reads a learning rate and a flag that are changed
now and then; partial batches come now and then (a miss), and so do values that an assertion does not expect (a
violation). Beside it the same runs eagerly, and each loss is compared bit by bit.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import nn
from tqdm import tqdm

import torchjanus
from benchmarks.record import write

__all__ = ["Outcome", "Periods", "Training", "soak"]

KEPT = 5


@dataclass(frozen=True)
class Periods:
    """After how many calls something changes."""

    partial: int = 211
    rate: int = 503
    flag: int = 997
    large: int = 1499

    @classmethod
    def of(cls, calls: int) -> Periods:
        """In a shorter run all comes sooner, so that everything has been met before the first window."""
        share = min(1.0, calls / 20_000)
        return cls(*(max(2, round(share * period)) for period in (cls.partial, cls.rate, cls.flag, cls.large)))


class Training:
    """A network, its optimizer, and what a training loop keeps beside them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.losses: list[float] = []
        self.calls = 0
        self.smooth = False
        self.clipped = 0

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.optimizer.zero_grad()
        out = self.model(x)
        loss = nn.functional.smooth_l1_loss(out, y) if self.smooth else nn.functional.mse_loss(out, y)
        loss.backward()
        if x.abs().max() > 50.0:
            self.clipped += 1
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        if len(self.losses) > KEPT:
            self.losses.pop(0)
        return loss.detach()

    def before(self, call: int, periods: Periods) -> None:
        """What changes between calls."""
        if call % periods.rate == 0:
            self.optimizer.param_groups[0]["lr"] = 0.01 / (1 + call / 5000)
        if call % periods.flag == 0:
            self.smooth = not self.smooth


def batch(call: int, periods: Periods, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    rows = 5 if call % periods.partial == 0 else 16
    x = torch.randn(rows, 8, generator=generator)
    if call % periods.large == periods.large - 1:
        x[0, 0] = 100.0
    return x, x.mean(1, keepdim=True)


def resident() -> float:
    """The memory of this interpreter, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def live_tensors() -> int:
    gc.collect()
    with warnings.catch_warnings():
        # Some lazy objects of torch's warn when they are asked for their class.
        warnings.simplefilter("ignore")
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


@dataclass(frozen=True)
class Outcome:
    """Medians over two windows, the second and the last fifth of the calls; memory in MiB. ``objects`` are all that
    the garbage collector knows."""

    calls: int
    unequal: int
    resident: tuple[float, float]
    tensors: tuple[float, float]
    objects: tuple[float, float]
    events: int
    statistics: dict[str, int]
    seconds: float

    def lines(self) -> list[str]:
        """The outcome for people."""
        counts = self.statistics
        ways = ("speculated", "watched", "imperative", "missed", "violated", "refused", "compiles", "entries")
        return [
            f"{self.calls} calls in {self.seconds} s, {self.unequal} unequal, {self.events} events kept",
            ", ".join(f"{counts[way]} {way}" for way in ways),
            "from the second fifth of the calls to the last:",
            f"  resident memory {self.resident[0]:.1f} -> {self.resident[1]:.1f} MiB",
            f"  live tensors {self.tensors[0]:.0f} -> {self.tensors[1]:.0f}",
            f"  all objects {self.objects[0]:.0f} -> {self.objects[1]:.0f}",
            "; ".join(self.faults()) or "as it should be",
        ]

    def faults(self, mebibytes: float = 2.0) -> list[str]:
        """What is not as it should be."""
        found = []
        if self.unequal:
            found.append(f"{self.unequal} losses are not eager's")
        if self.tensors[1] > self.tensors[0]:
            found.append(f"live tensors grew from {self.tensors[0]} to {self.tensors[1]}")
        if self.resident[1] - self.resident[0] > mebibytes:
            found.append(f"memory grew from {self.resident[0]:.1f} to {self.resident[1]:.1f} MiB")
        if self.objects[1] - self.objects[0] > 200:
            found.append(f"objects grew from {self.objects[0]} to {self.objects[1]}")
        return found


def soak(
    calls: int,
    speculate: Callable[[Any], Any] = lambda fn: torchjanus.speculate(fn, executor="replay"),
    samples: int = 100,
    progress: Callable[[], object] = lambda: None,
) -> Outcome:
    """Make the calls, looking at memory ``samples`` times."""
    eager, other = Training(), Training()
    step = speculate(other.step)
    periods = Periods.of(calls)
    generator = torch.Generator().manual_seed(1)
    every = max(1, calls // samples)
    seen: list[tuple[float, int, int]] = []
    unequal = 0
    began = time.perf_counter()
    for call in range(calls):
        x, y = batch(call, periods, generator)
        for side in (eager, other):
            side.before(call, periods)
        torch.manual_seed(call)
        expected = eager.step(x, y)
        torch.manual_seed(call)
        unequal += not torch.equal(expected, step(x, y))
        if call % every == every - 1:
            tensors = live_tensors()
            seen.append((resident(), tensors, len(gc.get_objects())))
        progress()
    unequal += eager.losses != other.losses
    unequal += sum(
        not torch.equal(a, b) for a, b in zip(eager.model.parameters(), other.model.parameters(), strict=True)
    )
    fifth = len(seen) // 5
    windows = seen[fifth : 2 * fifth], seen[-fifth:]
    first, last = ([float(median(column)) for column in zip(*window, strict=True)] for window in windows)
    counts = {key: int(value) for key, value in asdict(step.statistics()).items()}
    pairs = list(zip(first, last, strict=True))
    return Outcome(calls, unequal, *pairs, len(step.events), counts, round(time.perf_counter() - began, 1))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness.soak", description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("torchjanus").setLevel(logging.CRITICAL)
    with tqdm(total=given.calls, unit=" calls", dynamic_ncols=True) as bar:
        outcome = soak(given.calls, progress=bar.update)
    content = asdict(outcome) | {"faults": outcome.faults()}
    for line in outcome.lines():
        print(line)
    if given.record:
        print(write("soak", sys.argv[1:], "cpu", content))
    return 1 if content["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Training in which only the forward pass is speculated: loss, backward pass and update are made outside of it.

    python -m benchmarks.speed.forward_only [--record]

Takes ten minutes.

One thread; SGD. A step is the forward pass by the speculated model; Python makes the loss, `backward()` and the update.
Replay runs the graphs by ATen calls; auto also compiles both, tries them, and leaves the calls to Python where that is
faster by measure. Contenders take turns in short blocks. Times are of the processor, so that other work on the machine
disturbs them less; compilers run in other processes and are waited for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.nn.functional as F
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import nn

import torchjanus
from benchmarks.record import write

__all__ = ["MODELS", "Row", "main", "measure"]

BLOCK = 5  # calls of one contender before it is the next one's turn
WARM = 60  # calls before timing: watched runs, trials, races, and the measurement who is faster
CONTENDERS = ("eager", "replay", "auto")


class Last(nn.Module):
    """An LSTM and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Two layers of a transformer, and a linear layer on their mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean(1))  # type: ignore[no-any-return]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (mlp, (32, 64)),
    "convnet": (convnet, (8, 3, 32, 32)),
    "transformer": (Attention, (8, 16, 64)),
    "LSTM": (Last, (16, 20, 32)),
}


@dataclass(frozen=True)
class Row:
    """The median time of a step in milliseconds, as a share of eager's, and who makes the calls in the end."""

    model: str
    contender: str
    step: float
    of_eager: float
    runs: str


def stepping(model: str, contender: str) -> tuple[Callable[[], object], Callable[[], str]]:
    """A training step, and what runs it, in words."""
    torch.manual_seed(0)
    make, shape = MODELS[model]
    module, x, target = make(), torch.randn(shape), torch.randint(10, shape[:1])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    forward = module if contender == "eager" else torchjanus.speculate(module, executor=contender)

    def step() -> torch.Tensor:
        loss = F.cross_entropy(forward(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def runs() -> str:
        if contender == "eager":
            return "Python"
        reported = [event.text for event in forward.events if "by measure" in event.text]
        entry = forward.entries[0]
        names = " and ".join(engine.current for engine in entry.engines)
        return f"Python ({names})" if reported and "Python is faster" in reported[-1] else names

    for _ in range(8):
        step()
    if contender != "eager":
        forward.wait()
    for _ in range(WARM):
        step()
    return step, runs


def measure(model: str, calls: int) -> list[Row]:
    """The contenders on one model, which take turns in blocks of calls."""
    made = {contender: stepping(model, contender) for contender in CONTENDERS}
    times: dict[str, list[float]] = {contender: [] for contender in CONTENDERS}
    for turn in range(-(-calls // BLOCK)):
        first = turn % len(CONTENDERS)
        for contender in (*CONTENDERS[first:], *CONTENDERS[:first]):
            step, _ = made[contender]
            for _ in range(BLOCK):
                before = time.thread_time()
                step()
                times[contender].append(time.thread_time() - before)
    medians = {contender: statistics.median(some) for contender, some in times.items()}
    eager = medians["eager"]
    return [Row(model, name, 1e3 * medians[name], medians[name] / eager, made[name][1]()) for name in CONTENDERS]


def table(rows: list[Row]) -> Table:
    shown = Table(box=SIMPLE)
    for head in ("model", "contender", "step (ms)", "of eager", "runs"):
        shown.add_column(head, justify="right" if head in ("step (ms)", "of eager") else "left")
    for row in rows:
        shown.add_row(row.model, row.contender, f"{row.step:.3f}", f"{row.of_eager:.2f}", row.runs)
    return shown


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200, help="steps that are timed")
    parser.add_argument("--model", choices=MODELS, help="only this model")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    rows = [row for model in MODELS if options.model in (None, model) for row in measure(model, options.calls)]
    Console(width=None if sys.stdout.isatty() else 110).print(table(rows))
    if options.record:
        content = {"rows": [asdict(row) for row in rows]}
        print(write("forward_only", sys.argv[1:] if given is None else given, "cpu", content))
    return 0


if __name__ == "__main__":
    sys.exit(main())

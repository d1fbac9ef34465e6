"""How long it takes to make a graph of a training step that has been watched: processor time for each operation.

    python -m benchmarks.cost.lowering [--only PROGRAM ...] [--rounds N] [--record]

Takes two minutes.

The steps are those of ``benchmarks.programs.steps`` with Adam, whose numbers vary, and a GRU cell and an LSTM cell
stepped twelve times, whose gates are written in place. Each is made anew, watched and lowered several times; the time
is that of the process, which keeps no graph, and the median is shown. The first time does not count: it imports.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

# Before torch is imported: OpenMP reads it once. No graph is kept, so that each is made.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TORCHJANUS_CACHE"] = ""

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import nn

import torchjanus
from benchmarks.programs import steps
from benchmarks.record import write

__all__ = ["Cost", "main"]

LENGTH = 12


@dataclass(frozen=True)
class Cost:
    """One program: operations of its graph, and the milliseconds of making it."""

    program: str
    operations: int
    milliseconds: float

    @property
    def each(self) -> float:
        """Milliseconds for each operation."""
        return self.milliseconds / self.operations


def cells(kind: type[nn.RNNCellBase]) -> Callable[[], Any]:
    """Return a function that makes the step of a recurrent cell."""

    def make() -> Any:
        cell, out = kind(16, 32), nn.Linear(32, 4)
        optimizer = torch.optim.Adam([*cell.parameters(), *out.parameters()], lr=1e-3)
        x, y = torch.randn(LENGTH, 8, 16), torch.randint(4, (8,))

        def step() -> torch.Tensor:
            state: Any = None
            for row in x:
                state = cell(row, state)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(out(state[0] if isinstance(state, tuple) else state), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return make


def of_steps(name: str) -> Callable[[], Any]:
    """Return a function that makes one of the training steps, for one batch."""

    def make() -> Any:
        job = steps.make(name, "adam")
        return lambda: job.step(*job.batches[0])

    return make


PROGRAMS: dict[str, Callable[[], Any]] = {
    **{name: of_steps(name) for name in steps.PROGRAMS},
    "gru_cell": cells(nn.GRUCell),
    "lstm_cell": cells(nn.LSTMCell),
}


def lowered(make: Callable[[], Any]) -> tuple[int, float]:
    """Return the operations of the step's graph, and the milliseconds of the call that makes it, less those of a call
    that is only watched."""
    step: Any = torchjanus.speculate(make(), executor="replay")
    seconds = []
    while not step.entries:
        begun = time.process_time()
        step()
        seconds.append(time.process_time() - begun)
        assert len(seconds) < 10, "no graph is made"
    graph = step.entries[0].lowered.graph.graph
    operations = sum(node.op == "call_function" for node in graph.nodes)
    return operations, 1000 * (seconds[-1] - min(seconds[1:-1]))


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost.lowering", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), metavar="PROGRAM", default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results/lowering.json")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {name: [] for name in options.only}
    counts: dict[str, int] = {}
    for number in range(1 + options.rounds):
        for name in options.only:
            torch.manual_seed(number)
            counts[name], milliseconds = lowered(PROGRAMS[name])
            times[name] += [milliseconds] if number else []
    found = [Cost(name, counts[name], statistics.median(times[name])) for name in options.only]
    table = Table("program", "operations", "ms", "ms each", box=SIMPLE)
    for one in found:
        table.add_row(one.program, str(one.operations), f"{one.milliseconds:,.0f}", f"{one.each:.2f}")
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    if options.record:
        argv = sys.argv[1:] if given is None else given
        print(write("lowering", argv, "cpu", {"programs": [asdict(one) | {"each": one.each} for one in found]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

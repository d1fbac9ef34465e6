"""A hand-written LSTM as one loop node, beside the unrolled graph and eager: time to compile, time of a step.

    python -m benchmarks.speed.loops [--record]

Takes ten minutes.

Batch 20, SGD, one thread. A step is a forward and backward pass and an update. Times are of the processor, not of the
wall, so that other work on the machine disturbs them less; the compiler runs in another process and is waited for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import torchjanus
from benchmarks.record import write
from torchjanus.graph.loops.roll import roll

__all__ = ["Row", "lstm", "main", "measure", "prepared"]

BATCH = 20
BLOCK = 5  # calls of one system before it is the next one's turn
CASES = ((64, 35), (64, 500), (200, 35), (200, 500))
UNROLLED = 35  # steps that are worth unrolling: the graph of 500 takes minutes to compile


@dataclass(frozen=True)
class Row:
    """Seconds to compile (None where nothing is), and the median time of a step in milliseconds."""

    hidden: int
    steps: int
    system: str
    compile: float | None
    step: float


def lstm(hidden: int, steps: int) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """A training step over ``steps`` time steps, and its input."""
    torch.manual_seed(0)
    wx, wh = ((torch.randn(hidden, 4 * hidden) * 0.1).requires_grad_() for _ in range(2))
    b = torch.zeros(4 * hidden, requires_grad=True)
    optimizer = torch.optim.SGD([wx, wh, b], lr=0.01)

    def step(xs: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(BATCH, hidden)
        outs = []
        for x in xs:
            i, f, g, o = (x @ wx + h @ wh + b).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outs.append(h)
        loss = torch.stack(outs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, torch.randn(steps, BATCH, hidden)


def prepared(hidden: int, steps: int, system: str) -> tuple[Callable[[], object], float | None]:
    """One call of a step of one system, and the seconds that compiling it took. Compilations start from an empty
    cache."""
    step, xs = lstm(hidden, steps)
    if system == "eager":
        return lambda: step(xs), None
    worth, roll.WORTH = roll.WORTH, roll.WORTH if system == "loop" else sys.maxsize
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        speculated = torchjanus.speculate(step, executor="inductor")
        for _ in range(2):
            speculated(xs)
        before = time.perf_counter()
        speculated(xs)  # makes the graph, and begins to compile it
        speculated.wait()
        compiling = time.perf_counter() - before
        for _ in range(4):
            speculated(xs)  # trials
    roll.WORTH = worth
    return lambda: speculated(xs), compiling


def measure(hidden: int, steps: int, systems: Sequence[str], calls: int) -> list[Row]:
    """The systems on one case, which take turns in blocks of calls."""
    made = {system: prepared(hidden, steps, system) for system in systems}
    times: dict[str, list[float]] = {system: [] for system in systems}
    for turn in range(-(-calls // BLOCK)):
        first = turn % len(systems)
        for system in (*systems[first:], *systems[:first]):
            step, _ = made[system]
            for _ in range(BLOCK):
                before = time.thread_time()
                step()
                times[system].append(time.thread_time() - before)
    return [Row(hidden, steps, name, made[name][1], 1e3 * statistics.median(times[name])) for name in systems]


def table(rows: list[Row]) -> Table:
    shown = Table(box=SIMPLE)
    for head in ("hidden", "steps", "system", "compile (s)", "step (ms)"):
        shown.add_column(head, justify="left" if head == "system" else "right")
    for row in rows:
        compiling = "-" if row.compile is None else f"{row.compile:.1f}"
        shown.add_row(str(row.hidden), str(row.steps), row.system, compiling, f"{row.step:.2f}")
    return shown


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100, help="steps that are timed, of 35 iterations")
    parser.add_argument("--hidden", type=int, default=0, help="only this size")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    rows = []
    for hidden, steps in CASES:
        if options.hidden in (0, hidden):
            systems = ("eager", "loop", "unrolled") if steps <= UNROLLED else ("eager", "loop")
            rows += measure(hidden, steps, systems, max(BLOCK, options.calls * 35 // steps))
    Console(width=None if sys.stdout.isatty() else 100).print(table(rows))
    if options.record:
        content = {"batch": BATCH, "rows": [asdict(row) for row in rows]}
        print(write("loops", sys.argv[1:] if given is None else given, "cpu", content))
    return 0


if __name__ == "__main__":
    sys.exit(main())

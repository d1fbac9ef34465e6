"""Co-execution: small training programs forced to co-execute, against eager.

    python -m benchmarks.speed.coexecution [NAME ...] [--calls 60]

Takes a minute.

One thread. The programs are those of ``tests/runtime/coexecution``; both sides run call by call in turn, bit by bit
equal, or the benchmark fails. The table has the share of operators that graphs made, the calls that diverged once the
first ones were over, the medians of eager and of co-execution, and the times of skeleton and graph. Graphs run when
Python waits for them (lazy evaluation in Terra's table 2).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch

import torchjanus
from tests.runtime.coexecution.programs import PROGRAMS, Twins

__all__ = ["Row", "main", "measured"]


@dataclass(frozen=True)
class Row:
    """One program. Times in seconds, of one call."""

    name: str
    matched: float
    transitions: int
    eager: float
    coexecuted: float
    skeleton: float
    graph: float


def measured(name: str, calls: int) -> Row:
    """Run a program both ways, and compare."""
    twins = Twins(PROGRAMS[name], lambda step: torchjanus.speculate(step, executor="coexecute"))
    twins.run()
    given = twins.made[0].calls
    times: tuple[list[float], list[float]] = ([], [])
    before = twins.steps[1].coexecution
    for number in range(calls):
        for side, seconds in enumerate(twins.timed(number % len(given))):
            times[side].append(seconds)
    report = twins.steps[1].coexecution
    return Row(
        name,
        report.matched,
        report.transitions - before.transitions,
        statistics.median(times[0]),
        statistics.median(times[1]),
        report.skeleton,
        report.graph,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--calls", type=int, default=60)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begun = time.perf_counter()
    print(
        f"{'program':24}{'matched':>9}{'diverged':>10}{'eager us':>10}{'co us':>8}{'skeleton':>10}{'graph':>8}{'x':>7}"
    )
    for name in options.names or PROGRAMS:
        row = measured(name, options.calls)
        numbers = (row.eager, row.coexecuted, row.skeleton, row.graph)
        eager, both, skeleton, graph = (f"{1e6 * seconds:.0f}" for seconds in numbers)
        ratio = f"{row.eager / row.coexecuted:.2f}"
        print(
            f"{name:24}{row.matched:>9.0%}{row.transitions:>10}{eager:>10}{both:>8}{skeleton:>10}{graph:>8}{ratio:>7}"
        )
    print(f"{time.perf_counter() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Co-execution forced on training programs, against eager: lazy, and with the graph in a thread beside the skeleton.

    python -m benchmarks.speed.coexecution [NAME ...] [--calls 60] [--small] [--papers]

Takes a minute for the small programs, ten for those of Terra's paper.

One thread. Small programs are those of ``tests/runtime/coexecution`` and ``benchmarks/programs/work_beside``; those of
the paper are in ``benchmarks/speed/papers``. The three sides make each call in turn, from equal states. Results,
parameters, buffers, gradients and generators have to be equal bit by bit, or the benchmark fails.

The table has the share of operators that graphs made, the calls that diverged once the first ones were over, medians of
eager's calls and of both kinds of co-executed ones (Terra, table 2), for each kind the times of skeleton and graph
(figure 6), and the shares of calls whose graph ran beside Python, and that were served.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch

import torchjanus
from benchmarks.programs import work_beside
from benchmarks.speed.papers import PROGRAMS as OF_PAPERS
from benchmarks.speed.papers.contender import modules_of
from tests.runtime.coexecution.programs import PROGRAMS, Made, Twins
from torchjanus.core.settings import COEXECUTION

__all__ = ["Kind", "Row", "main", "measured"]

KINDS = ("lazy", "overlapped")
LEARNT = 14  # calls before the measured ones


@dataclass(frozen=True)
class Kind:
    """One kind of evaluation. Times in seconds, of one call; ``beside``: the share of calls whose graph ran beside."""

    call: float
    skeleton: float
    graph: float
    beside: float
    served: float


@dataclass(frozen=True)
class Row:
    """One program. ``eager``: seconds of a call."""

    name: str
    matched: float
    transitions: int
    eager: float
    kinds: dict[str, Kind]


class _Evaluated:
    """A co-executed step under a setting."""

    def __init__(self, step: Callable[..., Any], setting: str) -> None:
        self.step: Any = torchjanus.speculate(step, executor="coexecute")
        self.setting = setting

    def __call__(self, *args: Any) -> Any:
        os.environ[COEXECUTION.name] = self.setting
        return self.step(*args)


def measured(name: str, calls: int) -> Row:
    """Run a program all three ways, and compare."""
    sides = [lambda step, setting=setting: _Evaluated(step, setting) for setting in KINDS]
    make = SMALL[name] if name in SMALL else lambda: _of_paper(name)
    twins = Twins(make, *sides)
    given = twins.made[0].calls
    for number in range(LEARNT):
        twins.call(number % len(given))
    before = [side.step.coexecution for side in twins.steps[1:]]
    times: list[list[float]] = [[], [], []]
    for number in range(calls):
        for side, seconds in enumerate(twins.timed((LEARNT + number) % len(given))):
            times[side].append(seconds)
    after = [side.step.coexecution for side in twins.steps[1:]]
    kinds = {
        kind: Kind(
            statistics.median(times[1 + k]),
            after[k].skeleton,
            after[k].graph,
            after[k].beside / max(after[k].served, 1),
            (after[k].served - before[k].served) / calls,
        )
        for k, kind in enumerate(KINDS)
    }
    matched, transitions = after[0].matched, after[0].transitions - before[0].transitions
    return Row(name, matched, transitions, statistics.median(times[0]), kinds)


def _of_paper(name: str) -> Made:
    program = OF_PAPERS[name].make(0)
    return Made(program.step, list(islice(program.batches, 20)), modules_of(program.state))


def _work_beside() -> Made:
    step, inputs, state = work_beside.made()
    return Made(step, inputs, state)


def _of_terra() -> list[str]:
    return [name for name, recipe in OF_PAPERS.items() if "Terra" in recipe.paper]


SMALL = {**PROGRAMS, "work_beside": _work_beside}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--small", action="store_true", help="the small programs (the default)")
    parser.add_argument("--papers", action="store_true", help="the ten programs of Terra's paper")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begun = time.perf_counter()
    names = [*options.names, *(_of_terra() if options.papers else ())]
    names += SMALL if options.small or not names else ()
    print(f"{'':24}{'':>9}{'':>10}{'':>11}{'lazy: ms':>10}{'':18}{'overlapped: ms':>16}")
    print(
        f"{'program':24}{'matched':>9}{'diverged':>10}{'eager ms':>11}"
        + f"{'call':>8}{'skeleton':>10}{'graph':>8}{'x':>6}" * 2
        + f"{'beside':>8}{'served':>8}"
    )
    for name in names:
        row = measured(name, options.calls)
        text = f"{name:24}{row.matched:>9.0%}{row.transitions:>10}{1e3 * row.eager:>11.2f}"
        for kind in KINDS:
            one = row.kinds[kind]
            text += f"{1e3 * one.call:>8.2f}{1e3 * one.skeleton:>10.2f}{1e3 * one.graph:>8.2f}"
            text += f"{row.eager / one.call:>6.2f}"
        print(text + f"{row.kinds['overlapped'].beside:>8.0%}{row.kinds['overlapped'].served:>8.0%}", flush=True)
    print(f"{time.perf_counter() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Co-execution forced on training programs, against eager: lazy, and with the graph in a thread beside the skeleton.

    python -m benchmarks.speed.coexecution [NAME ...] [--calls 60] [--small] [--papers] [--reduced] [--record]

Takes a minute for the small programs, three for those of Terra's paper with ``--reduced``, twenty without.

One thread. Small programs are those of ``tests/runtime/coexecution`` and ``benchmarks/programs/work_beside``; those of
the paper are in ``benchmarks/speed/papers``, ``--reduced`` in the sizes of their tests: an eager step takes 2 to 8 ms.
The three sides make each call in turn, from equal states. Results, parameters, buffers, gradients and generators have
to be equal bit by bit, or the benchmark fails.

The table has the share of operators that graphs made, the calls that diverged once the first ones were over, medians of
eager's calls and of both kinds of co-executed ones (Terra, table 2), for each kind the times of skeleton and graph
(figure 6), the shares of calls whose graph ran beside Python, and that were served, how many paths have graphs, and the
share of calls that were made of merged operators, since each took another path: these have no graphs, and are lazy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch

import torchjanus
from benchmarks.programs import work_beside
from benchmarks.record import write
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
    """One program. ``eager``: seconds of a call; ``reasons``: of calls that were not served."""

    name: str
    matched: float
    transitions: int
    eager: float
    kinds: dict[str, Kind]
    paths: int
    merged: float
    reasons: tuple[str, ...]


class _Evaluated:
    """A co-executed step under a setting."""

    def __init__(self, step: Callable[..., Any], setting: str) -> None:
        self.step: Any = torchjanus.speculate(step, executor="coexecute")
        self.setting = setting

    def __call__(self, *args: Any) -> Any:
        os.environ[COEXECUTION.name] = self.setting
        return self.step(*args)


def measured(name: str, calls: int, reduced: bool = False) -> Row:
    """Run a program all three ways, and compare."""
    sides = [lambda step, setting=setting: _Evaluated(step, setting) for setting in KINDS]
    make = SMALL[name] if name in SMALL else lambda: _of_paper(name, reduced)
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
    merged = (after[0].merged - before[0].merged) / calls
    reasons = tuple(dict.fromkeys(refusal.reason for refusal in twins.steps[1].step.refusals))
    return Row(name, matched, transitions, statistics.median(times[0]), kinds, after[0].paths, merged, reasons)


def _of_paper(name: str, reduced: bool) -> Made:
    program = OF_PAPERS[name].make(0, reduced)
    return Made(program.step, list(islice(program.batches, 60)), modules_of(program.state))


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
    parser.add_argument("--reduced", action="store_true", help="the papers' programs in the sizes of their tests")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results/coexecution.json")
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
        + f"{'beside':>8}{'served':>8}{'paths':>7}{'merged':>8}"
    )
    rows: list[Row] = []
    for name in names:
        row = measured(name, options.calls, options.reduced)
        rows.append(row)
        text = f"{name:24}{row.matched:>9.0%}{row.transitions:>10}{1e3 * row.eager:>11.2f}"
        for kind in KINDS:
            one = row.kinds[kind]
            text += f"{1e3 * one.call:>8.2f}{1e3 * one.skeleton:>10.2f}{1e3 * one.graph:>8.2f}"
            text += f"{row.eager / one.call:>6.2f}"
        print(text + f"{row.kinds['overlapped'].beside:>8.0%}{row.kinds['overlapped'].served:>8.0%}", end="")
        print(f"{row.paths:>7}{row.merged:>8.0%}  {', '.join(row.reasons)}", flush=True)
    if options.record:
        given = sys.argv[1:] if arguments is None else arguments
        print(write("coexecution", given, "cpu", {"programs": [asdict(row) for row in rows]}))
    print(f"{time.perf_counter() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long until a training is faster than eager: seconds from the first call on, in a first run and in a second one.

    python -m benchmarks.cost.first_gain [--programs mlp lstm ...] [--threads N] [--busy] [--seconds S] [--record]

Takes 15 minutes.

Each run is a process of its own; a second run finds what the first one has kept. Counted is the beginning of the first
ten calls in a row that each take less than eager's median time, which is measured in the same process before (on a
model of its own) and, since machines are shared, again after it. With ``--busy`` one other process for each core
computes all the time. ``lost`` is what all calls up to then took beyond eager's time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import torchjanus
from benchmarks.cost.runs import in_turn
from benchmarks.programs.steps import PROGRAMS, make
from benchmarks.record import write

__all__ = ["Run", "first_gain", "measure"]

IN_A_ROW = 10  # calls
EAGER_CALLS = 60  # for eager's median, each of the two times
BUSY = "while True: sum(range(10000))"


@dataclass(frozen=True)
class Run:
    """One run of a program. Times in seconds, but ``eager`` and ``step`` in ms."""

    program: str
    warm: bool
    gain: float | None  # None: not within the limit
    call: int | None  # the number of the first of these calls
    lost: float
    longest: float  # the longest call
    eager: float
    step: float  # the median of the last calls
    runs_on: str


def first_gain(seconds: Sequence[float], eager: float) -> int | None:
    """Return the index of the first of IN_A_ROW consecutive calls that each take less than ``eager``; None if there are
    none."""
    row = 0
    for number, took in enumerate(seconds):
        row = row + 1 if took < eager else 0
        if row == IN_A_ROW:
            return number - IN_A_ROW + 1
    return None


def _median_of_eager(name: str) -> float:
    job = make(name, "adam", dropout=0.1)
    times = []
    for _, batch in zip(range(EAGER_CALLS), cycle(job.batches), strict=False):
        begun = time.perf_counter()
        job.step(*batch)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[EAGER_CALLS // 6 :])


def child(name: str, threads: int, limit: float) -> dict[str, Any]:
    """One run, in this process."""
    torch.set_num_threads(threads)
    before = _median_of_eager(name)
    job = make(name, "adam", dropout=0.1)
    step = torchjanus.speculate(job.step, executor="auto")
    batches = cycle(job.batches)
    ends: list[float] = []
    seconds: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < limit:
        started = time.perf_counter()
        step(*next(batches))
        now = time.perf_counter()
        seconds.append(now - started)
        ends.append(now - begun)
    eager = statistics.median((before, _median_of_eager(name)))
    found = first_gain(seconds, eager)
    until = len(seconds) if found is None else found
    engines = [engine for route in step._learning.routes for engine in route.engines]
    return {
        "gain": None if found is None else ends[found] - seconds[found],
        "call": None if found is None else found + 1,
        "lost": sum(seconds[:until]) - until * eager,
        "longest": max(seconds),
        "eager": 1e3 * eager,
        "step": 1e3 * statistics.median(seconds[-len(seconds) // 10 :]),
        "runs_on": ", ".join(sorted({engine.current for engine in engines})) or "Python",
    }


@contextmanager
def others(count: int) -> Iterator[None]:
    """Let so many other processes compute meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def measure(name: str, threads: int, limit: float, busy: bool) -> list[Run]:
    """Return a first and a second run of a program. Raises RuntimeError if one fails."""
    options = ["--threads", str(threads), "--seconds", str(limit)]
    with others((os.cpu_count() or 1) if busy else 0):
        made = in_turn("benchmarks.cost.first_gain", name, options, threads, 2)
        return [Run(name, number > 0, **run) for number, run in enumerate(made)]


def table(runs: Sequence[Run]) -> Table:
    """Return the runs for the terminal."""
    shown = Table(box=SIMPLE)
    for head in (
        "program",
        "run",
        "gain after (s)",
        "call",
        "lost (s)",
        "longest (s)",
        "eager (ms)",
        "step (ms)",
        "by",
    ):
        shown.add_column(head, justify="left" if head in ("program", "run", "by") else "right")
    for run in runs:
        shown.add_row(
            run.program, "second" if run.warm else "first", "-" if run.gain is None else f"{run.gain:.1f}",
            "-" if run.call is None else str(run.call), f"{run.lost:.1f}", f"{run.longest:.2f}", f"{run.eager:.2f}",
            f"{run.step:.2f}", run.runs_on,
        )  # fmt: skip
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost.first_gain", description=__doc__)
    chosen = ["mlp", "digits", "lstm", "bert-cls", "bert-qa", "gpt2"]
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=chosen)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="with both cores busy")
    parser.add_argument("--seconds", type=float, default=40.0, help="of calls in a run")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(child(options.child, options.threads, options.seconds)))
        return 0
    runs: list[Run] = []
    for name in options.programs:
        runs += measure(name, options.threads, options.seconds, options.busy)
        Console().print(table(runs[-2:]))
    Console().print(table(runs))
    if options.record:
        given = list(sys.argv[1:] if arguments is None else arguments)
        kind = "_busy" if options.busy else ""
        write(f"first_gain_{options.threads}_threads{kind}", given, "cpu", {"rows": [asdict(run) for run in runs]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

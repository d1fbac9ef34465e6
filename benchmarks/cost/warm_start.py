"""How long a program takes to be at full speed: in its first run, and in a second one, which finds what that has kept.

    python -m benchmarks.cost.warm_start [--programs mlp lstm ...] [--papers an lenet ...] [--record]

Takes half an hour.

Each run is a process of its own, on one thread. The two runs of a program share a folder of torchjanus' and nothing
else: Inductor's cache is empty in both, as after a night in which /tmp was emptied. The first run goes on until its
compilations are over and its executors are chosen. Counted are the seconds from the beginning of the first step to the
end of the first one that takes at most 1.2 times the median of the last ones of its kind, and to the choice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
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
from benchmarks.speed import papers

__all__ = ["Run", "at_speed", "measure"]

NEAR = 1.2  # times the final median
LAST = 60  # calls that the final median is taken of
TARGET = 3.0  # seconds


@dataclass(frozen=True)
class Run:
    """One run of a program, in seconds where nothing else is said."""

    program: str
    warm: bool
    at_speed: float
    chosen: float | None  # None: not within the limit
    triggering: float  # the longest call
    step: float  # ms, the final median
    calls: int  # until it was chosen
    runs_on: str
    kept: int  # compiled artifacts that an earlier run had left


def at_speed(ends: Sequence[float], seconds: Sequence[float], period: int = 1) -> float:
    """The end of the first call that takes at most NEAR times the median of the last ones of its kind."""
    medians = [statistics.median(seconds[-LAST * period :][kind::period]) for kind in range(period)]
    first = len(seconds) - min(LAST * period, len(seconds))  # the number of the call whose kind is 0 there
    for number, (end, took) in enumerate(zip(ends, seconds, strict=True)):
        if took <= NEAR * medians[(number - first) % period]:
            return end
    raise AssertionError("the last calls are among them")


def program_of(name: str) -> tuple[Callable[..., Any], Iterator[tuple[Any, ...]], int]:
    """The step, its batches, and after how many of these all kinds have had their turn."""
    if name in PROGRAMS:
        job = make(name, "adam", dropout=0.1)
        return job.step, cycle(job.batches), 1
    recipe = papers.PROGRAMS[name.removeprefix("papers.")]
    made = recipe.make(0, True)
    return made.step, made.batches, recipe.period


def child(name: str, limit: float) -> dict[str, Any]:
    """One run, in this process."""
    torch.set_num_threads(1)
    plain, batches, period = program_of(name)
    step = torchjanus.speculate(plain, executor="auto")
    begun = time.perf_counter()
    ends: list[float] = []
    seconds: list[float] = []

    def call() -> None:
        batch = next(batches)
        before = time.perf_counter()
        step(*batch)
        now = time.perf_counter()
        seconds.append(now - before)
        ends.append(now - begun)

    def engines() -> list[Any]:
        return [engine for route in step._learning.routes for engine in route.engines]

    chosen = None
    while not ends or ends[-1] < limit:
        call()
        if step.given_up or (engines() and not any(engine.trying or not engine.is_ready for engine in engines())):
            chosen = ends[-1]
            break
    calls = len(ends)
    for _ in range(LAST * period):
        call()
    return {
        "at_speed": at_speed(ends, seconds, period),
        "chosen": chosen,
        "triggering": max(seconds),
        "step": 1e3 * statistics.median(seconds[-LAST * period :]),
        "calls": calls,
        "runs_on": ", ".join(sorted({engine.current for engine in engines()})) or "Python",
        "kept": sum("loaded what an earlier run" in note for engine in engines() for note in engine.notes),
    }


def measure(name: str, limit: float, warm_runs: int = 1) -> list[Run]:
    """The first run of a program, and those after it."""
    made = in_turn("benchmarks.cost.warm_start", name, ["--limit", str(limit)], 1, 1 + warm_runs)
    return [Run(name, number > 0, **run) for number, run in enumerate(made)]


def table(runs: Sequence[Run]) -> Table:
    """For the terminal."""
    shown = Table(box=SIMPLE)
    for head in ("program", "run", "at speed (s)", "chosen (s)", "longest call (s)", "step (ms)", "runs on", "kept"):
        shown.add_column(
            head, justify="left" if head in ("program", "run", "runs on") else "right", no_wrap=head == "program"
        )
    for run in runs:
        shown.add_row(
            run.program, "second" if run.warm else "first", f"{run.at_speed:.1f}",
            "-" if run.chosen is None else f"{run.chosen:.1f}", f"{run.triggering:.2f}", f"{run.step:.2f}",
            run.runs_on, str(run.kept),
        )  # fmt: skip
    return shown


def main(arguments: Sequence[str] | None = None) -> bool:
    """The command line; returns whether all second runs are at full speed in time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost.warm_start", description=__doc__)
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=["mlp", "digits", "lstm", "bert-cls"])
    parser.add_argument(
        "--papers", nargs="*", choices=papers.PROGRAMS, default=["an", "lstm", "lenet"], help="in small"
    )
    parser.add_argument("--limit", type=float, default=400, help="seconds for a run")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(child(options.child, options.limit)))
        return True
    runs: list[Run] = []
    for name in [*options.programs, *(f"papers.{name}" for name in options.papers)]:
        runs += measure(name, options.limit)
        Console().print(table(runs[-2:]))
    Console().print(table(runs))
    if options.record:
        given = [f"--programs={' '.join(options.programs)}", f"--papers={' '.join(options.papers)}"]
        write("warm_start", given, "cpu", {"rows": [asdict(run) for run in runs]})
    return all(run.at_speed <= TARGET for run in runs if run.warm)


if __name__ == "__main__":
    raise SystemExit(not main())

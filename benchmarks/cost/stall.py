"""How long a call takes at most while a program warms up, and how fast it runs while the compiler works beside it.

    python -m benchmarks.cost.stall [--programs mlp lstm ...] [--papers treelstm a3c ...] [--record]

Takes ten minutes.

Each program is run twice in this process: as it is, and speculated with ``executor="auto"`` from the first call on
until the executor has been chosen. Watched calls are left out: they are the program itself, made by other means. With
``--papers`` those of the papers are run, in small. While the compiler works, blocks of eager calls of a twin
alternate with blocks of speculated ones, so that both have the same neighbours; a stretch of eager calls alone comes
before. Inductor starts from an empty cache; so does torchjanus with TORCHJANUS_CACHE= (else what an earlier run has
kept is taken). It is worth running with one thread (OMP_NUM_THREADS=1), which leaves the compiler a core, and with as
many as there are cores, which does not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import torchjanus
from benchmarks.programs.steps import PROGRAMS, make
from benchmarks.record import write
from benchmarks.speed import papers

__all__ = ["Stall", "measure"]

BATCHES = 100  # of a program of the papers
ALONE = 3.0  # seconds of eager calls before
BLOCK = 0.25  # seconds


@dataclass(frozen=True)
class Stall:
    """The times of one program, in milliseconds where nothing else is said."""

    program: str
    eager: float  # the median call, with nothing beside it
    eager_longest: float  # what the machine does to a call that waits for nobody, while the compiler works
    longest: float  # of the calls that were not watched
    longest_while: str  # what the entry's executor was then
    triggering: float  # the last watched call; it makes the graph, or has it made in another process
    compiling: float  # seconds
    throughput: float  # while the compiler works: calls a second in torchjanus's blocks, against eager's alone
    beside: float  # the same, against eager's blocks
    settled: str

    @property
    def steps(self) -> float:
        """The longest call in eager steps."""
        return self.longest / self.eager

    @property
    def good(self) -> bool:
        """Whether the targets are met: at most 3 eager steps or 50 ms, and 0.8 of eager's throughput."""
        return self.longest <= max(3 * self.eager, 50) and self.throughput >= 0.8


def block(call: Callable[..., Any], batches: Sequence[tuple[Any, ...]], seconds: float) -> list[float]:
    """The times of calls, in ms, for so many seconds; without those of calls that are watched."""
    times: list[float] = []
    watched = call.statistics if isinstance(call, torchjanus.Speculated) else None
    begun = time.perf_counter()
    last, number = begun, 0
    while last - begun < seconds:
        before = watched().watched if watched else 0
        started = time.perf_counter()
        call(*batches[number % len(batches)])
        last = time.perf_counter()
        number += 1
        if not watched or watched().watched == before:
            times.append(1e3 * (last - started))
    return times


def made(program: str, optimizer: str) -> tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]:
    """The step of a program, and its batches."""
    if program in PROGRAMS:
        job = make(program, optimizer, dropout=0.1)
        return job.step, job.batches
    paper = papers.PROGRAMS[program.removeprefix("papers.")].make(0, True)
    return paper.step, [next(paper.batches) for _ in range(BATCHES)]


def state(step: Any) -> str:
    """What runs the graph, or that another process makes it."""
    return step.entries[0].engine.current if step.entries else "lowering"


def settled(step: Any) -> bool:
    """Whether the executor has been chosen."""
    notes = step.entries[0].engine.notes if step.entries else ()
    return bool(notes) and notes[-1].startswith(("fastest", "not used", "inductor could not"))


def measure(program: str, optimizer: str, limit: float = 300) -> Stall:
    """One program, from its first call until its executor is chosen or ``limit`` seconds are over."""
    (twin, others), (job, batches) = (made(program, optimizer) for _ in range(2))
    block(twin, others, ALONE / 2)  # caches
    alone = block(twin, others, ALONE)
    step = torchjanus.speculate(job, executor="auto")
    watched = []
    for batch in batches[:3]:
        begun = time.perf_counter()
        step(*batch)
        watched.append(1e3 * (time.perf_counter() - begun))
    begun = time.perf_counter()
    ours: list[float] = []
    theirs: list[float] = []
    longest, longest_while = 0.0, ""
    compiling = 0.0
    while not settled(step):
        if time.perf_counter() - begun > limit:
            break
        before = state(step)
        times = block(step, batches, BLOCK)
        after = state(step)
        if times and max(times) > longest:
            longest, longest_while = max(times), before if before == after else f"{before}, then {after}"
        if after in ("lowering", "replay"):
            ours += times
            theirs += block(twin, others, BLOCK)
            compiling = time.perf_counter() - begun
    assert step.entries, torchjanus.explain(step, detail=True)
    rate, beside, eager = (len(times) / sum(times) for times in (ours, theirs, alone))
    name = f"{program} {optimizer}" if program in PROGRAMS else program
    return Stall(
        name, statistics.median(alone), max(theirs), longest, longest_while, watched[-1],
        compiling, rate / eager, rate / beside, step.entries[0].engine.notes[-1],
    )  # fmt: skip


def table(rows: Sequence[Stall]) -> Table:
    """For the terminal."""
    shown = Table(box=SIMPLE)
    heads = ("program", "eager (ms)", "longest", "in steps", "eager's", "compiling (s)", "calls/s", "beside", "good")
    for head in heads:
        shown.add_column(head, justify="left" if head == "program" else "right")
    for row in rows:
        shown.add_row(
            row.program, f"{row.eager:.2f}", f"{row.longest:.1f}", f"{row.steps:.1f}", f"{row.eager_longest:.1f}",
            f"{row.compiling:.0f}", f"{row.throughput:.2f}", f"{row.beside:.2f}", "yes" if row.good else "no",
        )  # fmt: skip
    return shown


def main(arguments: Sequence[str] | None = None) -> bool:
    """The command line; returns whether all programs meet the targets."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost.stall", description=__doc__)
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=["mlp", "lstm", "bert-cls"])
    parser.add_argument("--papers", nargs="*", choices=papers.PROGRAMS, default=["treelstm", "a3c"])
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    options = parser.parse_args(arguments)
    rows = []
    for program in [*options.programs, *(f"papers.{name}" for name in options.papers)]:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            rows.append(measure(program, options.optimizer))
        Console().print(table(rows[-1:]))
    Console().print(table(rows))
    if options.record:
        given = [
            f"--programs={' '.join(options.programs)}",
            f"--papers={' '.join(options.papers)}",
            f"--optimizer={options.optimizer}",
        ]
        threads = torch.get_num_threads()
        write(
            "stall" if threads == 1 else f"stall_{threads}_threads",
            given,
            "cpu",
            {"rows": [asdict(row) for row in rows]},
        )
    return all(row.good for row in rows)


if __name__ == "__main__":
    raise SystemExit(not main())

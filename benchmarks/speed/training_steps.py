"""Are speculated steps equal to eager ones, how much faster are they, and what do guards and commit cost?

    python -m benchmarks.speed.training_steps                 # everything
    python -m benchmarks.speed.training_steps --quick         # fewer programs and rounds
    python -m benchmarks.speed.training_steps equality --programs mlp gpt2

Takes tens of minutes, most of it for Inductor; a few minutes with ``--quick``.

One thread. Contenders take turns in short blocks, and medians are reported. Each part writes
``benchmarks/results/training_steps_<part>.json``, or ``..._quick.json``.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks import record
from benchmarks.programs.steps import OPTIMIZERS, PROGRAMS
from benchmarks.speed.equality import Comparison, compare
from benchmarks.speed.overhead import Overhead, many_modules, whole_step
from benchmarks.speed.timing import Timing, race

# Executor and dropout. Inductor's kernels draw eager's random numbers but round otherwise, so both are looked at.
CASES = (("replay", 0.1), ("inductor", 0.0), ("inductor", 0.1))
PARTS = ("equality", "speed", "overhead")


def difference(relative: float) -> str:
    return "none" if relative == 0.0 else f"{relative:.0e}"


def equality(options: argparse.Namespace, console: Console) -> list[Comparison]:
    """Every program with every optimizer: replay bitwise with dropout; inductor without and with dropout."""
    rows: list[Comparison] = []
    for executor, dropout in CASES:
        if executor not in options.executors:
            continue
        for program in options.programs:
            for optimizer in options.optimizers:
                if options.quick and executor == "inductor" and (optimizer, dropout) != ("sgd", 0.0):
                    continue
                with console.status(f"{program}, {optimizer}, {executor}, dropout {dropout}"):
                    rows.append(compare(program, optimizer, executor, dropout, device=options.device))
    table = Table(title="50 steps from one seed: relative differences from eager", box=SIMPLE)
    for column in ("program", "optimizer", "executor"):
        table.add_column(column)
    for column in ("dropout", "loss", "state", "random", "graph", "compiles", "verdict"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.program,
            row.optimizer,
            row.executor,
            f"{row.dropout:g}",
            difference(row.loss_difference),
            difference(row.state_difference),
            "equal" if row.random_equal else "differ",
            f"{row.statistics['speculated']}/{row.statistics['calls']}",
            str(row.statistics["compiles"]),
            "ok" if not row.faults else ", ".join(row.faults),
        )
    console.print(table)
    return rows


def speed(options: argparse.Namespace, console: Console) -> list[Timing]:
    """BERT's whole step, with and without dropout: eager, torch.compile of the step, torchjanus."""
    repetitions = 12 if options.quick else 60
    rows: list[Timing] = []
    for dropout in (0.0, 0.1):
        with console.status(f"bert-qa, sgd, dropout {dropout}"):
            rows += race("bert-qa", "sgd", dropout, repetitions=repetitions, device=options.device)
    table = Table(title=f"whole step, medians, {torch.get_num_threads()} thread(s)", box=SIMPLE)
    for column in ("program", "dropout", "contender"):
        table.add_column(column)
    for column in ("ms", "quartiles", "times eager", "warm-up"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.program,
            f"{row.dropout:g}",
            row.contender,
            f"{row.median_ms:.3f}",
            f"{row.low_ms:.3f}-{row.high_ms:.3f}",
            f"{row.times_eager:.2f}",
            f"{row.compile_s:.1f} s",
        )
    console.print(table)
    return rows


def overhead(options: argparse.Namespace, console: Console) -> list[Overhead]:
    """What a call costs beside its arithmetic, for 300 submodules with a trivial forward and for BERT's step."""
    repetitions = 20 if options.quick else 100
    with console.status("overhead"):
        rows = [*many_modules(repetitions, options.device), whole_step("bert-qa", "sgd", repetitions, options.device)]
    table = Table(title="cost of a call beside its arithmetic", box=SIMPLE)
    for column in ("program", "contender"):
        table.add_column(column)
    for column in ("call, us", "bare, us", "beside, us", "share"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.program,
            row.contender,
            f"{row.call_us:.1f}",
            f"{row.bare_us:.1f}",
            f"{row.beside_us:.1f}",
            f"{row.share:.1%}",
        )
    console.print(table)
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.training_steps", description=__doc__.splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and compilations")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--executors", nargs="+", choices=("replay", "inductor"), default=["replay", "inductor"])
    parser.add_argument("--results", type=Path, default=record.RESULTS, help="the folder the records go to")
    options = parser.parse_args(arguments)
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"there is no part {part!r}: choose from {', '.join(PARTS)}")
    torch.set_num_threads(1)
    console = Console()
    if not console.is_terminal:
        console = Console(width=110)  # a log file has no width of its own
    failed = False
    given = sys.argv[1:] if arguments is None else arguments
    measure = {"equality": equality, "speed": speed, "overhead": overhead}
    for part in options.parts or PARTS:
        rows = measure[part](options, console)
        failed |= any(isinstance(row, Comparison) and row.faults for row in rows)
        content = {"quick": options.quick, "rows": [asdict(row) for row in rows]}
        name = f"training_steps_{part}{'_quick' if options.quick else ''}"  # does not take a full record's place
        path = record.write(name, given, options.device, content, options.results)
        console.print(f"recorded in {path}", highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

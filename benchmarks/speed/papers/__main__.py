"""The programs of the JANUS and Terra papers: eager, torch.compile, written symbolically by hand, torchjanus.

    python -m benchmarks.speed.papers [--quick] [--only lstm gpt2 ...] [--record]

Takes three hours, 5 to 25 minutes a program; a few minutes with ``--quick``.

Each contender runs in a process of its own, on one thread; they take turns in blocks of calls on the same batches. With
``--record`` the outcome joins that of earlier runs in ``benchmarks/results/papers.json``, and ``benchmarks/RESULTS.md``
and the plots are made anew. ``python -m benchmarks.speed.regress`` compares two such files.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from benchmarks.speed.papers import PROGRAMS
from benchmarks.speed.papers.contender import CONTENDERS
from benchmarks.speed.papers.contest import Lost, contest, rows_of
from benchmarks.speed.papers.report import keep, render, table

__all__ = ["main"]

QUICK = ("an", "lstm", "a3c")


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.papers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), metavar="PROGRAM")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--repetitions", type=int, default=10, help="blocks of each contender")
    parser.add_argument("--limit", type=float, default=600, help="seconds for the warm-up of a contender")
    parser.add_argument("--patience", type=float, default=900, help="seconds until torchjanus's compilers are over")
    parser.add_argument("--quick", action="store_true", help="few programs, in small; at most 60 s of warm-up")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    options = parser.parse_args(given)
    repetitions, limit = (4, 60.0) if options.quick else (options.repetitions, options.limit)
    patience = limit if options.quick else options.patience
    console = Console(width=None if sys.stdout.isatty() else 200)
    lacking: list[str] = []
    for name in options.only or (QUICK if options.quick else PROGRAMS):
        try:
            outcomes = contest(name, repetitions, limit, patience, tuple(options.contenders), small=options.quick)
        except Lost as lost:
            console.print(f"{lost}. Give it more time with --limit.")
            lacking.append(name)
            continue
        rows = rows_of(name, outcomes)
        console.print(table(rows))
        if options.record:
            keep(
                name,
                rows,
                {o.kind: o.reported.get("notes", []) for o in outcomes if "notes" in o.reported},
                quick=options.quick,
            )
    if options.record:
        console.print(*render(), sep="\n")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())

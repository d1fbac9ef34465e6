"""The figures of ``benchmarks.speed.trees``: a row a contender, the table, and whether the targets are reached."""

from __future__ import annotations

from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

__all__ = ["DEEP_STEPS", "DEPTH", "Deep", "Row", "deep_verdict", "report", "verdicts"]

DEPTH = 5000
DEEP_STEPS = 6

# What is to be reached (issue 5), at one thread: times eager.
LEAST = {("treelstm", 64): 30.0, ("treelstm", 150): 11.0, ("treernn", 150): 20.0}
MOST_OF_FLOOR = {("treelstm", 150): 1.5, ("treernn", 150): 1.5, ("childsum", 150): 1.5}
MOST_COMPILES = 6
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Row:
    """One contender in one case. Milliseconds; None where there is nothing to tell."""

    model: str
    width: int
    contender: str
    median: float | None
    low: float | None = None  # quartiles
    high: float | None = None
    times_eager: float | None = None
    times_floor: float | None = None
    difference: float | None = None  # the largest of a loss from eager's, relative
    compiles: int | None = None
    served: str = ""  # timed steps that ran as a graph
    warm: float | None = None  # seconds, of the steps before
    note: str = ""
    steps: int | None = None  # that were done, where time is limited
    limit: float | None = None  # seconds there were for them


@dataclass(frozen=True)
class Deep:
    """Steps on one tree of 5,000 levels."""

    model: str
    width: int
    contender: str
    step: float | None  # milliseconds, the median of the last ones
    losses: list[float]
    served: int
    error: str = ""


def number(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)


def table(rows: list[Row], threads: int) -> Table:
    shown = Table(title=f"a training step on 25 new trees, medians, {threads} thread(s)", box=SIMPLE)
    for head in ("model", "width", "contender"):
        shown.add_column(head)
    for head in ("ms", "quartiles", "times eager", "of the floor", "losses", "compilations", "served", "warm-up (s)"):
        shown.add_column(head, justify="right")
    shown.add_column("note")
    for row in rows:
        shown.add_row(
            row.model,
            str(row.width),
            row.contender,
            number(row.median),
            "-" if row.low is None else f"{row.low:.1f}-{row.high:.1f}",
            number(row.times_eager, ".2f"),
            number(row.times_floor, ".2f"),
            number(row.difference, ".0e"),
            "-" if row.compiles is None else str(row.compiles),
            row.served or "-",
            number(row.warm),
            row.note[:90],
        )
    return shown


def verdicts(rows: list[Row]) -> list[dict[str, object]]:
    """The targets, and whether they are reached."""
    found: list[dict[str, object]] = []
    cases = {(row.model, row.width): {} for row in rows}
    for row in rows:
        cases[row.model, row.width][row.contender] = row
    for case, by_name in cases.items():
        ours, batched = by_name["torchjanus"], by_name["batched by hand"]

        def add(what: str, target: float, measured: float | None, reached: bool, case: tuple[str, int] = case) -> None:
            name = f"{case[0]} {case[1]}: {what}"
            found.append({"what": name, "target": target, "measured": measured, "reached": reached})

        if ours.median is None:
            add("runs", 1, None, False)
            continue
        if case in LEAST:
            add("times eager, at least", LEAST[case], ours.times_eager, ours.times_eager >= LEAST[case])
        if case in MOST_OF_FLOOR:
            most = MOST_OF_FLOOR[case]
            add("times the floor, at most", most, ours.times_floor, ours.times_floor <= most)
        add("ms, batched by hand", batched.median, ours.median, ours.median < batched.median)
        add("compilations, at most", MOST_COMPILES, ours.compiles, 1 <= ours.compiles <= MOST_COMPILES)
        add("losses from eager's, at most", TOLERANCE, ours.difference, ours.difference <= TOLERANCE)
    return found


def deep_verdict(rows: list[Deep]) -> dict[str, object]:
    """Whether the deep tree trains, and as eager does."""
    eager, ours = rows
    complete = len(eager.losses) == len(ours.losses) == DEEP_STEPS
    pairs = list(zip(eager.losses, ours.losses, strict=False))
    worst = max((abs(one - other) / abs(one) for one, other in pairs), default=None)
    reached = complete and ours.served > 0 and worst is not None and worst <= TOLERANCE
    return {"what": f"a tree of {DEPTH} levels: losses", "target": TOLERANCE, "measured": worst, "reached": reached}


def report(console: Console, rows: list[Row], deeps: list[Deep], found: list[dict[str, object]], threads: int) -> None:
    if rows:
        console.print(table(rows, threads))
    for row in deeps:
        time_of = "did not run" if row.step is None else f"{row.step:.0f} ms a step"
        text = f"{row.model} {row.width}, {DEPTH} levels, {row.contender}: {time_of}, {len(row.losses)} steps"
        console.print(f"{text}, {row.served} served {row.error}", highlight=False)
    console.print()
    for verdict in found:
        measured, target = (f"{v:.4g}" if isinstance(v, float) else v for v in (verdict["measured"], verdict["target"]))
        word = "reached" if verdict["reached"] else "MISSED"
        console.print(f"{word:8}{verdict['what']}: {measured} ({target})", highlight=False)

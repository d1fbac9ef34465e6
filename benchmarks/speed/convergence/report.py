"""What runs of a training come to: whether their losses are eager's, how soon they are good; a table, JSON, a plot."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from benchmarks.record import RESULTS, machine
from benchmarks.speed.convergence.base import PROGRAMS, Recipe

__all__ = ["TOLERANCE", "Row", "curve", "faults", "keep", "plot", "rows_of", "table"]

TOLERANCE = 1e-5  # what is promised of losses where executors round otherwise

Runs = Mapping[str, Sequence[dict[str, Any]]]  # by contender, as contender.run tells them


@dataclass(frozen=True)
class Row:
    """One contender. Medians over its runs; None where there is nothing to tell."""

    program: str
    contender: str
    steps: int
    total: float | None  # seconds
    late: float | None  # milliseconds a step, median of the last half
    target_step: int | None  # when the metric was first as good as the target
    target_time: float | None  # seconds
    times_eager: float | None  # eager's time to the target over this one
    final: float | None  # the metric
    bitwise: bool | None  # whether every loss is eager's
    difference: float | None  # of any loss from eager's, relative to eager's largest
    within: int | None  # steps until that is more than TOLERANCE for the first time
    served: float | None  # share of the calls that ran as a graph
    note: str = ""


def rows_of(recipe: Recipe, runs: Runs) -> list[Row]:
    """A row for each contender; eager must be among them."""
    eager = runs["eager"][0]
    scale = max(map(abs, eager["losses"]))
    goal = reached(recipe, runs["eager"])
    rows = []
    for kind, some in runs.items():
        done = [run for run in some if "losses" in run]
        if not done:
            rows.append(Row(recipe.name, kind, 0, *(None,) * 10, note=some[0]["failure"]))
            continue
        first, steps = done[0], min(len(run["losses"]) for run in done)
        apart = [
            max(abs(a - b) for a, b in ((run["losses"][n], eager["losses"][n]) for run in done)) / scale
            for n in range(min(steps, len(eager["losses"])))
        ]
        step, seconds = reached(recipe, done)
        rows.append(
            Row(
                recipe.name,
                kind,
                steps,
                statistics.median(run["clock"][-1] for run in done) if steps == len(eager["losses"]) else None,
                1e3 * statistics.median(late(run["clock"]) for run in done),
                step,
                seconds,
                goal[1] / seconds if goal[1] is not None and seconds is not None else None,
                first["metrics"][-1][1],
                not any(apart),
                max(apart),
                next((number for number, value in enumerate(apart) if not value <= TOLERANCE), None),
                first["served"],
                "; ".join(dict.fromkeys(first["notes"])),
            )
        )
    return rows


def late(clock: Sequence[float]) -> float:
    """Seconds of a step, the median over the last half."""
    half = clock[len(clock) // 2 :]
    return statistics.median(b - a for a, b in itertools.pairwise(half)) if len(half) > 1 else clock[-1]


def reached(recipe: Recipe, runs: Sequence[dict[str, Any]]) -> tuple[int | None, float | None]:
    """The step at which the metric was first as good as the target, and the median time of that."""
    found = [next((n for n, value in run["metrics"] if n and recipe.reached(value)), None) for run in runs]
    times = [run["clock"][n - 1] for n, run in zip(found, runs, strict=True) if n is not None]
    return (found[0], statistics.median(times)) if len(times) == len(runs) else (None, None)


def faults(recipe: Recipe, rows: Sequence[Row], runs: Runs) -> list[str]:
    """Which promises are broken: equal seeds give equal runs, replay gives eager's losses."""
    found = []
    if any(run.get("losses") != runs["eager"][0]["losses"] for run in runs["eager"]):
        found.append(f"{recipe.name}: two eager runs from the same seed differ")
    for row in rows:
        if row.contender == "replay" and row.within is not None and not recipe.close:
            found.append(f"{recipe.name}: the losses of replay are not eager's from step {row.within + 1} on")
        elif row.contender == "replay" and not row.bitwise and not recipe.close:
            found.append(f"{recipe.name}: the losses of replay are not bitwise eager's")
    return found


def shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def table(recipe: Recipe, rows: Sequence[Row]) -> Table:
    """For the terminal."""
    sign = "at least" if recipe.higher else "at most"
    made = Table(box=SIMPLE, title=f"{recipe.name}: {recipe.metric} {sign} {recipe.target:g}")
    heads = (
        "contender", "steps", "all (s)", "late step (ms)", "at target (step)", "(s)", "times eager", "at the end",
        "losses", f"within {TOLERANCE:.0e}", "served", "note",
    )  # fmt: skip
    for number, head in enumerate(heads):
        made.add_column(head, justify="left" if number in (0, len(heads) - 1) else "right")
    for row in rows:
        losses = "bitwise" if row.bitwise else shown(row.difference, ".0e")
        within = "all steps" if row.within is None else f"{row.within} steps"
        made.add_row(
            row.contender, str(row.steps), shown(row.total, ".1f"), shown(row.late, ".2f"), shown(row.target_step, "d"),
            shown(row.target_time, ".1f"), shown(row.times_eager, ".2f"), shown(row.final, ".4g"),
            "-" if row.contender == "eager" else losses, "-" if row.difference is None else within,
            shown(row.served, ".1%"), row.note,
        )  # fmt: skip
    return made


# -- what is kept ------------------------------------------------------------------------------------------------------


def curve(runs: Sequence[dict[str, Any]]) -> list[tuple[int, float, float, float | None]]:
    """Step, seconds, metric, and the mean loss since the point before: of the run in the middle by its time."""
    done = sorted((run for run in runs if "losses" in run), key=lambda run: float(run["clock"][-1]))
    if not done:
        return []
    run = done[(len(done) - 1) // 2]
    points: list[tuple[int, float, float, float | None]] = []
    before = 0
    for number, value in run["metrics"]:
        since = run["losses"][before:number]
        points.append(
            (number, run["clock"][number - 1] if number else 0.0, value, sum(since) / len(since) if since else None)
        )
        before = number
    return points


def keep(recipe: Recipe, rows: Sequence[Row], runs: Runs, file: Path | None = None) -> Path:
    """Put a program's outcome among the others."""
    file = file or RESULTS / "convergence.json"
    programs = json.loads(file.read_text())["programs"] if file.exists() else {}
    programs[recipe.name] = {
        "machine": machine("cpu"),
        "about": recipe.about,
        "metric": recipe.metric,
        "target": recipe.target,
        "rows": {row.contender: asdict(row) for row in rows},
        "curves": {kind: curve(some) for kind, some in runs.items()},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    # A line for each value would be most of the file.
    text = json.dumps({"command": ["python", "-m", "benchmarks.speed.convergence"], "programs": programs})
    file.write_text(text.replace('{"machine"', '\n{"machine"').replace('"curves"', '\n"curves"') + "\n")
    return file


STYLES = {
    "eager": ("black", "-", 2.2),
    "replay": ("tab:orange", "--", 1.2),
    "torchjanus": ("tab:blue", "-", 1.2),
    "nudged": ("tab:gray", ":", 1.0),
    "compile": ("tab:green", "-", 1.2),
}


def plot(file: Path | None = None, out: Path | None = None) -> Path:
    """Two panels for each program, as a PNG: the metric against steps, and against time."""
    import matplotlib  # noqa: PLC0415 - only needed here, and slow to import

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    file = file or RESULTS / "convergence.json"
    out = out or file.with_suffix(".png")
    programs = json.loads(file.read_text())["programs"]
    names = [name for name in PROGRAMS if name in programs]
    figure, axes = pyplot.subplots(2, len(names), figsize=(3.3 * len(names), 5.4), squeeze=False, sharey="col")
    for column, name in enumerate(names):
        content = programs[name]
        for kind, points in content["curves"].items():
            if not points:
                continue
            steps, seconds, values, _ = zip(*points, strict=True)
            colour, line, width = STYLES[kind]
            axes[0][column].plot(steps, values, line, color=colour, linewidth=width, label=kind)
            if kind != "nudged":  # its time is eager's
                axes[1][column].plot(seconds, values, line, color=colour, linewidth=width)
        for axis, unit in ((axes[0][column], "steps"), (axes[1][column], "seconds")):
            axis.axhline(content["target"], color="tab:red", linewidth=0.6)
            axis.set_xlabel(unit)
        axes[0][column].set_title(f"{name}: {content['metric']}", fontsize=9)
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(out, dpi=90)
    pyplot.close(figure)
    return out

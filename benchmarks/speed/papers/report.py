"""What was measured, as a file that grows, a table for the terminal, one for readers, and plots."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from benchmarks.record import RESULTS, machine
from benchmarks.speed.papers import PROGRAMS
from benchmarks.speed.papers.contest import Row

__all__ = ["best_compile", "keep", "load", "mean", "render", "table"]

COMPILE = ("compile modules", "compile step")


def path(quick: bool = False) -> Path:
    return RESULTS / ("papers_quick.json" if quick else "papers.json")


def load(file: Path) -> dict[str, Any]:
    """The programs of a file of results: for each the machine, and its rows by contender."""
    content: dict[str, Any] = json.loads(file.read_text())["programs"] if file.exists() else {}
    return content


def keep(
    name: str, rows: Sequence[Row], notes: dict[str, list[str]], quick: bool = False, file: Path | None = None
) -> Path:
    """Put a program's outcome among the others."""
    file = file or path(quick)
    programs = load(file)
    programs[name] = {
        "machine": machine("cpu"),
        "notes": notes,
        "rows": {row.contender: asdict(row) for row in rows},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps({"command": ["python", "-m", "benchmarks.speed.papers"], "programs": programs}, indent=1) + "\n"
    )
    return file


def shown(value: float | None, digits: int = 2, unit: str = "") -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def cells(row: dict[str, Any]) -> list[str]:
    quartiles = "" if row["low"] is None else f" ({row['low']:.2f}-{row['high']:.2f})"
    return [
        row["contender"],
        shown(row["step"], 1),
        shown(row["times_eager"]) + quartiles,
        shown(row["first_fast"], 1),
        shown(row.get("settled"), 0),
        shown(row["longest"], 0),
        shown(row["stall"], 1),
        shown(row["peak"], 0),
        "-" if row["difference"] is None else f"{row['difference']:.0e}",
        row["graphs"],
        "-" if row["served"] is None else f"{row['served']:.0%}",
        row["note"],
    ]


HEADS = (
    "contender", "step (ms)", "times eager (quartiles)", "at speed after (s)", "settled after (calls)",
    "longest call (ms)", "stall (s)", "peak (MiB)", "losses", "graphs", "served", "note",
)  # fmt: skip


def table(rows: Sequence[Row]) -> Table:
    """For the terminal."""
    made = Table(box=SIMPLE, title=rows[0].program)
    for number, head in enumerate(HEADS):
        made.add_column(head, justify="left" if number in (0, 9, 11) else "right")
    for row in rows:
        made.add_row(*cells(asdict(row)))
    return made


def why_not(rows: dict[str, Any]) -> str:
    """Why there is no figure of torch.compile."""
    notes = [row.get("note", "") for kind, row in rows.items() if kind.startswith("compile")]
    late = next((note for note in notes if note.startswith("not done")), "")
    return late or ("did not run" if notes else "not asked")


def best_compile(rows: dict[str, Any]) -> dict[str, Any] | None:
    """The faster one of the two ways to use torch.compile, if any ran."""
    ran = [rows[kind] for kind in COMPILE if kind in rows and rows[kind]["times_eager"] is not None]
    return max(ran, key=lambda row: float(row["times_eager"])) if ran else None


def mean(ratios: Sequence[float]) -> float | None:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def summary(programs: dict[str, Any]) -> list[str]:
    """One line a program, and the means."""
    heads = (
        "program", "paper", "dynamic", "eager (ms)", "torchjanus", "torch.compile", "by hand", "of that",
        "second run at speed (s)", "peak", "served", "runs on",
    )  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    ours, against, reached = [], [], []
    for name, recipe in PROGRAMS.items():
        about = [name, recipe.paper, recipe.dynamic]
        if name not in programs:
            lines.append("| " + " | ".join([*about, "not measured", *[""] * (len(heads) - 4)]) + " |")
            continue
        rows = programs[name]["rows"]
        janus, compiled, hand = rows.get("torchjanus", {}), best_compile(rows), rows.get("symbolic", {})
        again = rows.get("torchjanus again", {})
        ratio, limit = janus.get("times_eager"), hand.get("times_eager")
        if ratio is not None:
            ours.append(ratio)
            if compiled is not None:
                against.append(ratio / compiled["times_eager"])
            if limit is not None:
                reached.append(ratio / limit)
        better = why_not(rows) if compiled is None else f"{compiled['times_eager']:.2f} ({compiled['contender']})"
        peak = None if ratio is None else janus["peak"] / rows["eager"]["peak"]
        cells = [
            *about, shown(rows["eager"]["step"], 1), shown(ratio), better, shown(limit),
            "-" if ratio is None or limit is None else f"{ratio / limit:.2f}", shown(again.get("first_fast"), 1),
            shown(peak), "-" if janus.get("served") is None else f"{janus['served']:.0%}", janus.get("note", ""),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    lines.append(
        f"Geometric means: torchjanus {shown(mean(ours))} times eager over {len(ours)} programs, "
        f"{shown(mean(against))} times the better torch.compile over the {len(against)} where that ran, and "
        f"{shown(mean(reached))} times what was written by hand over {len(reached)}."
    )
    return lines


def render(file: Path | None = None, folder: Path = RESULTS.parent) -> list[Path]:
    """Write RESULTS.md and the plots; returns what was written."""
    programs = load(file or path())
    lines = [
        "# The papers' programs, measured",
        "",
        "Written by `python -m benchmarks.speed.papers --record`; do not edit. Each contender in a process of its own,",
        "on one thread, all taking turns in blocks of calls on the same batches; whole training steps, ratios of",
        "medians of blocks, more is better; of torch.compile the better of two ways. What each program is run on, and",
        "when, stands below.",
        "",
        *summary(programs),
        "",
        "At speed: from the first call to the end of the first one that takes at most 1.25 times what its kind takes",
        "in the end. Stall: what the calls of the warm-up took beyond eager's. Losses: the largest difference from",
        "eager's over all calls, relative to the largest loss; compilers round otherwise, which training carries on.",
        "The second run is another process that finds what the first one has kept (Inductor's own cache is empty), and",
        "its seconds are counted from its first call. Peak: of the whole process, with its warm-up, times eager's",
        "(`benchmarks.cost.memory` tells the phases apart). By hand: `papers/by_hand`.",
        "",
    ]
    for name, content in programs.items():
        size, at = PROGRAMS[name].size, content["machine"]
        lines += [
            f"## {name}",
            "",
            f"{size[:1].upper()}{size[1:]}. {at['date'][:10]}, {at['processor']}, {at['cores']} cores (shared), Python "
            f"{at['python']}, PyTorch {at['versions']['torch']}; load at the end {at['load']:.1f}.",
            "",
        ]
        lines.append("| " + " | ".join(HEADS) + " |")
        lines.append("|" + " --- |" * len(HEADS))
        lines += [
            "| " + " | ".join(cell.replace("|", "/") for cell in cells(row)) + " |" for row in content["rows"].values()
        ]
        notes = [note for some in content["notes"].values() for note in some]
        lines += ["", *(f"- {note}" for note in notes), ""] if notes else [""]
    out = folder / "RESULTS.md"
    out.write_text("\n".join(lines).rstrip() + "\n")
    return [out, *plot(programs, folder / "results")]


def plot(programs: dict[str, Any], folder: Path) -> list[Path]:
    """Bars of the ratios, as a PNG."""
    import matplotlib  # noqa: PLC0415 - only needed here, and slow to import

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    names = [name for name in PROGRAMS if name in programs]
    series: dict[str, list[float]] = {"torchjanus": [], "torch.compile, the better": [], "by hand": []}
    for name in names:
        rows = programs[name]["rows"]
        compiled = best_compile(rows) or {}
        for label, row in zip(series, (rows.get("torchjanus", {}), compiled, rows.get("symbolic", {})), strict=True):
            series[label].append(row.get("times_eager") or 0.0)
    figure, axes = pyplot.subplots(figsize=(max(6.0, 0.7 * len(names)), 4))
    for place, (label, values) in enumerate(series.items()):
        axes.bar([number + 0.27 * (place - 1) for number in range(len(names))], values, 0.26, label=label)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_ylabel("times eager's throughput")
    axes.legend()
    figure.tight_layout()
    out = folder / "papers.png"
    figure.savefig(out, dpi=110)
    pyplot.close(figure)
    return [out]

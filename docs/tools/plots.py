"""Draws the plots of the performance page from the records in benchmarks/results: ``python docs/tools/plots.py``.

Each picture notes the digest of the numbers that it shows: a test can tell when a record has been measured anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures"

Row = tuple[Any, ...]


def record(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def speed() -> list[Row]:
    """(program, times eager, the better torch.compile's times eager or None), fastest first."""
    rows = []
    for name, program in record("papers")["programs"].items():
        found = program["rows"]
        others = [row["times_eager"] for key, row in found.items() if key.startswith("compile") and row["times_eager"]]
        rows.append((name, round(found["torchjanus"]["times_eager"], 2), round(max(others), 2) if others else None))
    return sorted(rows, key=lambda row: -row[1])


def share() -> list[Row]:
    """(program, share of matrix products and convolutions in eager's step, times eager), by share."""
    fast = {name: times for name, times, _ in speed()}
    profiled = record("eager_profile")["programs"]
    rows = [
        (p["program"], round(p["products"] / p["step"], 2), fast[p["program"]])
        for p in profiled
        if p["program"] in fast
    ]
    return sorted(rows, key=lambda row: row[1])


def recompilation() -> list[Row]:
    """(program, graphs that torchjanus made in 200 calls, the same of torch.compile)."""
    found: dict[str, dict[str, int]] = {}
    for row in record("recompilation")["rows"]:
        found.setdefault(row["program"], {})[row["system"].split()[0]] = row["compiles"]
    return sorted((name, by["torchjanus"], by["torch.compile"]) for name, by in found.items())


def warm_up() -> list[Row]:
    """(program, seconds to full speed in a first run, the same in a second run)."""
    found: dict[str, dict[bool, float]] = {}
    for row in record("warm_start")["rows"]:
        found.setdefault(row["program"], {})[row["warm"]] = round(row["at_speed"], 1)
    return [(name, by[False], by[True]) for name, by in found.items()]


# -- drawing -------------------------------------------------------------------------------------------------------

OURS, OTHER = "#2f5fb3", "#b98900"


def draw_speed(axes: Any, rows: Sequence[Row]) -> None:
    bars(axes, rows, ("torchjanus", "torch.compile, the better of two ways"))
    axes.set_xscale("log")
    axes.axvline(1.0, color="#444", linewidth=1)
    axes.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    axes.minorticks_off()
    axes.set_xlabel("times eager's throughput (more is better)")


def draw_share(axes: Any, rows: Sequence[Row]) -> None:
    axes.scatter([row[1] for row in rows], [row[2] for row in rows], color=OURS)
    for number, (name, products, times) in enumerate(rows):
        if times > 1.3 or number % 4 == 0:
            axes.annotate(name, (products, times), (5, 4), textcoords="offset points", fontsize=8)
    axes.set_yscale("log")
    axes.axhline(1.0, color="#444", linewidth=1)
    axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.minorticks_off()
    axes.set_xlabel("share of matrix products and convolutions in eager's step")
    axes.set_ylabel("times eager's throughput")


def draw_recompilation(axes: Any, rows: Sequence[Row]) -> None:
    bars(axes, [(name.replace("_", " "), *counts) for name, *counts in rows], ("torchjanus", "torch.compile"))
    axes.set_xlabel("graphs made in 200 calls (fewer is better)")


def draw_warm_up(axes: Any, rows: Sequence[Row]) -> None:
    bars(axes, rows, ("a first run", "a second run, with what the first one has compiled"))
    axes.set_xlabel("seconds from the first step to full speed")


def bars(axes: Any, rows: Sequence[Row], labels: tuple[str, str]) -> None:
    for place, (label, color) in enumerate(zip(labels, (OURS, OTHER), strict=True)):
        at = [number + 0.2 - 0.4 * (1 - place) for number in range(len(rows))]
        axes.barh(at, [row[1 + place] or 0 for row in rows], 0.38, label=label, color=color)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8)


PLOTS: dict[str, tuple[Callable[[], list[Row]], Callable[[Any, Sequence[Row]], None], float]] = {
    "speed": (speed, draw_speed, 5.6),
    "share": (share, draw_share, 4.0),
    "recompilation": (recompilation, draw_recompilation, 5.2),
    "warm-up": (warm_up, draw_warm_up, 2.4),
}


def digest(name: str) -> str:
    """What stands for the numbers that a picture shows."""
    return hashlib.sha256(json.dumps(PLOTS[name][0]()).encode()).hexdigest()[:16]


def main(names: Sequence[str]) -> None:
    matplotlib.rcParams.update(
        {
            "axes.spines.right": False,
            "axes.spines.top": False,
            "font.size": 9,
            "svg.fonttype": "none",
            "svg.hashsalt": "torchjanus",
        }
    )
    for name in names or PLOTS:
        rows, draw, height = PLOTS[name]
        figure, axes = pyplot.subplots(figsize=(7.2, height), layout="constrained")
        draw(axes, rows())
        path = PICTURES / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None, "Description": f"numbers {digest(name)}"})
        pyplot.close(figure)
        print(path.relative_to(ROOT), path.stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1:])

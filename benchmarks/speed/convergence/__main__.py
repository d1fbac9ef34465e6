"""Five trainings, eager and speculated: the same curve against steps, a steeper one against time (JANUS, figure 6).

    python -m benchmarks.speed.convergence [--quick] [--only charlm ppo ...] [--record]

Takes an hour; a few minutes with ``--quick``.

Every training runs in a process of its own, on one thread, from the same seed, with nothing compiled before; contenders
take turns, in one order and then in the other. "replay" is to give eager's losses bit for bit. Compiled graphs round
otherwise, and training makes much of little: how soon "nudged", which is eager with the last bit of one weight changed,
goes another way says how soon that is to be expected. With ``--record`` the outcome joins that of earlier runs in
``benchmarks/results/convergence.json``, and the plot beside it is made anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from rich.console import Console

from benchmarks.record import ROOT
from benchmarks.speed.convergence import PROGRAMS, Recipe
from benchmarks.speed.convergence.contender import CONTENDERS
from benchmarks.speed.convergence.report import faults, keep, plot, rows_of, table

__all__ = ["main", "train"]

QUICK = 40  # steps


def train(recipe: Recipe, kind: str, steps: int, every: int, limit: float, small: bool) -> dict[str, Any]:
    """One run of a contender; its failure, if it fails."""
    arguments = [recipe.name, kind, str(steps), str(every), str(limit), *(["small"] if small else [])]
    with tempfile.TemporaryDirectory() as cache:
        apart = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHJANUS_CACHE": "", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "benchmarks.speed.convergence.contender", *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=os.environ | apart,
                capture_output=True,
                text=True,
                timeout=2 * limit + 120,  # a step is not interrupted, and measuring is not counted
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failure": f"not done after {2 * limit + 120:.0f} s"}
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or ["ended"])[-1][:200]}
    reported: dict[str, Any] = json.loads(done.stdout)
    return reported


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.convergence", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), metavar="PROGRAM")
    parser.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=["eager", "replay", "torchjanus", "nudged"]
    )
    parser.add_argument("--repeats", type=int, default=2, help="runs of each contender that is timed")
    parser.add_argument("--limit", type=float, default=900, help="seconds of one training at most")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} steps in small, once: times say nothing")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    options = parser.parse_args(given)
    kinds = ["eager", *(kind for kind in options.contenders if kind != "eager")]
    console = Console(width=None if sys.stdout.isatty() else 200)
    broken = []
    for name in options.only or PROGRAMS:
        recipe = PROGRAMS[name]
        steps, every = (QUICK, 10) if options.quick else (recipe.steps, recipe.every)
        timed = [kind for kind in kinds if kind != "nudged"]
        repeats = 1 if options.quick else options.repeats
        order = [kind for turn in range(repeats) for kind in timed[:: 1 - 2 * (turn % 2)]]
        runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        for kind in order + [kind for kind in kinds if kind == "nudged"]:
            runs[kind].append(train(recipe, kind, steps, every, options.limit, options.quick))
        if failure := next((run["failure"] for run in runs["eager"] if "failure" in run), ""):
            broken.append(f"{name}: {failure}")
            continue
        rows = rows_of(recipe, runs)
        broken += faults(recipe, rows, runs)
        console.print(table(recipe, rows))
        if options.record:
            console.print(keep(recipe, rows, runs), plot(), sep="\n")
    for fault in broken:
        console.print(fault)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""Where the speed comes from: the papers' programs with parts of torchjanus left out (JANUS, figure 7).

    python -m benchmarks.speed.ablation [--quick] [--only lstm a3c ...] [--record]

Takes an hour; a few minutes with ``--quick``.

Each stage adds to the one before:

- base: one graph for the step, run as ATen calls one after the other. Loops of four repetitions or more are loop nodes.
- +unrolling: loops of a trip count that does not change are unrolled. Others stay loop nodes; recursion, whose trees
  are ever new, runs many calls at a time at each stage.
- +specialisation: Inductor compiles the graph for the types, sizes and values that it assumes. (That they are assumed
  cannot be left out: it is what makes a graph at all. JANUS has a graph for tensors of unknown types and shapes, too.)
- +parallel: the same on two threads. JANUS runs operations side by side that do not wait for each other; here the
  threads share each compiled loop and each operation of ATen. "eager, 2 threads" is what they do without torchjanus.

Loops are switched in torchjanus's insides; the rest are options of ``speculate``. Contenders take turns as in
``benchmarks.speed.papers``.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.record import RESULTS, machine
from benchmarks.speed.papers.contender import Contender, serve
from benchmarks.speed.papers.contest import Row, contest, rows_of
from benchmarks.speed.papers.report import table

__all__ = ["PROGRAMS", "STAGES", "Staged", "keep", "main", "plot", "set_loops"]

PROGRAMS = ("lenet", "lstm", "lm", "treelstm", "a3c")
QUICK = ("lstm", "a3c")


@dataclass(frozen=True)
class Stage:
    """What is switched on. ``executor``: None is plain Python. ``least``: repetitions that are worth a loop node."""

    executor: str | None = None
    least: int = sys.maxsize
    threads: int = 1


STAGES = {
    "eager": Stage(),
    "base": Stage("replay", least=4),
    "+unrolling": Stage("replay"),
    "+specialisation": Stage("inductor"),
    "+parallel": Stage("inductor", threads=2),
    "eager, 2 threads": Stage(threads=2),
}


def set_loops(least: int) -> None:
    """From now on loops of so many repetitions are loop nodes, however little there is in them, and shorter ones are
    not."""
    # Insides: imported only where they are switched.
    from torchjanus.graph.loops.roll import roll  # noqa: PLC0415
    from torchjanus.graph.lowering import lower  # noqa: PLC0415

    roll.WORTH = 0
    lower.roll = functools.partial(roll.roll, least=least)


class Staged(Contender):
    """A program at one of the stages."""

    def __init__(self, name: str, kind: str, small: bool = False) -> None:
        import torch  # noqa: PLC0415 - after OMP_NUM_THREADS is set

        import torchjanus  # noqa: PLC0415

        super().__init__(name, "eager", small)
        stage, self.kind = STAGES[kind], kind
        torch.set_num_threads(stage.threads)
        if stage.executor is not None:
            set_loops(stage.least)
            self.janus = self.step = torchjanus.speculate(self.step, executor=stage.executor)


def keep(name: str, rows: Sequence[Row], file: Path) -> Path:
    """Put a program's outcome among the others."""
    programs = json.loads(file.read_text())["programs"] if file.exists() else {}
    programs[name] = {"machine": machine("cpu"), "rows": {row.contender: asdict(row) for row in rows}}
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"command": ["python", "-m", "benchmarks.speed.ablation"], "programs": programs}
    file.write_text(json.dumps(content, indent=1) + "\n")
    return file


def plot(file: Path) -> Path:
    """Bars of the ratios to eager, stage by stage, as a PNG beside the file."""
    import matplotlib  # noqa: PLC0415 - only needed here, and slow to import

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    programs: dict[str, Any] = json.loads(file.read_text())["programs"]
    names = [name for name in PROGRAMS if name in programs]
    figure, axes = pyplot.subplots(figsize=(7, 3.2))
    width = 0.8 / len(STAGES)
    for place, stage in enumerate(STAGES):
        ratios = [programs[name]["rows"].get(stage, {}).get("times_eager") or 0.0 for name in names]
        middle = place - (len(STAGES) - 1) / 2
        axes.bar([number + width * middle for number in range(len(names))], ratios, width, label=stage)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("times eager's throughput")
    axes.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    out = file.with_suffix(".png")
    figure.savefig(out, dpi=110)
    pyplot.close(figure)
    return out


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.ablation", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--repetitions", type=int, default=10, help="blocks of each stage")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the warm-up of a stage")
    parser.add_argument("--quick", action="store_true", help="few programs, in small: times say little")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    options = parser.parse_args(given)
    repetitions, limit = (4, 120.0) if options.quick else (options.repetitions, options.limit)
    console = Console(width=None if sys.stdout.isatty() else 200)
    speculated = tuple(kind for kind, stage in STAGES.items() if stage.executor is not None)
    file = RESULTS / ("ablation_quick.json" if options.quick else "ablation.json")
    for name in options.only or (QUICK if options.quick else PROGRAMS):
        outcomes = contest(
            name,
            repetitions,
            limit,
            limit,
            tuple(options.stages),
            options.quick,
            "benchmarks.speed.ablation",
            speculated,
        )
        rows = rows_of(name, outcomes)
        console.print(table(rows))
        if options.record:
            console.print(keep(name, rows, file), plot(file), sep="\n")
    return 0


if __name__ == "__main__":
    # A contender is started with the names of a program and a stage, and no options.
    if len(sys.argv) > 2 and sys.argv[2] in STAGES and sys.argv[1] in PROGRAMS:
        serve(Staged)
    sys.exit(main())

"""Programs that change from call to call: how often they are compiled, and how many of their calls are served.

    python -m benchmarks.robustness.recompilation [--record]

Takes ten minutes; two with ``--alone``, which leaves torch.compile out.

Each program is a whole step that is called 200 times, with values, types, containers, sizes or paths that change. The
output is the compilations, the calls that ran as a graph, and whether results, texts and parameters are eager's. Of
torch.compile a call counts as run compiled if at least one of its graphs ran in it; how many ran per call says how far
the step was broken up.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import random
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor

import torchjanus
from benchmarks.programs import changing_loops, changing_steps
from benchmarks.programs.changing_steps import Made
from benchmarks.record import RESULTS, revision, write

__all__ = ["CALLS", "Compared", "Run", "compared", "main", "run"]

PROGRAMS = (*changing_steps.PROGRAMS, *changing_loops.PROGRAMS)
CALLS = 200
MOST_COMPILES = 3
LEAST_SERVED = 0.9


@dataclass
class Run:
    """What one system made of a program."""

    results: list[Any] = field(default_factory=list)
    text: str = ""
    trained: list[Tensor] = field(default_factory=list)
    compiles: int = 0
    served: int = 0  # calls that ran as a graph
    graphs: int = 0  # that ran in all calls together
    seconds: float = 0.0
    note: str = ""


class Counting:
    """A backend of torch.compile's that counts what it compiles, and the runs of that."""

    def __init__(self, backend: str) -> None:
        self._compile = torch._dynamo.lookup_backend(backend)
        self.compiles = 0
        self.runs = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.compiles += 1
        made = self._compile(module, inputs)

        def counted(*given: Any) -> Any:
            self.runs += 1
            return made(*given)

        return counted


def run(make: Callable[[int], Made], system: str, calls: int = CALLS) -> Run:
    """All calls of a program under ``"eager"``, ``"torchjanus"`` with the name of an executor, or ``"torch.compile"``
    with that of a backend."""
    torch.manual_seed(0)
    random.seed(0)
    step, given, trained = make(calls)
    kind, _, name = system.partition(" ")
    janus: torchjanus.Speculated[..., Any] | None = None
    backend: Counting | None = None
    if kind == "torchjanus":
        janus = step = torchjanus.speculate(step, executor=name)
    elif kind == "torch.compile":
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        backend = Counting(name)
        step = torch.compile(step, backend=backend)
    out = Run(trained=trained)
    printed = io.StringIO()
    began = time.perf_counter()
    with contextlib.redirect_stdout(printed):
        for call in given:
            before = 0 if backend is None else backend.runs
            out.results.append(step(*call))
            out.served += backend is not None and backend.runs > before
    out.seconds = time.perf_counter() - began
    out.text = printed.getvalue()
    if janus is not None:
        counts = janus.statistics()
        out.compiles, out.served, out.graphs = counts.compiles, counts.speculated, counts.speculated
        out.note = janus.given_up
    if backend is not None:
        out.compiles, out.graphs = backend.compiles, backend.runs
        breaks = len(torch._dynamo.utils.counters["graph_break"])
        out.note = f"{breaks} reason{'s' * (breaks != 1)} for breaking the graph" if breaks else ""
    return out


@dataclass(frozen=True)
class Compared:
    """One system beside eager."""

    program: str
    system: str
    calls: int
    compiles: int
    served: int
    graphs_per_call: float
    right: bool  # results, text and parameters are eager's, up to rounding
    exact: bool  # to the last bit
    seconds: float
    note: str = ""

    @property
    def reached(self) -> bool:
        """Whether the target is."""
        return self.right and self.compiles <= MOST_COMPILES and self.served >= LEAST_SERVED * self.calls


def compared(name: str, system: str, eager: Run, other: Run) -> Compared:
    """A run beside eager's."""
    same_text = eager.text == other.text
    pairs = list(zip(eager.trained, other.trained, strict=True))
    return Compared(
        name,
        system,
        len(eager.results),
        other.compiles,
        other.served,
        round(other.graphs / max(len(eager.results), 1), 2),
        same_text
        and all(abs(one - two) <= 1e-3 * (1 + abs(one)) for one, two in zip(eager.results, other.results, strict=True))
        and all(torch.allclose(one, two, rtol=1e-2, atol=1e-3) for one, two in pairs),
        same_text and eager.results == other.results and all(torch.equal(one, two) for one, two in pairs),
        round(other.seconds, 3),
        other.note,
    )


def table(rows: list[Compared]) -> Table:
    shown = Table(box=SIMPLE)
    for head, justify in (
        ("program", "left"),
        ("system", "left"),
        ("compilations", "right"),
        ("calls served", "right"),
        ("graphs a call", "right"),
        ("losses", "left"),
        ("seconds", "right"),
        ("target", "left"),
        ("note", "left"),
    ):
        shown.add_column(head, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        shown.add_row(
            row.program,
            row.system,
            str(row.compiles),
            f"{row.served} of {row.calls}",
            f"{row.graphs_per_call:.2f}",
            "equal" if row.exact else "as eager's" if row.right else "WRONG",
            f"{row.seconds:.1f}",
            "reached" if row.reached else "missed",
            row.note[:80] or "-",
        )
    return shown


def joined(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """These rows, and those of an earlier record for other programs, in the programs' order."""
    path, measured = RESULTS / "recompilation.json", {row["program"] for row in rows}
    earlier = json.loads(path.read_text()) if path.exists() else {"rows": []}
    kept = [
        {"revision": earlier["machine"]["revision"], **row} for row in earlier["rows"] if row["program"] not in measured
    ]
    order = [make.__name__ for make in PROGRAMS]
    return sorted(
        (row for row in (*kept, *rows) if row["program"] in order), key=lambda row: order.index(row["program"])
    )


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", default="replay", help="torchjanus's: the counts are the same with all of them")
    parser.add_argument("--backend", default="inductor" if shutil.which("c++") else "aot_eager")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--only", default="", help="programs whose name holds this")
    parser.add_argument("--alone", action="store_true", help="leave torch.compile out")
    parser.add_argument(
        "--record", action="store_true", help="keep the outcome in benchmarks/results, with earlier ones"
    )
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("torch", "torchjanus"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    systems = [f"torchjanus {options.executor}"]
    systems += [] if options.alone else [f"torch.compile {options.backend}"]
    rows: list[Compared] = []
    for make in PROGRAMS:
        if options.only in make.__name__:
            eager = run(make, "eager", options.calls)
            rows += [compared(make.__name__, system, eager, run(make, system, options.calls)) for system in systems]
    Console(width=None if sys.stdout.isatty() else 200).print(table(rows))
    reached = {system: sum(row.reached for row in rows if row.system == system) for system in systems}
    count = len(rows) // len(systems)
    print(
        f"\nAt most {MOST_COMPILES} compilations, {LEAST_SERVED:.0%} of the calls served, and right: "
        + ", ".join(f"{system} in {number} of {count} programs" for system, number in reached.items())
    )
    if options.record:
        reported = joined([{**asdict(row), "reached": row.reached, "revision": revision()} for row in rows])
        content = {
            "programs": len(reported) // len(systems),
            "reached": {name: sum(row["reached"] for row in reported if row["system"] == name) for name in systems},
            "rows": reported,
        }
        print(write("recompilation", sys.argv[1:] if given is None else given, "cpu", content))
    return 0 if reached[systems[0]] == count else 1


if __name__ == "__main__":
    sys.exit(main())

"""What learning a step costs, second by second: throughput relative to eager from the first call on.

    python -m benchmarks.cost.learning_cost [--only k_means lora ...] [--seconds 15] [--record]

Takes an hour: for each of 30 programs so many seconds of eager calls and as many speculated ones.

Each program runs in a process of its own, on one thread: speculated with ``executor="auto"``, and as it is. Both make
the same calls, by turns in short blocks, so that both have the same neighbours. A second is one of the speculated
calls' own time. The first call (imports, first of all) is reported by itself, and so is the first second after it, in
which learning is free. The throughput of a second is what eager took for its calls by what these took. Where a call
takes more than a tenth of a second in eager, ten calls stand for a second.

Time is that of the calling thread, which leaves out what a busy machine gives to others, in the step's own account as
well; between calls compilations in the background are waited for until they have had as much of the processor as the
calls since they began, as beside an idle core. With ``--clock wall`` all is by the wall clock and nothing is waited
for: for a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import torchjanus
from benchmarks.programs.learning import PROGRAMS, Call
from benchmarks.record import RESULTS, revision, write
from torchjanus.execute.processes.background import busy

__all__ = ["Cost", "Window", "main", "measure", "windows"]

BLOCK = 0.005  # seconds of eager between two looks at the clock: that of a thread takes long to read
SINGLE = 100  # calls that are timed by themselves first
LEAST = 0.85  # of eager's throughput, in any second after the first
LOOK = 0.05  # seconds between two looks at what goes on in the background
CLOCKS = {"thread": time.thread_time, "wall": time.perf_counter}


class Block(NamedTuple):
    """Some calls: what they took, and what they took in eager."""

    calls: int
    ours: float
    theirs: float


@dataclass(frozen=True)
class Window:
    """One second. ``throughput``: relative to eager's."""

    calls: int
    throughput: float


@dataclass(frozen=True)
class Cost:
    """One program."""

    program: str
    eager_ms: float  # the mean call
    first_call: float  # seconds
    curve: list[Window]  # each second after that
    least: float  # throughput in a second after the first one
    mean: float  # over all calls but the first
    end: float  # over the last third of the seconds
    first_gain: float | None  # seconds until the first call by a graph, of the calls' own time
    watched: int
    served: int
    calls: int
    right: bool  # results are eager's, up to rounding
    overhead: float  # the share of eager's time after the first second, by the step's own account
    given_up: str

    @property
    def good(self) -> bool:
        """Whether no second after the first is below the target."""
        return self.right and self.least >= LEAST


def windows(blocks: Sequence[Block], length: float) -> list[Window]:
    """Blocks of calls in windows of so many seconds of ``ours``. The last one, which may be short, is part of the one
    before it."""
    bounds, taken = [0], 0.0
    for number, block in enumerate(blocks):
        taken += block.ours
        if taken >= length:
            bounds.append(number + 1)
            taken = 0.0
    if bounds[-1] < len(blocks):
        bounds = [*(bounds[:-1] if len(bounds) > 1 else bounds), len(blocks)]
    parts = [blocks[low:high] for low, high in pairwise(bounds)]
    return [Window(sum(block.calls for block in part), round(throughput(part), 3)) for part in parts]


def throughput(blocks: Sequence[Block]) -> float:
    """Relative to eager's."""
    return sum(block.theirs for block in blocks) / sum(block.ours for block in blocks)


def in_background() -> float:
    """Seconds of the processor that other threads of this process and the processes that it has begun have had, these
    where the system shows them."""
    shown: dict[int, tuple[int, int]] = {}  # parents and ticks, those of ended children as well
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            reported = path.read_text().rpartition(")")[2].split()
            shown[int(path.parent.name)] = int(reported[1]), sum(map(int, reported[11:15]))
    ticks, parents = 0, {os.getpid()}
    while parents:
        parents = {process for process, (parent, _) in shown.items() if parent in parents}
        ticks += sum(shown[process][1] for process in parents)
    times = os.times()
    ended = times.children_user + times.children_system
    return time.process_time() - time.thread_time() + ended + ticks / os.sysconf("SC_CLK_TCK")


class Beside:
    """Gives compilations in the background as much of the processor as the calls, as an idle core does."""

    def __init__(self) -> None:
        self._begun: tuple[float, float] | None = None  # what calls, and what compilations, had had by then
        self._looked = 0.0

    def keep_up(self, calls: float) -> None:
        """Return when they have. ``calls``: seconds that the calls have taken so far."""
        if not busy():
            self._begun = None
        elif self._begun is None:
            self._begun = calls, in_background()
        elif calls - self._looked >= LOOK:
            self._looked = calls
            while busy() and in_background() - self._begun[1] < calls - self._begun[0]:
                time.sleep(LOOK)


def close(one: Any, other: Any) -> bool:
    """Whether two results differ by rounding only, which training makes larger."""
    return one == other or math.isclose(one, other, rel_tol=1e-2, abs_tol=1e-2) or (one != one and other != other)


def measure(name: str, seconds: float, clock: Callable[[], float]) -> Cost:
    """One program, in this process, for so many seconds of eager time."""
    make = next(make for make in PROGRAMS if make.__name__ == name)

    def made() -> tuple[Callable[..., Any], Iterator[Call]]:
        torch.manual_seed(0)
        random.seed(0)
        return make()

    twin, others = made()
    for call in islice(others, 2):  # caches: eager is not to pay for being first
        twin(*call)
    (job, calls), (twin, others) = made(), made()
    step = torchjanus.speculate(job, executor="auto")
    step._learning.budget.clock = clock
    beside, spent = Beside(), 0.0  # seconds of the speculated calls
    blocks: list[Block] = []
    first_gain, right, taken, count = None, True, 0.0, 1
    while taken < seconds:
        given = [*islice(others, count)]
        begun = clock()
        expected = [twin(*call) for call in given]
        theirs = clock() - begun
        taken += theirs
        given = [*islice(calls, count)]
        begun = clock()
        results = [step(*call) for call in given]
        blocks.append(Block(count, clock() - begun, theirs))
        spent += blocks[-1].ours
        if clock is CLOCKS["thread"]:
            beside.keep_up(spent)
        right = right and all(map(close, results, expected))
        if first_gain is None and step.statistics().speculated:
            first_gain = sum(block.ours for block in blocks)
        if len(blocks) >= SINGLE:
            count = max(1, round(BLOCK * sum(block.calls for block in blocks) / taken))
    eager = taken / sum(block.calls for block in blocks)
    curve = windows(blocks[1:], max(1.0, 10 * eager))
    later = curve[1:] or curve
    counts = step.statistics()
    last = later[-max(1, len(later) // 3) :]
    return Cost(
        name, round(1e3 * eager, 3), round(blocks[0].ours, 2), curve, min(window.throughput for window in later),
        round(throughput(blocks[1:]), 3), round(statistics.fmean(window.throughput for window in last), 3),
        None if first_gain is None else round(first_gain, 2), counts.watched, counts.speculated, counts.calls, right,
        round(step.overhead.share, 4), step.given_up,
    )  # fmt: skip


def table(rows: Sequence[Cost]) -> Table:
    """For the terminal."""
    shown = Table(box=SIMPLE)
    heads = (
        "program", "eager (ms)", "1st call (s)", "1st second", "least after", "mean", "at the end", "overhead",
        "1st gain (s)", "watched", "served", "calls", "right", "target",
    )  # fmt: skip
    for head in heads:
        shown.add_column(head, justify="left" if head == "program" else "right")
    for row in rows:
        shown.add_row(
            row.program, f"{row.eager_ms:.2f}", f"{row.first_call:.2f}", f"{row.curve[0].throughput:.2f}",
            f"{row.least:.2f}", f"{row.mean:.2f}", f"{row.end:.2f}", f"{row.overhead:.1%}",
            "-" if row.first_gain is None else f"{row.first_gain:.1f}", str(row.watched), str(row.served),
            str(row.calls), "yes" if row.right else "NO", "reached" if row.good else "missed",
        )  # fmt: skip
    return shown


def in_process(name: str, seconds: float, clock: str) -> Cost:
    """One program, in a process of its own that finds nothing kept."""
    command = [sys.executable, "-m", "benchmarks.cost.learning_cost", "--child", name, "--seconds", str(seconds)]
    command += ["--clock", clock]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "TORCHJANUS_CACHE": ""}
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    reported = json.loads(done.stdout.splitlines()[-1])
    return Cost(**{**reported, "curve": [Window(**window) for window in reported["curve"]]})


def keep(rows: Sequence[Cost], clock: str, arguments: Sequence[str]) -> Path:
    """Write the record. Programs that were not measured now stay in it as they are: each says of which revision it is,
    and how it was measured."""
    path = RESULTS / "learning_cost.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    how = {"revision": revision(), "arguments": [*arguments]}
    found = {row["program"]: row for row in before}
    found |= {row.program: {**asdict(row), "good": row.good, **how} for row in rows}
    reported = [found[make.__name__] for make in PROGRAMS if make.__name__ in found]
    content = {"clock": clock, "least": LEAST, "reached": sum(row["good"] for row in reported), "rows": reported}
    return write("learning_cost", arguments, "cpu", content)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [make.__name__ for make in PROGRAMS]
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--seconds", type=float, default=15.0, help="of eager's time")
    parser.add_argument("--clock", choices=CLOCKS, default="thread")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--record", action="store_true", help="keep the outcomes in benchmarks/results, one by one")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    if options.child:
        print(json.dumps(asdict(measure(options.child, options.seconds, CLOCKS[options.clock]))))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 200)
    rows = []
    for name in options.only:
        rows.append(in_process(name, options.seconds, options.clock))
        curve = " ".join(f"{window.throughput:.2f}" for window in rows[-1].curve)
        print(f"{name}: {curve}", flush=True)
        if options.record:
            keep(rows, options.clock, sys.argv[1:] if given is None else given)
    console.print(table(rows))
    reached = sum(row.good for row in rows)
    print(f"No second after the first below {LEAST} of eager: {reached} of {len(rows)} programs")
    return 0 if reached == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""How much memory a program takes at most in each phase of its life, beside eager.

    python -m benchmarks.cost.memory [--programs resnet50 gpt2 ...] [--record]

Takes half an hour.

Each program is run four times in processes of its own: as it is and speculated, once for the resident memory of the
process (the peak of each call, which Linux counts anew on request) and once for the bytes of tensors that are alive
at most (as torch's allocator reports them to its profiler, which would itself show in the resident memory). Calls
belong to the phase in which they were made: watched, by replay before anything was compiled, on trial, and settled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.record import ROOT, write
from benchmarks.speed.papers import PROGRAMS
from benchmarks.speed.papers.contender import Contender
from torchjanus.execute.memory import give_back

__all__ = ["Peaks", "main"]

CHOSEN = ("resnet50", "bert_qa", "gpt2", "music_transformer", "pix2pix", "lstm", "dcgan", "lenet")
PHASES = ("watched", "replay", "trial", "settled")
MIB = 1 << 20


@dataclass
class Peaks:
    """One run of one program: by phase, the highest peak (MiB) and the longest call (s)."""

    program: str
    kind: str  # eager or torchjanus
    counted: str  # rss or tensors
    imported: float  # MiB, before the program was made
    made: float  # and after
    peaks: dict[str, float]
    seconds: dict[str, float]
    notes: list[str]


# -- one run, in a process of its own ----------------------------------------------------------------------------------


def resident(field: str) -> float:
    """A line of /proc/self/status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


@contextlib.contextmanager
def resident_peak() -> Iterator[Callable[[], float]]:
    """The most memory that the process had while the block ran. What was freed before it goes back to the system."""
    give_back()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    yield lambda: resident("VmHWM")


@contextlib.contextmanager
def tensors_peak() -> Iterator[Callable[[], float]]:
    """The most bytes of tensors that were alive while the block ran. The reporter knows only what was allocated under
    it, so everything else runs under it, too."""
    found = 0.0
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        yield lambda: found
    found = max(totals(profile.kineto_results.experimental_event_tree()), default=0) / MIB


def totals(events: Sequence[Any]) -> Iterator[int]:
    """The bytes alive after each allocation."""
    pending = list(events)
    while pending:
        event = pending.pop()
        pending += event.children
        if event.name == "[memory]":
            yield event.extra_fields.total_allocated


def phase_of(contender: Contender, step: Callable[[], None]) -> str:
    """Make a call, and say in which phase it was made."""
    janus = contender.janus
    if janus is None:
        step()
        return "settled"
    engines = [engine for route in janus._learning.routes for engine in route.engines]
    trying = any(engine.trying for engine in engines)
    compiled = any(engine.compiled is not None for engine in engines)
    before = janus.statistics()
    step()
    after = janus.statistics()
    if after.watched > before.watched:
        return "watched"
    if after.speculated == before.speculated:
        return "python"
    if trying:
        return "trial"
    return "settled" if compiled or contender.settled() else "replay"


def serve(name: str, kind: str, counted: str, calls: int, limit: float) -> Peaks:
    """Run a program until its executors are chosen, and so many repetitions of calls more."""
    measured = resident_peak if counted == "rss" else tensors_peak
    torch.set_num_threads(1)
    imported = resident("VmRSS")
    with measured() as peak:
        contender = Contender(name, kind)
    made = peak()
    peaks: dict[str, float] = {}
    seconds: dict[str, float] = {}
    begun, left = time.perf_counter(), calls
    while left:
        for _ in range(PROGRAMS[name].period * 2):
            with measured() as peak:
                took = [0.0]

                def step(took: list[float] = took) -> None:
                    batch = next(contender.program.batches)
                    started = time.perf_counter()
                    contender.step(*batch)
                    took[0] = time.perf_counter() - started

                phase = phase_of(contender, step)
            peaks[phase] = max(peaks.get(phase, 0.0), peak())
            seconds[phase] = max(seconds.get(phase, 0.0), took[0])
        if contender.settled() or time.perf_counter() - begun > limit:
            left -= 1
        else:
            contender.settle(limit)
    notes = contender.report().get("notes", [])
    return Peaks(name, kind, counted, imported, made, peaks, seconds, notes)


# -- all runs ----------------------------------------------------------------------------------------------------------


def measure(name: str, kind: str, counted: str, options: argparse.Namespace, cache: str) -> Peaks:
    """One run in another process."""
    command = [sys.executable, "-m", "benchmarks.cost.memory", "--one", name, kind, counted]
    command += ["--calls", str(options.calls), "--limit", str(options.limit)]
    kept = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHJANUS_CACHE": f"{cache}/kept", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=os.environ | kept, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} {kind} {counted}: {done.stderr[-2000:]}")
    row = Peaks(**json.loads(done.stdout.splitlines()[-1]))
    Console(stderr=True).print(row)
    return row


def table(rows: Sequence[Peaks]) -> Table:
    """For the terminal: peaks as they are, and as multiples of eager's."""
    shown = Table(box=SIMPLE)
    for head in ("program", "counted", "eager", *PHASES, "longest call", "in steps"):
        shown.add_column(head, justify="left" if head in ("program", "counted") else "right")
    eager = {(row.program, row.counted): row for row in rows if row.kind == "eager"}
    for row in rows:
        if row.kind == "eager":
            continue
        other = eager[row.program, row.counted]
        base, step = other.peaks["settled"], other.seconds["settled"]
        cells = [f"{row.peaks[p]:.0f} ({row.peaks[p] / base:.2f})" if p in row.peaks else "-" for p in PHASES]
        unwatched = {phase: seconds for phase, seconds in row.seconds.items() if phase != "watched"}
        longest = max(unwatched, key=unwatched.__getitem__)
        shown.add_row(
            row.program, row.counted, f"{base:.0f}", *cells, f"{unwatched[longest]:.2f} s {longest}",
            f"{unwatched[longest] / step:.1f}",
        )  # fmt: skip
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost.memory", description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(CHOSEN), metavar="PROGRAM")
    parser.add_argument("--counted", nargs="+", choices=("rss", "tensors"), default=["rss", "tensors"])
    parser.add_argument("--calls", type=int, default=3, help="repetitions of calls when all executors are chosen")
    parser.add_argument("--limit", type=float, default=600, help="seconds until then")
    parser.add_argument("--cache", help="a folder in which compiled graphs are kept between runs")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    parser.add_argument("--one", nargs=3, metavar=("PROGRAM", "KIND", "COUNTED"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        answers, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # programs print
        name, kind, counted = options.one
        row = serve(name, kind, counted, options.calls, options.limit)
        os.write(answers, (json.dumps(asdict(row)) + "\n").encode())
        os._exit(0)  # compilers' workers do not always end in good time
    rows: list[Peaks] = []
    with tempfile.TemporaryDirectory() as temporary:
        cache = options.cache or temporary
        for name in options.programs:
            for counted in options.counted:
                rows += [measure(name, kind, counted, options, cache) for kind in ("eager", "torchjanus")]
            Console().print(table([row for row in rows if row.program == name]))
    Console().print(table(rows))
    if options.record:
        given = [f"--programs={' '.join(options.programs)}", f"--calls={options.calls}"]
        write("memory", given, "cpu", {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()

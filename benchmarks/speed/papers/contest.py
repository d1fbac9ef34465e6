"""One program, all contenders: processes that take turns, and what is made of their times.

Every contender makes the same calls on the same batches, from the same parameters. First each warms up alone, so that
nobody's compilation disturbs another's first calls; then they make blocks of calls in turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.record import ROOT
from benchmarks.speed.papers import PROGRAMS
from benchmarks.speed.papers.by_hand import BY_HAND
from benchmarks.speed.papers.contender import CONTENDERS

__all__ = ["Lost", "Outcome", "Row", "contest", "rows_of"]

BLOCK = 0.25  # seconds that a block of eager calls takes at least
# Seconds of eager's calls that a warm-up has at least, as rare ways are to be met before it ends, and at most: all
# others make the same calls, to be at the same batches.
LEAST, MOST = 3.0, 30.0
# Calls that it may have however long they take: of long ones one in ten is on trial, and four graphs were seen to need
# 24 of those.
TRIED = 400
FAST = 1.25  # a call is at full speed if it takes at most so many times what its kind takes in the end


@dataclass
class Outcome:
    """What one contender did. ``warm`` and ``times`` are seconds of calls, whose kind is their number by the period."""

    kind: str
    warm: list[float] = field(default_factory=list)
    waited: list[tuple[int, float]] = field(default_factory=list)  # before which call, and for how long
    served: list[bool] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    reported: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    settled: int | None = None  # calls until its executors were chosen, if they were before the warm-up ended


@dataclass(frozen=True)
class Row:
    """One contender beside eager. Milliseconds and ratios of medians; None where there is nothing to tell."""

    program: str
    contender: str
    step: float | None
    times_eager: float | None
    low: float | None  # quartiles of the ratio over the blocks
    high: float | None
    first_fast: float | None  # seconds from the first call to the end of the first one at full speed
    longest: float | None  # of the calls of the warm-up
    stall: float | None  # seconds of the warm-up beyond eager's
    peak: float | None  # MiB
    difference: float | None  # the largest of a loss from eager's, relative to the largest loss
    graphs: str
    served: float | None  # share of the timed calls
    note: str = ""
    settled: int | None = None  # calls until its executors were chosen


class Lost(Exception):
    """A contender does not answer."""


class Child:
    """A contender's process."""

    def __init__(self, program: str, kind: str, cache: str, small: bool, module: str) -> None:
        command = [sys.executable, "-m", module, program, kind]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the object
        kept = f"{cache.removesuffix('_again')}_kept"
        apart = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHJANUS_CACHE": kept, "PYTHONPATH": str(ROOT)}
        self.made = subprocess.Popen(
            command + (["small"] if small else []), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            cwd=ROOT, env=os.environ | apart,
        )  # fmt: skip

    def ask(self, command: str, limit: float) -> dict[str, Any]:
        """Raises Lost."""
        assert self.made.stdin is not None
        try:
            self.made.stdin.write(f"{command}\n".encode())
            self.made.stdin.flush()
        except OSError:
            raise Lost(self.last_words()) from None
        return self.answer(limit)

    def answer(self, limit: float) -> dict[str, Any]:
        out = self.made.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], limit)
        if not ready:
            self.end()
            raise Lost(f"not done after {limit:.0f} s")
        line = out.readline()
        if not line:
            raise Lost(self.last_words())
        content: dict[str, Any] = json.loads(line)
        return content

    def last_words(self) -> str:
        self.made.wait(timeout=10)
        self.log.seek(0)
        lines = [line for line in self.log.read().splitlines() if line.strip()]
        return next((line for line in reversed(lines) if "Error" in line or "Exception" in line), "ended")[:200]

    def end(self) -> None:
        self.made.kill()
        self.made.wait()
        for stream in (self.made.stdin, self.made.stdout, self.log):
            if stream is not None:
                with contextlib.suppress(OSError):  # what could not be sent any more
                    stream.close()


def contest(
    name: str,
    repetitions: int,
    limit: float,
    patience: float,
    kinds: tuple[str, ...] = CONTENDERS,
    small: bool = False,
    module: str = "benchmarks.speed.papers.contender",
    patient: tuple[str, ...] = ("torchjanus", "torchjanus again"),
) -> list[Outcome]:
    """All outcomes, eager's first. ``limit``: seconds for the warm-up of each contender; ``patience``: for what is
    written by hand, and for those that are ``patient``, which go on without their compiler if that takes longer.
    ``module`` runs one contender. Raises Lost where eager takes longer."""
    recipe = PROGRAMS[name]
    kinds = tuple(kind for kind in kinds if kind != "symbolic" or name in BY_HAND)
    outcomes = {kind: Outcome(kind) for kind in ("eager", *(k for k in kinds if k != "eager"))}
    children: dict[str, Child] = {}
    warm = max(12, 2 * recipe.period + 2)
    count, least, most = recipe.period, warm, warm
    with tempfile.TemporaryDirectory() as cache:
        try:
            for kind, outcome in outcomes.items():
                child = children[kind] = Child(name, kind, os.path.join(cache, kind.replace(" ", "_")), small, module)
                try:
                    child.answer(120)
                    if kind in patient:
                        settle(child, outcome, warm, least, most, recipe.period, patience)
                    else:
                        longest = patience if kind == "symbolic" else limit
                        take(outcome, child.ask(f"calls {warm}", longest), warm=True)
                except Lost as lost:
                    outcome.failure = str(lost)
                    child.end()
                    del children[kind]
                if kind == "eager":
                    if outcome.failure:
                        raise Lost(f"{name}: eager is {outcome.failure}, so there is nothing to compare with")
                    median = statistics.median(outcome.warm[2:])
                    count = recipe.period * max(1, round(BLOCK / (median * recipe.period)))
                    least = max(warm, round(LEAST / median))
                    most = max(warm, round(MOST / median), TRIED)
            # Some have made more calls than others by now: each sees the same batches in the end.
            reached = max(len(outcome.warm) for kind, outcome in outcomes.items() if kind in children)
            for kind in list(children):
                outcome = outcomes[kind]
                lacking = reached - len(outcome.warm)
                # As many calls as the patient made in their time: those that are a little slower need more.
                time_left = max(limit, 3 * lacking * statistics.median(outcome.warm))
                ask(children, outcome, f"calls {lacking}", time_left, warm=True)
            for turn in range(repetitions):
                order = list(children)
                for kind in order[turn % len(order) :] + order[: turn % len(order)]:
                    ask(children, outcomes[kind], f"calls {count}", limit)
            for kind, child in children.items():
                outcomes[kind].reported = child.ask("report", 60)
        finally:
            for child in children.values():
                child.end()
    return list(outcomes.values())


def settle(child: Child, outcome: Outcome, count: int, least: int, most: int, period: int, limit: float) -> None:
    """The first calls, ``least`` of them, and up to ``most`` if it takes more until the executors are chosen. Raises
    Lost."""
    began = time.perf_counter()
    take(outcome, child.ask(f"calls {count}", limit), warm=True)
    while len(outcome.warm) < most and (left := limit - (time.perf_counter() - began)) > 0:
        waited = child.ask(f"settle {left}", left + 30)
        outcome.waited.append((len(outcome.warm), waited["seconds"]))
        if waited["settled"] and len(outcome.warm) >= least:
            outcome.settled = len(outcome.warm)
            break
        take(outcome, child.ask(f"calls {max(period, 4)}", limit), warm=True)


def ask(children: dict[str, Child], outcome: Outcome, command: str, limit: float, warm: bool = False) -> None:
    try:
        take(outcome, children[outcome.kind].ask(command, limit), warm)
    except Lost as lost:
        outcome.failure = str(lost)
        children.pop(outcome.kind).end()


def take(outcome: Outcome, answer: dict[str, Any], warm: bool = False) -> None:
    if warm:
        outcome.warm += answer["seconds"]
    else:
        outcome.times += answer["seconds"]
        outcome.served += answer["served"]
        outcome.blocks.append(sum(answer["seconds"]))
    outcome.losses += answer["losses"]


# -- what is made of it ------------------------------------------------------------------------------------------------


def rows_of(name: str, outcomes: list[Outcome]) -> list[Row]:
    """A row for each contender."""
    return [row_of(name, outcome, outcomes[0], PROGRAMS[name].period) for outcome in outcomes]


def row_of(name: str, outcome: Outcome, eager: Outcome, period: int) -> Row:
    graphs = ""
    reported = outcome.reported
    if "entries" in reported:
        graphs = f"{reported['entries']} entries"
    elif "graphs" in reported:
        graphs = f"{reported['graphs']} graphs, {reported['breaks']} breaks"
    note = outcome.failure or reported.get("given_up", "") or "; ".join(sorted(set(reported.get("runs", []))))
    if not outcome.blocks or outcome.failure or eager.failure:
        return Row(name, outcome.kind, *(None,) * 9, graphs=graphs, served=None, note=note)
    ratios = [one / other for one, other in zip(eager.blocks, outcome.blocks, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    final, theirs = medians(outcome, period), medians(eager, period)
    kinds = [number % period for number in range(len(outcome.warm))]
    fast = next((n for n, t in enumerate(outcome.warm) if t <= FAST * final[kinds[n]]), None)
    first_fast = None
    if fast is not None:
        first_fast = sum(outcome.warm[: fast + 1]) + sum(s for before, s in outcome.waited if before <= fast)
    stall = sum(max(t - theirs[k], 0.0) for t, k in zip(outcome.warm, kinds, strict=True))
    pairs = [(a, b) for a, b in zip(eager.losses, outcome.losses, strict=False) if a is not None and b is not None]
    scale = max((abs(a) for a, _ in pairs), default=1.0) or 1.0
    return Row(
        name,
        outcome.kind,
        1e3 * statistics.median(outcome.blocks) / (len(outcome.times) / len(outcome.blocks)),
        statistics.median(eager.blocks) / statistics.median(outcome.blocks),
        low,
        high,
        first_fast,
        1e3 * max(outcome.warm),
        stall,
        reported["peak_mib"],
        max((abs(a - b) for a, b in pairs), default=0.0) / scale,
        graphs,
        sum(outcome.served) / len(outcome.served) if outcome.served else None,
        note,
        outcome.settled,
    )


def medians(outcome: Outcome, period: int) -> dict[int, float]:
    """What each kind of call takes in the end. Warm-ups and blocks need not begin with the first kind."""
    begin = len(outcome.warm)
    found: dict[int, list[float]] = {kind: [] for kind in range(period)}
    for number, seconds in enumerate(outcome.times):
        found[(begin + number) % period].append(seconds)
    overall = statistics.median(outcome.times)
    return {kind: statistics.median(times) if times else overall for kind, times in found.items()}

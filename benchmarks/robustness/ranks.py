"""Random faults on the ranks of a data-parallel training: does each rank do what it does eagerly, and does none hang?

    python -m benchmarks.robustness.ranks [--schedules 500] [--seed 0] [--ranks 2] [--jobs 1] [--record]

Takes half an hour for 500 schedules on two cores.

A schedule is 10 to 18 steps of one of three trainers, which go on where the schedule before has left them: gradients
reduced by hand, ``DistributedDataParallel`` with buffers, and without them. Before each step something may happen, on
each rank for itself: a batch of another size, a loss that is not finite (the update is skipped), a number of another
value or type, a branch that the rank's own loss takes, an exception behind the collectives, accumulation over two
backward passes on all ranks, a rank that comes late, and a guard, an assertion or an operation of the entry that is
forced to fail. At the end of one schedule in forty, one rank is killed, or leaves with an exception before its
collectives.

Every rank makes each schedule eagerly and speculated, and compares results, parameters, momentum, buffers, gradients
and the objects of the program bit by bit after each step. Where a rank is lost: the parameters of the others, and the
type of their error. Processes that end no schedule for ``LIMIT`` seconds hang. Returns 1 if anything differs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import datetime
import multiprocessing.connection
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torchjanus
from benchmarks.record import write
from tests.semantics.ranks_with_faults import EVENTS, TRAINERS, call, forced
from tests.semantics.test_two_processes import same

__all__ = ["Outcome", "Schedule", "main", "scheduled"]

TIMEOUT = datetime.timedelta(minutes=15)  # more than LIMIT: a hang is not to end as an error that eager raises, too
LIMIT = 300.0  # seconds, in each of which the processes have run: not in which all of them are stopped
COUNTS = ("calls", "speculated", "missed", "violated")
TOGETHER = 50  # schedules that the same processes go through
LOST = ("killed", "leaves")
COMMON = ("halve",)  # what changes the sequence of collectives happens to all ranks
LOCAL = (*(event for event in EVENTS if event not in COMMON), "late", "forced")


@dataclass(frozen=True)
class Schedule:
    """``events``: of each rank, before each step, or "". ``lost``: how the rank ``who`` is lost at the end, or ""."""

    number: int
    kind: str
    events: tuple[tuple[str, ...], ...]
    lost: str
    who: int


@dataclass
class Outcome:
    """What became of one schedule on one rank. Calls as in ``Statistics``."""

    number: int
    kind: str
    lost: str
    calls: int = 0
    speculated: int = 0
    missed: int = 0
    violated: int = 0
    events: dict[str, int] = field(default_factory=dict)
    difference: str = ""


def scheduled(number: int, seed: int, ranks: int) -> Schedule:
    """Return the schedule of a number, the same for all who ask."""
    chance = random.Random(f"{seed} {number}")
    kind = chance.choice(list(TRAINERS))
    count, often = chance.randrange(10, 19), chance.choice([2, 3, 6])
    common = [chance.choice(COMMON) if chance.randrange(10) == 0 else "" for _ in range(count)]
    events = []
    for _ in range(ranks):
        own = [chance.choice(LOCAL) if step > 3 and chance.randrange(often) == 0 else "" for step in range(count)]
        events.append(tuple(each or other for each, other in zip(common, own, strict=True)))
    lost = chance.choice(LOST) if chance.randrange(40) == 0 else ""
    return Schedule(number, kind, tuple(events), lost, chance.randrange(ranks))


@dataclass
class Training:
    """A trainer of some kind, which goes through schedules eagerly or speculated."""

    kind: str
    speculating: bool
    trainer: Any = field(init=False)
    step: Any = field(init=False)

    def __post_init__(self) -> None:
        self.trainer = TRAINERS[self.kind]()
        self.step = self.trainer.step
        if self.speculating:
            self.step = torchjanus.speculate(self.trainer.step, executor="replay")

    def counts(self) -> tuple[int, ...]:
        """Return what the calls have been so far, in the order of ``COUNTS``."""
        if not self.speculating:
            return (0,) * len(COUNTS)
        statistics = self.step.statistics()
        return tuple(getattr(statistics, name) for name in COUNTS)

    def goes_through(self, schedule: Schedule, rank: int) -> list[Any]:
        """Make the steps of a schedule. Return what each step left."""
        rng = torch.Generator().manual_seed(1000 * schedule.number + rank)
        results = []
        for number, event in enumerate(schedule.events[rank]):
            if event == "late":
                time.sleep(0.02)
            with contextlib.ExitStack() as stack:
                if event == "forced" and self.speculating:
                    stack.enter_context(forced(self.step, schedule.number + number))
                results.append(call(self.trainer, self.step, event, rng))
        return results


def _losing(schedule: Schedule, rank: int, training: Training) -> tuple[list[Any], str]:
    """Lose one rank. Return what the others have: parameters, the error's type; of a rank that leaves, its error."""
    if rank == schedule.who and schedule.lost == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    width = 7 if rank == schedule.who else 3  # the layer takes 3
    try:
        training.step(torch.ones(4, width), torch.tensor([0, 1, 0, 1]))
    except Exception as raised:
        error = f"{type(raised).__name__}" + (f": {raised}" if rank == schedule.who else "")
    else:
        error = "none"
    return [parameter.detach().clone() for parameter in training.trainer.net.parameters()], error


def _difference(schedule: Schedule, rank: int, eager: list[Any], other: list[Any]) -> str:
    for number, (one, two) in enumerate(zip(eager, other, strict=True)):
        if not same(one, two):
            event = schedule.events[rank][number] if number < len(schedule.events[rank]) else schedule.lost
            return f"rank {rank}, step {number} ({event}): {one} and {two}"
    return ""


def _outcome(schedule: Schedule, rank: int, before: Sequence[int], training: Training, difference: str) -> Outcome:
    counts = [after - count for after, count in zip(training.counts(), before, strict=True)]
    events = Counter(event for event in schedule.events[rank] if event)
    return Outcome(schedule.number, schedule.kind, schedule.lost, *counts, events, difference)


def _work(rank: int, ranks: int, store: str, mine: list[Schedule], speculating: bool | None, results: str) -> None:
    """In each process: make schedules, and save what became of each. ``speculating``: None for both ways."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=TIMEOUT)
    known: dict[tuple[str, bool], Training] = {}
    for schedule in mine:
        ways = []
        for way in (False, True) if speculating is None else (speculating,):
            if (schedule.kind, way) not in known:
                known[schedule.kind, way] = Training(schedule.kind, way)
            training = known[schedule.kind, way]
            before = training.counts()
            ways.append(training.goes_through(schedule, rank))
        if speculating is None:
            saved: Any = _outcome(schedule, rank, before, training, _difference(schedule, rank, *ways))
        else:
            after = _losing(schedule, rank, training)
            saved = [*ways[0], after], _outcome(schedule, rank, before, training, "")
        torch.save(saved, f"{results}.{schedule.number}.{rank}.part")
        os.replace(f"{results}.{schedule.number}.{rank}.part", f"{results}.{schedule.number}.{rank}")
    os._exit(0)  # where a rank is lost, the group cannot be destroyed in order


def _together(ranks: int, some: list[Schedule], speculating: bool | None, folder: Path) -> tuple[list[Any], str]:
    """Make schedules in processes of their own. Return what was saved, by schedule and rank, and what went wrong."""
    context, results = torch.multiprocessing.get_context("spawn"), tempfile.mktemp(dir=folder)
    store, processes, hung = tempfile.mktemp(dir=folder), [], ""
    for rank in range(ranks):
        given = rank, ranks, store, some, speculating, results
        processes.append(context.Process(target=_work, args=given, daemon=True))
        processes[-1].start()
    done, waited = 0, 0.0
    while any(process.is_alive() for process in processes):
        made = len(list(folder.glob(f"{Path(results).name}.*")))
        if made != done:
            done, waited = made, 0.0
        if waited > LIMIT:
            alive = [rank for rank, process in enumerate(processes) if process.is_alive()]
            hung = f"no progress for {LIMIT:.0f} s on the ranks {alive}, after {done} results"
            for process in processes:
                process.kill()
        multiprocessing.connection.wait([process.sentinel for process in processes if process.is_alive()], 0.1)
        waited += 0.1
    rows = []
    for schedule in some:
        files = [Path(f"{results}.{schedule.number}.{rank}") for rank in range(ranks)]
        rows.append([torch.load(file, weights_only=False) if file.exists() else None for file in files])
    return rows, hung


def _without_loss(ranks: int, some: list[Schedule], folder: Path) -> list[Outcome]:
    rows, hung = _together(ranks, some, None, folder)
    outcomes = []
    for schedule, row in zip(some, rows, strict=True):
        for rank, outcome in enumerate(row):
            if outcome is None:
                what = hung or f"rank {rank} has ended before this schedule was done"
                outcome = Outcome(schedule.number, schedule.kind, schedule.lost, difference=what)
            outcomes.append(outcome)
    return outcomes


def _with_loss(ranks: int, schedule: Schedule, folder: Path) -> list[Outcome]:
    eager, stuck = _together(ranks, [schedule], False, folder)
    other, hung = _together(ranks, [schedule], True, folder)
    if stuck:
        raise RuntimeError(f"Schedule {schedule.number} hangs eagerly: {stuck}.")
    outcomes = []
    for rank, (one, two) in enumerate(zip(eager[0], other[0], strict=True)):
        if two is None:
            what = hung or ("" if one is None else f"rank {rank} has ended early")
            outcomes.append(Outcome(schedule.number, schedule.kind, schedule.lost, difference=what))
            continue
        two[1].difference = hung or _difference(schedule, rank, one[0], two[0])
        outcomes.append(two[1])
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness.ranks", description=__doc__)
    parser.add_argument("--schedules", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="so many groups of processes at once")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/ranks.json")
    asked = parser.parse_args(arguments)
    every = [scheduled(number, asked.seed, asked.ranks) for number in range(asked.schedules)]
    usual = [schedule for schedule in every if not schedule.lost]
    begun, outcomes = time.monotonic(), list[Outcome]()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        jobs = [
            pool.submit(_without_loss, asked.ranks, usual[first : first + TOGETHER], Path(folder))
            for first in range(0, len(usual), TOGETHER)
        ]
        jobs += [pool.submit(_with_loss, asked.ranks, schedule, Path(folder)) for schedule in every if schedule.lost]
        for job in concurrent.futures.as_completed(jobs):
            outcomes += job.result()
            print(_shown(outcomes, time.monotonic() - begun), flush=True)
    wrong = [outcome for outcome in outcomes if outcome.difference]
    for outcome in wrong:
        print(f"schedule {outcome.number} ({outcome.kind}): {outcome.difference}")
    if asked.record:
        content = {"seconds": time.monotonic() - begun, **_summed(outcomes), "wrong": [asdict(each) for each in wrong]}
        write("ranks", sys.argv[1:] if arguments is None else arguments, "cpu", content)
    return bool(wrong)


def _summed(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the sums over all ranks and schedules."""
    events: Counter[str] = Counter()
    for outcome in outcomes:
        events.update(outcome.events)
    lost = {way: len({each.number for each in outcomes if each.lost == way}) for way in LOST}
    counts = {name: sum(getattr(each, name) for each in outcomes) for name in COUNTS}
    hung = {each.number for each in outcomes if "no progress" in each.difference}
    made, differing = ({each.number for each in some} for some in (outcomes, filter(_differs, outcomes)))
    return {
        "schedules": len(made), "differing": len(differing), "hung": len(hung), **counts,
        "events": dict(sorted(events.items())), "lost": lost,
    }  # fmt: skip


def _differs(outcome: Outcome) -> bool:
    return bool(outcome.difference)


def _shown(outcomes: list[Outcome], seconds: float) -> str:
    sums = _summed(outcomes)
    counts = ", ".join(f"{sums[name]} {name}" for name in COUNTS)
    return f"{seconds:6.0f} s  {sums['schedules']} schedules, {sums['differing']} differ, {sums['hung']} hang; {counts}"


if __name__ == "__main__":
    sys.exit(main())

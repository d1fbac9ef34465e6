"""Measures one program: what all ranks do together, within their processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import torchjanus
from benchmarks.speed.data_parallel.agreement import Cuts, one_flag
from benchmarks.speed.data_parallel.ways import is_equal, is_on_all_ranks, training
from benchmarks.speed.link import Rate
from torchjanus.host.collectives import communicated

__all__ = ["Options", "Row", "measure", "measure_compiled"]

LEARNING = 16  # calls before those that are timed


@dataclass(frozen=True)
class Options:
    """How all programs are measured. ``bucket``: megabytes of a bucket of gradients; ``link``: milliseconds for each
    collective, and megabytes a second."""

    calls: int
    executor: str = "replay"
    bucket: float | None = None
    link: tuple[float, float] | None = None


@dataclass(frozen=True)
class Row:
    """One program. Milliseconds a call, of the slowest rank; what graphs did, on the rank that served fewest calls."""

    program: str
    ranks: int
    eager: float
    speculated: float
    served: int
    calls: int
    equal: bool
    wire: bool
    collectives: float  # of an eager call
    kilobytes: float  # that they were given
    waiting: float  # milliseconds of a served call in collectives
    link: float  # milliseconds that the simulated link takes in a call
    hidden: dict[str, float]  # of that, the share behind other work, for each way
    flags: int  # of assertions that a served call looks at before collectives
    checking: float  # microseconds of a served call for that, and for stopping at its collectives
    one_flag: float  # microseconds that an all-reduce of one number takes
    compiled: float = float("nan")  # torch.compile; NaN if it was not asked for, or was not done
    beside: float = float("nan")  # eager, in the same processes as torch.compile
    compiled_note: str = ""  # why there is no such time


def measure(name: str, options: Options) -> Row:
    """Measure one program; called by all ranks together."""
    ways = {"eager": training(name, options.bucket), "speculated": training(name, options.bucket)}
    fast: Any = torchjanus.speculate(ways["speculated"].step, executor=options.executor)
    ways["speculated"].step = fast
    rate = Rate() if options.link is None else Rate(options.link[0] / 1e3, options.link[1] * 1e6)
    equal, wire, given, spent, before, taken = True, True, ways["eager"].batches(dist.get_rank()), 0.0, 0, 0.0
    checking, flags = [], 0
    for number in range(LEARNING + options.calls):
        if number == LEARNING:
            fast.wait()
            spent, before = communicated.seconds, fast.statistics().speculated
        slow = options.link is not None and number >= LEARNING and number % 2 == 1
        batch = next(given)
        results: list[Tensor] = []
        for which, way in ways.items():
            way.link.rate = rate if slow else None
            way.link.sent.collectives.clear()
            dist.barrier()
            served, begun, cuts = fast.statistics().speculated, time.perf_counter(), Cuts()
            with cuts.timed():
                results.append(way.step(*batch))
            took = 1e3 * (time.perf_counter() - begun)
            if number >= LEARNING and (which != "speculated" or fast.statistics().speculated > served):
                way.times[slow].append(took)
                if which == "speculated":
                    checking.append(1e6 * cuts.seconds)
                    flags = cuts.flags
        plain, ours = ways["eager"], ways["speculated"]
        taken = 1e3 * sum(rate.seconds(size) for _, size in plain.link.sent.collectives)
        wire = wire and plain.link.sent.collectives == ours.link.sent.collectives
        pairs = zip(results, (plain.net, ours.net), strict=True)
        left, right = ([result, *net.state_dict().values()] for result, net in pairs)
        alike = is_on_all_ranks(ours.net)  # by all ranks, whatever each finds
        equal = equal and alike and is_equal(name, left, right)
    made, sent = max(1, fast.statistics().speculated - before), ways["eager"].link.sent.collectives
    mine = Row(
        name, dist.get_world_size(), ways["eager"].median(), ways["speculated"].median(),
        fast.statistics().speculated - before, options.calls, equal, wire, len(sent),
        sum(size for _, size in sent) / 1e3, 1e3 * (communicated.seconds - spent) / made,
        taken if options.link is not None else 0.0, {which: way.hidden(taken) for which, way in ways.items()},
        flags, statistics.median(checking) if checking else float("nan"), one_flag(),
    )  # fmt: skip
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return replace(
        mine,
        eager=max(row.eager for row in every),
        speculated=max(row.speculated for row in every),
        served=min(row.served for row in every),
        equal=all(row.equal for row in every),
        wire=all(row.wire for row in every),
        hidden={which: min(row.hidden[which] for row in every) for which in ways},
        checking=max(row.checking for row in every),
        one_flag=max(row.one_flag for row in every),
    )


def measure_compiled(name: str, options: Options, note: Callable[[str], object]) -> tuple[float, float]:
    """Return the milliseconds of a call that torch.compile has compiled, and of an eager one, of the slowest rank;
    called by all ranks together. ``note``: called with which call begins."""
    ways = [training(name, options.bucket, compiled=compiled) for compiled in (True, False)]
    given = ways[0].batches(dist.get_rank())
    for number in range(LEARNING + options.calls):
        batch = next(given)
        note(f"call {number + 1} of {LEARNING + options.calls}")
        for way in ways:
            dist.barrier()
            begun = time.perf_counter()
            way.step(*batch)
            if number >= LEARNING:
                way.times[0].append(1e3 * (time.perf_counter() - begun))
    medians = torch.tensor([way.median() for way in ways])
    dist.all_reduce(medians, dist.ReduceOp.MAX)
    compiled, eager = medians.tolist()
    return compiled, eager

"""Data-parallel training by several processes on this machine: eager DistributedDataParallel, and speculated.

    python -m benchmarks.speed.data_parallel [--only mlp lstm ...] [--ranks 2 4] [--calls 60] [--record]
        [--bucket MB] [--link MS MB/S] [--compile [SECONDS]]

Takes some minutes. The processes talk by gloo. All ways train from the same state on the same batches, call by call in
turn, each rank on batches of its own. Loss, parameters and buffers are compared bit by bit after each call: of the
speculated way with the eager one, and of the parameters of all ranks. (TreeLSTM's calls are batched, so it is compared
with eager up to rounding.) Times are medians, of the calls that a graph made, of the slowest rank.

What the ranks spend on agreeing. ``wire``: whether the speculated way has sent what eager has, collective by collective
with their bytes: then nothing. ``checking``: the microseconds in which a call looks at its flags (``flags`` of them)
before its collectives, and stops and goes on there. ``one flag``: the microseconds of an all-reduce of one number among
these ranks, which is what agreeing would take where it could not ride another one.

``--link``: in every second call each collective takes so many milliseconds longer, and its bytes over that rate (a
simulated link). The part of this by which a call does not get longer is hidden behind other work.
``--compile``: also DistributedDataParallel on a model that ``torch.compile`` compiles, beside eager in processes of its
own, with an empty cache. They are ended after so many seconds (120), and the row says in which call they were.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import torchjanus
from benchmarks.programs import steps, trees
from benchmarks.record import write
from benchmarks.speed.link import Rate, register
from torchjanus.execute.staged import StagedRun
from torchjanus.host.collectives import communicated

__all__ = ["PROGRAMS", "Row", "main"]

Batch = tuple[Any, ...]
Made = tuple[nn.Module, Callable[..., Tensor], Callable[[int], Iterator[Batch]]]  # model, loss, batches of a rank
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


def _of_recipe(name: str) -> Made:
    recipe = steps.PROGRAMS[name]

    def batches(rank: int) -> Iterator[Batch]:
        random = torch.Generator().manual_seed(1000 + rank)
        while True:
            yield recipe.batch(random)

    return recipe.model(0.0), recipe.loss, batches


def _treelstm() -> Made:
    def loss(model: nn.Module, forest: list[trees.Tree], labels: Tensor) -> Tensor:
        return F.cross_entropy(model(forest), labels)

    return trees.TreeLSTM(32), loss, lambda rank: iter(trees.batches("treelstm", 400, rank, trees=5))


def _by_hand() -> Made:
    """A reduction for each parameter, and before them a branch that the rank's own loss takes."""
    recipe, high = _of_recipe("mlp"), []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = recipe[1](model, x, y)
        if found > 100:
            high.append(True)
        return found

    return recipe[0], loss, recipe[2]


def _wide() -> Made:
    """Layers whose backward pass takes long: something to hide communication behind."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]

    def batches(rank: int) -> Iterator[Batch]:
        random = torch.Generator().manual_seed(1000 + rank)
        while True:
            yield torch.randn(256, 512, generator=random), torch.randn(256, 512, generator=random)

    return nn.Sequential(*layers), lambda model, x, y: F.mse_loss(model(x), y), batches


PROGRAMS: dict[str, Callable[[], Made]] = {
    "wide": _wide,
    "mlp": lambda: _of_recipe("mlp"),
    "convnet": lambda: _of_recipe("digits"),
    "bert": lambda: _of_recipe("bert-cls"),
    "lstm": lambda: _of_recipe("lstm"),
    "treelstm": _treelstm,
    "byhand": _by_hand,
}


@dataclass
class Way:
    """One way to train. ``times``: milliseconds of its calls, without the link's delay and with it."""

    step: Any
    net: nn.Module
    link: Any
    batches: Callable[[int], Iterator[Batch]]
    times: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def median(self) -> float:
        return statistics.median(self.times[0]) if self.times[0] else float("nan")

    def hidden(self, taken: float) -> float:
        """Return the share of ``taken`` milliseconds that a call hides."""
        if not taken or not all(self.times):
            return float("nan")
        return 1 - (statistics.median(self.times[1]) - self.median()) / taken


def _training(name: str, bucket: float | None, compiled: bool = False) -> Way:
    torch.manual_seed(0)
    net, loss_of, batches = PROGRAMS[name]()
    link = dist.new_group(backend="link")
    by_hand = name == "byhand"
    ddp = net if by_hand else nn.parallel.DistributedDataParallel(net, process_group=link, bucket_cap_mb=bucket)
    model: Any = torch.compile(ddp) if compiled else ddp
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(*batch: Any) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        if by_hand:
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad, group=link)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        return loss.detach()

    return Way(step, net, link, batches)


def _is_equal(name: str, one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    if name == "treelstm":
        return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(one, other, strict=True))
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _on_all_ranks(net: nn.Module) -> bool:
    """Whether all ranks have the parameters of this one."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
    every = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(every, flat)
    return all(torch.equal(flat, one) for one in every)


@dataclass
class Cuts:
    """What the calls of graphs spend at their collectives: the seconds of each call in which flags are looked at, and
    the graph stops and goes on."""

    seconds: float = 0.0
    flags: int = 0
    _computing: float = 0.0

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Time all graphs within the context."""
        advance, compute = StagedRun.advance, StagedRun.compute

        def timed_compute(run: Any, *given: Any) -> Any:
            begun = time.perf_counter()
            flags, values = compute(run, *given)
            self._computing += time.perf_counter() - begun
            self.flags += sum(isinstance(flag, Tensor) for flag in flags or ())
            return flags, values

        def timed_advance(run: Any, inputs: Any, slots: Any, stage: int) -> Any:
            begun, self._computing = time.perf_counter(), 0.0
            found = advance(run, inputs, slots, stage)
            if stage < len(run._staged.lowered.program.cuts):
                self.seconds += time.perf_counter() - begun - self._computing
            return found

        StagedRun.advance, StagedRun.compute = timed_advance, timed_compute  # type: ignore[method-assign]
        try:
            yield
        finally:
            StagedRun.advance, StagedRun.compute = advance, compute  # type: ignore[method-assign]


def _one_flag(times: int = 50) -> float:
    """Return the microseconds of an all-reduce of one number: the median."""
    taken = []
    for _ in range(times):
        flag = torch.zeros(1)
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(flag)
        taken.append(1e6 * (time.perf_counter() - begun))
    return statistics.median(taken)


def measure(name: str, options: Options) -> Row:
    """Measure one program; called by all ranks together."""
    ways = {"eager": _training(name, options.bucket), "speculated": _training(name, options.bucket)}
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
        alike = _on_all_ranks(ours.net)  # by all ranks, whatever each finds
        equal = equal and alike and _is_equal(name, left, right)
    made, sent = max(1, fast.statistics().speculated - before), ways["eager"].link.sent.collectives
    mine = Row(
        name, dist.get_world_size(), ways["eager"].median(), ways["speculated"].median(),
        fast.statistics().speculated - before, options.calls, equal, wire, len(sent),
        sum(size for _, size in sent) / 1e3, 1e3 * (communicated.seconds - spent) / made,
        taken if options.link is not None else 0.0, {which: way.hidden(taken) for which, way in ways.items()},
        flags, statistics.median(checking) if checking else float("nan"), _one_flag(),
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
    ways = [_training(name, options.bucket, compiled=compiled) for compiled in (True, False)]
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


def _begin(rank: int, ranks: int, store: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    register()


def _run_compiled(rank: int, ranks: int, folder: str, name: str, options: Options) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / f"cache{rank}")
    logging.disable(logging.WARNING)  # torch.compile's, of what it recompiles
    _begin(rank, ranks, str(Path(folder) / "store"))
    found = measure_compiled(name, options, (Path(folder) / f"at{rank}").write_text)
    if rank == 0:
        torch.save(found, Path(folder) / "found")
    dist.destroy_process_group()


def compiled_beside(name: str, ranks: int, options: Options, seconds: float) -> tuple[float, float, str]:
    """Return what ``measure_compiled`` does, measured by processes of their own, and why there is nothing, if so. They
    are ended after so many seconds."""
    nothing, end = float("nan"), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given = (ranks, folder, name, options)
        job = torch.multiprocessing.start_processes(_run_compiled, given, ranks, join=False)
        try:
            while not job.join(max(0.1, min(1.0, end - time.monotonic()))):
                if time.monotonic() > end:
                    reached = [Path(folder) / f"at{rank}" for rank in range(ranks)]
                    said = [path.read_text() if path.exists() else "before its first call" for path in reached]
                    return nothing, nothing, f"not done after {seconds:.0f} s: the ranks are in {', '.join(said)}"
        except (torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException) as error:
            return nothing, nothing, str(error).strip().splitlines()[-1]
        finally:
            for process in job.processes:
                process.kill()
                process.join()
        return *torch.load(Path(folder) / "found", weights_only=False), ""


def _run(rank: int, ranks: int, store: str, name: str, options: Options, results: str) -> None:
    _begin(rank, ranks, store)
    row = measure(name, options)
    if rank == 0:
        torch.save(asdict(row), results)
    dist.destroy_process_group()


def _rows(names: Sequence[str], ranks: int, options: Options, seconds: float | None) -> Iterator[Row]:
    """Measure programs, each in processes of its own. ``seconds``: in which torch.compile is, too."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            store, results = str(Path(folder) / "store"), str(Path(folder) / "results")
            torch.multiprocessing.spawn(_run, (ranks, store, name, options, results), nprocs=ranks, join=True)
            row = Row(**torch.load(results, weights_only=False))
        if seconds is not None:
            compiled, beside, note = compiled_beside(name, ranks, options, seconds)
            row = replace(row, compiled=compiled, beside=beside, compiled_note=note)
        yield row


def _shown(row: Row) -> str:
    compiled = f"torch.compile {row.compiled_note}  " if row.compiled_note else ""
    if row.compiled == row.compiled:  # no NaN
        compiled = f"torch.compile {row.beside / row.compiled:.2f} times ({row.beside:.2f}, {row.compiled:.2f} ms)  "
    hidden = ", ".join(f"{which} {100 * share:.0f} %" for which, share in row.hidden.items())
    return (
        f"{row.program:9} {row.ranks} ranks  eager {row.eager:7.2f} ms  speculated {row.speculated:7.2f} ms  "
        f"{row.eager / row.speculated:5.2f} times  {compiled}served {row.served} of {row.calls}  equal {row.equal}  "
        f"wire {row.wire}: {row.collectives:.0f} collectives, {row.kilobytes:.1f} kB, {row.waiting:.2f} ms in them  "
        f"agreeing: {'0' if row.wire else 'other'} bytes, {row.flags} flags, checking {row.checking:.0f} us, "
        f"one flag {row.one_flag:.0f} us" + (f"  of {row.link:.1f} ms of the link hidden: {hidden}" if row.link else "")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 1 if anything was unequal, or other bytes were sent."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.data_parallel", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2])
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--executor", default="replay", help="bitwise equality holds with replay")
    parser.add_argument("--bucket", type=float, help="megabytes of a bucket of gradients")
    parser.add_argument("--link", nargs=2, type=float, metavar=("MS", "MB/S"), help="a simulated link")
    parser.add_argument("--compile", nargs="?", type=float, const=120.0, metavar="SECONDS", help="torch.compile, too")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/data_parallel_N_ranks.json")
    asked = parser.parse_args(arguments)
    link = None if asked.link is None else (asked.link[0], asked.link[1])
    options, failed = Options(asked.calls, asked.executor, asked.bucket, link), False
    for ranks in asked.ranks:
        rows = []
        for row in _rows(asked.only, ranks, options, asked.compile):
            print(_shown(row), flush=True)
            rows.append(asdict(row))
            failed = failed or not (row.equal and row.wire)
        if asked.record:
            given = sys.argv[1:] if arguments is None else arguments
            write(f"data_parallel_{ranks}_ranks", given, "cpu", {"programs": rows})
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

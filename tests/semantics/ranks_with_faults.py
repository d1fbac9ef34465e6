"""Steps of several processes. Assumptions fail, at random and on each process for itself: eager beside speculated.

A module, for it is imported by each process.
"""

import contextlib
import datetime
import os
import random
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import torchjanus
from tests.ranks import CONTEXT, together
from torchjanus.testing import Injection, faults, injected, rehearsed

TIMEOUT = datetime.timedelta(seconds=100)  # a rank that waits longer for the others fails
EVENTS = ("size", "nan", "scale", "kind", "raise", "high", "halve", "note")


class Trainer:
    """Data parallelism by hand. Its decisions are local, or the same on all ranks; its collectives never change."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net: Any = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.scale: Any = 1.0
        self.note = ""
        self.halve = False
        self.fails = False
        self.skipped = self.high = 0
        self.seen: list[Any] = []

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y) * self.scale
        loss.backward()
        for parameter in self.net.parameters():
            if self.halve:
                parameter.grad /= 2
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        if loss > 2.5:  # on this rank
            self.high += 1
        norm = torch.stack([p.grad.norm() for p in self.net.parameters()]).norm()
        if torch.isfinite(norm):  # on all ranks
            self.optimizer.step()
        else:
            self.skipped += 1
        mean = torch.stack([loss.detach(), norm])
        handle = dist.all_reduce(mean, async_op=True)
        if self.note:
            self.seen.append(self.note)
        handle.wait()
        if self.fails:
            raise ValueError(f"{self.skipped} skipped")
        self.seen.append(mean[0].item() if x.shape[0] == 4 else len(self.seen))
        return mean

    def state(self) -> list[Any]:
        parameters = [p.detach().clone() for p in self.net.parameters()]
        momentum = [s["momentum_buffer"].clone() for s in self.optimizer.state.values()]
        return [*parameters, *momentum, self.skipped, self.high, list(self.seen)]


class InBuckets(Trainer):
    """The same with DistributedDataParallel: several buckets, buffers that are broadcast, and accumulated gradients."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
        self.net = torch.nn.Sequential(*layers)
        self.model = torch.nn.parallel.DistributedDataParallel(self.net, bucket_cap_mb=0.00005)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        if self.halve:
            with self.model.no_sync():
                (F.cross_entropy(self.model(x), y) * self.scale).backward()
        loss = F.cross_entropy(self.model(x), y) * self.scale
        loss.backward()
        if loss > 2.5:  # on this rank
            self.high += 1
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        if torch.isfinite(norm):  # on all ranks
            self.optimizer.step()
        else:
            self.skipped += 1
        mean = torch.stack([loss.detach(), norm])
        dist.all_reduce(mean, op=dist.ReduceOp.MAX)
        if self.note:
            self.seen.append(self.note)
        if self.fails:
            raise ValueError(f"{self.skipped} skipped")
        self.seen.append(mean[0].item() if x.shape[0] == 4 else len(self.seen))
        return mean

    def state(self) -> list[Any]:
        return [
            *super().state(),
            *[buffer.clone() for buffer in self.net.buffers()],
            *[p.grad.clone() for p in self.net.parameters()],
        ]


class OfOneModule(InBuckets):
    """With DistributedDataParallel, several buckets and no buffers: the first collective of a step reduces a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        self.model = torch.nn.parallel.DistributedDataParallel(self.net, bucket_cap_mb=0.00005)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)


TRAINERS = {"by hand": Trainer, "in buckets": InBuckets, "of one module": OfOneModule}


def call(trainer: Trainer, step: Any, event: str, rng: torch.Generator) -> Any:
    """Make one call, on which something may be unusual."""
    x = torch.randn(4, 3, generator=rng)
    if event == "size":
        x = x[:3]
    if event == "nan" and type(trainer) is Trainer:  # running statistics would stay NaN
        x[0, 0] = float("nan")
    if event == "high":
        x = x * 30
    trainer.scale = float("inf") if event == "nan" else 2 if event == "kind" else 0.5 if event == "scale" else 1.0
    trainer.note = "noted" if event == "note" else ""
    trainer.fails, trainer.halve = event == "raise", event == "halve"
    y = torch.arange(len(x)) % 2
    try:
        result = step(x, y).clone()
    except ValueError as error:
        result = repr(error)
    return [result, *trainer.state()]


def schedules(rank: int, kind: str, count: int, seed: int, often: int, speculating: bool) -> tuple[list[Any], int, str]:
    """``count`` calls. ``often``: something happens in one call of so many, on each rank. Returns results, served calls
    and the report."""
    trainer = TRAINERS[kind]()
    step = torchjanus.speculate(trainer.step, executor="replay") if speculating else trainer.step
    rng, chance = torch.Generator().manual_seed(100 * seed + rank), random.Random(f"{seed} {rank}")
    results = []
    for number in range(count):
        event = chance.choice(EVENTS) if chance.randrange(often) == 0 and number > 7 else ""
        results.append(call(trainer, step, event, rng))
    if not speculating:
        return results, 0, ""
    return results, step.statistics().speculated, str(torchjanus.explain(step))  # type: ignore[attr-defined]


def each_fault(rank: int, kind: str, which: int, count: int, served: bool) -> tuple[list[Any], int, str]:
    """Assertions, operations and guards fail on rank ``which`` alone, one in each of ``count`` calls.

    Returns results, how many came into effect, and the report."""
    trainer = TRAINERS[kind]()
    rng = torch.Generator().manual_seed(rank)
    step = torchjanus.speculate(trainer.step, executor="replay") if served else trainer.step
    results, struck = [call(trainer, step, "", rng) for _ in range(8)], 0
    for number in range(count):
        with contextlib.ExitStack() as stack:
            injections = []
            if served and rank == which:
                injections = stack.enter_context(forced(step, number))
            results.append(call(trainer, step, "", rng))
        struck += sum(injection.struck for injection in injections)
    return results, struck, str(torchjanus.explain(step)) if served else ""


@contextlib.contextmanager
def forced(step: Any, number: int) -> Iterator[list[Injection]]:
    """Force a fault in the entry that was made last, if there is one. Then Python makes the call, and takes
    the collectives made so far from the journal; or, mostly, the entry itself does, once more."""
    if not step.entries:
        yield []
        return
    entry = step.entries[-1]
    known = faults(entry)
    sort = ("operation", "operation", "operation", "guard", "assertion")[number % 5]
    some = [fault for fault in known if fault.kind == sort] or known  # an entry may have no assertion
    if not some:
        yield []
        return
    fault = some[number * 7919 % len(some)]
    if sort == "operation" or number % 3:
        with rehearsed(entry, [fault]) as injections:
            yield injections
    else:
        with injected(entry, fault) as injection:
            yield [injection]


def run(rank: int, world: int, store: str, work: list[tuple[str, tuple[Any, ...]]], results: str) -> None:
    """In each process: do all work, eagerly and speculated, and save what it gave."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=TIMEOUT)
    rows = []
    for name, given in work:
        rows.append([globals()[name](rank, *given, way) for way in (False, True)])
    torch.save(rows, f"{results}.{rank}")
    dist.destroy_process_group()


def run_all(world: int, work: list[tuple[str, tuple[Any, ...]]], folder: Path) -> list[list[Any]]:
    """Return for each rank, and each piece of work: what eager gave, and what the speculated step gave."""
    store, results = tempfile.mktemp(dir=folder), str(folder / "results")
    together(run, (world, store, work, results), world)
    return [torch.load(f"{results}.{rank}", weights_only=False) for rank in range(world)]


def run_killed(rank: int, kind: str, store: str, speculating: bool, results: str) -> None:
    """In each of two processes: some calls, before the last of which the second one is killed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=TIMEOUT)
    trainer = TRAINERS[kind]()
    step = torchjanus.speculate(trainer.step, executor="replay") if speculating else trainer.step
    rng = torch.Generator().manual_seed(rank)
    before = [call(trainer, step, "", rng) for _ in range(8)]
    served = step.statistics().speculated if speculating else 0  # type: ignore[attr-defined]
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    parameters = [parameter.detach().clone() for parameter in trainer.net.parameters()]
    try:
        step(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))
        error = "none"
    except Exception as raised:
        error = f"{type(raised).__module__}.{type(raised).__name__}: {raised}"
    after = [parameter.detach().clone() for parameter in trainer.net.parameters()]
    torch.save((before, parameters, after, error, served), f"{results}.{rank}")
    os._exit(0)  # the group cannot be destroyed in order


def run_all_killed(kind: str, folder: Path) -> list[Any]:
    """Return what the process that is not killed has seen: eagerly, and speculated."""
    processes = []
    for speculating in (False, True):
        store = tempfile.mktemp(dir=folder)
        for rank in range(2):
            given = rank, kind, store, speculating, str(folder / str(speculating))
            processes.append(CONTEXT.Process(target=run_killed, args=given, daemon=True))
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [torch.load(folder / f"{speculating}.0", weights_only=False) for speculating in (False, True)]

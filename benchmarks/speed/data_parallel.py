"""Data-parallel training by several processes on this machine: eager DistributedDataParallel, and speculated.

    python -m benchmarks.speed.data_parallel [--only mlp lstm ...] [--ranks 2] [--calls 60] [--record]

Takes some minutes. The processes talk by gloo. Both ways train from the same state on the same batches, call by call in
turn, each rank on batches of its own. Loss, parameters and buffers are compared bit by bit after each call: of the
speculated way with the eager one, and of the parameters of all ranks. (TreeLSTM's calls are batched, so it is compared
with eager up to rounding.) Times are medians, of the calls that a graph made, of the slowest rank. No time and no byte
is spent on agreeing: ranks need not (docs/design/data_parallel.md).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import torchjanus
from benchmarks.programs import steps, trees
from benchmarks.record import write
from torchjanus.host.collectives import communicated

__all__ = ["PROGRAMS", "Row", "main"]

Batch = tuple[Any, ...]
Made = tuple[nn.Module, Callable[..., Tensor], Callable[[int], Iterator[Batch]]]  # model, loss, batches of a rank
LEARNING = 16  # calls before those that are timed


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
    collectives: float  # of a served call
    kilobytes: float  # that they were given
    waiting: float  # milliseconds of a served call in collectives


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


PROGRAMS: dict[str, Callable[[], Made]] = {
    "mlp": lambda: _of_recipe("mlp"),
    "convnet": lambda: _of_recipe("digits"),
    "bert": lambda: _of_recipe("bert-cls"),
    "lstm": lambda: _of_recipe("lstm"),
    "treelstm": _treelstm,
}


def _training(name: str) -> tuple[Callable[..., Tensor], nn.Module, Callable[[int], Iterator[Batch]]]:
    torch.manual_seed(0)
    net, loss_of, batches = PROGRAMS[name]()
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(*batch: Any) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, net, batches


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


def measure(name: str, calls: int, executor: str) -> Row:
    """Measure one program; called by all ranks together."""
    plain, eager_net, batches = _training(name)
    step, net, _ = _training(name)
    nets = (eager_net, net)
    fast: Any = torchjanus.speculate(step, executor=executor)
    times: dict[str, list[float]] = {"eager": [], "speculated": []}
    equal, given, spent = True, batches(dist.get_rank()), (0, 0, 0.0)
    for number in range(LEARNING + calls):
        if number == LEARNING:
            fast.wait()
            spent = (communicated.collectives, communicated.bytes, communicated.seconds)
            before = fast.statistics().speculated
        batch = next(given)
        results: list[Tensor] = []
        for way, function in (("eager", plain), ("speculated", fast)):
            dist.barrier()
            served = fast.statistics().speculated
            begun = time.perf_counter()
            results.append(function(*batch))
            took = 1e3 * (time.perf_counter() - begun)
            if number >= LEARNING and (way == "eager" or fast.statistics().speculated > served):
                times[way].append(took)
        left, right = ([result, *each.state_dict().values()] for result, each in zip(results, nets, strict=True))
        alike = _on_all_ranks(net)  # by all ranks, whatever each finds
        equal = equal and alike and _is_equal(name, left, right)
    made = max(1, fast.statistics().speculated - before)
    mine = [
        *(statistics.median(one) if one else float("nan") for one in times.values()),
        float(fast.statistics().speculated - before),
        float(equal),
        (communicated.collectives - spent[0]) / made,
        (communicated.bytes - spent[1]) / made / 1e3,
        1e3 * (communicated.seconds - spent[2]) / made,
    ]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    eager, speculated, served_calls, same, collectives, kilobytes, waiting = zip(*every, strict=True)
    return Row(
        name, len(every), max(eager), max(speculated), int(min(served_calls)), calls, all(same),
        max(collectives), max(kilobytes), max(waiting),
    )  # fmt: skip


def _run(rank: int, ranks: int, store: str, names: list[str], calls: int, executor: str, results: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    rows = []
    for name in names:
        rows.append(measure(name, calls, executor))
        if rank == 0:
            print(_shown(rows[-1]), flush=True)
    if rank == 0:
        torch.save([asdict(row) for row in rows], results)
    dist.destroy_process_group()


def _shown(row: Row) -> str:
    return (
        f"{row.program:9} {row.ranks} ranks  eager {row.eager:7.2f} ms  speculated {row.speculated:7.2f} ms  "
        f"{row.eager / row.speculated:5.2f} times  served {row.served} of {row.calls}  equal {row.equal}  "
        f"{row.collectives:.0f} collectives, {row.kilobytes:.1f} kB, {row.waiting:.2f} ms in them"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 1 if anything was unequal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.data_parallel", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--executor", default="replay", help="bitwise equality holds with replay")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/data_parallel.json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        store, results = str(Path(folder) / "store"), str(Path(folder) / "results")
        given = (options.ranks, store, options.only, options.calls, options.executor, results)
        torch.multiprocessing.spawn(_run, given, nprocs=options.ranks, join=True)
        rows = torch.load(results, weights_only=False)
    if options.record:
        write("data_parallel", sys.argv[1:] if arguments is None else arguments, "cpu", {"programs": rows})
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

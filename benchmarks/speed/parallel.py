"""What running independent operations side by side could gain at most (JANUS, +PARL in figure 7).

    python -m benchmarks.speed.parallel [--only inception dcgan ...] [--rounds 8] [--record]

Takes ten minutes.

Two ways to use two cores: share each operation between two threads, as torch does, or run two operations at a time,
each on one thread. Each operation of a program's graph is timed on one thread and on two. The first way's time is the
sum of the latter. For the second, the operations are laid out on two lanes by list scheduling, each as soon as what it
needs is there and free of any cost for waiting and handing over: no real run of lanes can be faster than about that.
Times of operations are those of replay, so the same library's kernels for both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import torchjanus
from benchmarks.record import write
from benchmarks.speed.papers import PROGRAMS
from torchjanus.execute.trust import duplicate
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.runtime import Speculated

__all__ = ["CHOSEN", "Parallel", "main", "parallel", "side_by_side"]

# Those whose graph is in one part. Two gradients of one pass, branches of the net, a generator beside a discriminator:
# there are independent operations in most of them.
CHOSEN = ("lenet", "inception", "resnet50", "dropblock", "an", "pix2pix", "dcgan", "bert_cls", "a3c")
LANES = 2
WARM = 12


@dataclass(frozen=True)
class Parallel:
    """Milliseconds of all operations of one graph: one by one on one thread; one by one, each shared by two threads;
    two at a time, each on one thread; and of the longest chain in which each waits for the one before."""

    program: str
    operations: int
    one: float
    shared: float
    lanes: float
    chain: float


class _Timed(torch.fx.Interpreter):
    """Runs a graph and notes what each operation takes."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.times: dict[torch.fx.Node, list[float]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        began = time.perf_counter()
        made = super().run_node(n)
        if n.op == "call_function":
            self.times.setdefault(n, []).append(time.perf_counter() - began)
        return made


def graph_of(name: str, small: bool) -> tuple[Lowered, list[Any]]:
    """The graph of the program's first path, and what one call gives it."""
    program = PROGRAMS[name].make(0, small)
    step: Speculated[..., Any] = torchjanus.speculate(program.step, executor="replay")
    for _ in range(WARM):
        step(*next(program.batches))
        step.wait()
    given: list[Any] = []
    for entry in step.entries:
        run = entry.launch.names["run"]

        def noting(inputs: Sequence[torch.Tensor], slots: Sequence[float | int], run: Any = run) -> Any:
            given[:] = [*map(duplicate, inputs), *slots]
            return run(inputs, slots)

        entry.launch.use(noting)
        for _ in range(WARM):
            step(*next(program.batches))
            if given:
                return entry.lowered, given
    raise RuntimeError(f"{name}: no call ran a graph")


def times(lowered: Lowered, given: list[Any], threads: int, repetitions: int) -> dict[torch.fx.Node, float]:
    """Medians, in seconds, of each operation."""
    torch.set_num_threads(threads)
    timed = _Timed(lowered.graph)
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        for _ in range(repetitions + 1):
            timed.run(*given)
    return {node: statistics.median(taken[1:]) for node, taken in timed.times.items()}


def side_by_side(costs: Mapping[Any, float], needs: Mapping[Any, Sequence[Any]], lanes: int) -> tuple[float, float]:
    """When the last operation is over if ``lanes`` run at a time, what most depends on first; and the longest chain.

    ``needs``: for each operation those that it waits for; all before it in the order of ``costs``."""
    order = {one: place for place, one in enumerate(costs)}
    consumers: dict[Any, list[Any]] = {one: [] for one in costs}
    for one, needed in needs.items():
        for other in needed:
            consumers[other].append(one)
    below: dict[Any, float] = {}
    for one in reversed(order):
        below[one] = costs[one] + max((below[taker] for taker in consumers[one]), default=0.0)
    missing = {one: len(needs[one]) for one in costs}
    ready = [(-below[one], order[one], one) for one in costs if not missing[one]]
    heapify(ready)
    running: list[tuple[float, int, Any]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < lanes:
            _, place, one = heappop(ready)
            heappush(running, (now + costs[one], place, one))
        now, _, one = heappop(running)
        for taker in consumers[one]:
            missing[taker] -= 1
            if not missing[taker]:
                heappush(ready, (-below[taker], order[taker], taker))
    return now, max(below.values(), default=0.0)


def parallel(name: str, repetitions: int, small: bool = False) -> Parallel:
    """Time the operations of a program's graph, and lay them out."""
    lowered, given = graph_of(name, small)
    one, shared = times(lowered, given, 1, repetitions), times(lowered, given, LANES, repetitions)
    needs = {node: [used for used in node.all_input_nodes if used in one] for node in one}
    lanes, chain = side_by_side(one, needs, LANES)
    return Parallel(name, len(one), *(1e3 * t for t in (sum(one.values()), sum(shared.values()), lanes, chain)))


def table(found: Sequence[Parallel]) -> Table:
    made = Table(title=f"two cores: shared operations, or {LANES} operations at a time", box=SIMPLE)
    for column in ("program", "operations", "1 thread (ms)", "shared", "2 at a time, at best", "longest chain"):
        made.add_column(column, justify="left" if column == "program" else "right")
    for row in found:
        parts = (f"{row.one:.1f}", f"{row.shared:.1f}", f"{row.lanes:.1f}", f"{row.chain:.1f}")
        made.add_row(row.program, str(row.operations), *parts)
    return made


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.parallel", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), metavar="PROGRAM", default=list(CHOSEN))
    parser.add_argument("--repetitions", type=int, default=8, help="runs of each graph that are timed")
    parser.add_argument("--small", action="store_true", help="the programs in small: times say nothing")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results/parallel.json")
    options = parser.parse_args(given)
    found = [parallel(name, options.repetitions, options.small) for name in options.only]
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table(found))
    if options.record:
        argv = sys.argv[1:] if given is None else given
        print(write("parallel", argv, "cpu", {"programs": [asdict(row) for row in found]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

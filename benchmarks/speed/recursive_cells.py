"""Forward and backward of recursive cells over a forest: replay, compiled, mapped level by level, plain recursion.

    python -m benchmarks.speed.recursive_cells [--rounds 40]

Takes some minutes.

25 trees of 10 to 30 leaves, one thread; nothing but the trees: no loss, no update, and the forest is laid out before.
The contenders take turns. Beside them the matrix products alone, level by level, and what they would take at the rate
of a large product (the floor). Whole training steps, with all that is around this: ``benchmarks.speed.trees``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

# Before torch is imported: OpenMP reads it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tests.forests import MODELS, Model, Tree, trees
from torchjanus.execute.compiled.invoke import compile_calls
from torchjanus.execute.compiled.shared_parts import compile_part
from torchjanus.execute.regions.invoke import run_by_replay
from torchjanus.graph.recursion.cells.invoke import Invocation
from torchjanus.graph.recursion.cells.invoke_op import register
from torchjanus.graph.recursion.variants.plan import LevelSchedule

__all__ = ["main", "measure"]

CASES = (("TreeLSTM", 64), ("TreeLSTM", 150), ("TreeRNN", 150))
TREES = 25
PRODUCT = 1024


def level_by_level(model: Model, forest: LevelSchedule) -> list[Tensor]:
    """The same cells mapped over stacked rows by torch.vmap, under autograd."""
    recursion = model.recursion
    buffers: list[list[Tensor]] = [[] for _ in recursion.buffers]
    for batch in forest.batches:
        cell = recursion.cells[batch.cell]
        rows = [torch.cat(buffer) if buffer else None for buffer in buffers]
        given = []
        for place, index in enumerate(cell.takes):
            stack = rows[index]
            assert stack is not None
            taken = forest.taken[batch.cell][place].narrow(0, batch.first, batch.count)
            given.append(stack.index_select(0, taken))
        given += [column.narrow(0, batch.first, batch.count) for column in forest.columns[batch.cell]]
        made = torch.vmap(lambda *row, cell=cell: list(cell.function(recursion.shared, row)))(*given)
        for index, stack in zip(cell.gives, made, strict=True):
            buffers[index].append(stack)
    return [
        torch.cat(buffers[index]).index_select(0, rows)
        for index, rows in zip(recursion.results, forest.results, strict=True)
    ]


def products(model: Model, forest: LevelSchedule) -> tuple[Callable[[], object], int]:
    """The matrix products of a forward and backward pass, and how many operations they are."""
    calls: list[tuple[Tensor, Tensor]] = []
    totals: dict[int, int] = {}
    weights = {0: model.recursion.shared[1].detach(), 1: model.recursion.shared[-2].detach()}
    if model.name == "TreeRNN":
        del weights[0]  # its leaves are words as they are
    for batch in forest.batches:
        totals[batch.cell] = totals.get(batch.cell, 0) + batch.count
        if batch.cell in weights:
            weight = weights[batch.cell]
            calls.append((torch.randn(batch.count, weight.size(1)), weight.t()))
            calls.append((torch.randn(batch.count, weight.size(0)), weight))
    for cell, weight in weights.items():
        calls.append((torch.randn(totals[cell], weight.size(0)).t(), torch.randn(totals[cell], weight.size(1))))

    def run() -> None:
        for one, other in calls:
            torch.mm(one, other)

    return run, sum(2 * one.size(0) * one.size(1) * other.size(1) for one, other in calls)


def measure(name: str, width: int, repetitions: int) -> dict[str, tuple[float, float]]:
    """Of each contender the median and the best time, in milliseconds."""
    model = MODELS[name](width, torch.float32)
    given = trees(TREES, 10, 30, 1)
    forest, shared = model.layout(model.recursion, given), model.recursion.shared

    def both(stacks: Sequence[Tensor]) -> None:
        torch.autograd.grad(stacks, shared, [torch.ones_like(stack) for stack in stacks], allow_unused=True)

    def plain(tree: Tree) -> Sequence[Tensor]:
        return model.plain(shared, tree)

    def run(invocation: Invocation) -> None:
        with invocation.use(forest):
            both(invocation(TREES, shared, []))

    replayed, compiled = Invocation(model.recursion), Invocation(model.recursion)
    kept = run_by_replay(replayed)
    run(replayed)
    calls = compile_calls(compiled.partition(shared, []), compile_part)
    register(calls.partition.key, calls)
    only, operations = products(model, forest)
    large = torch.randn(PRODUCT, PRODUCT)
    contenders: dict[str, Callable[[], object]] = {
        "recursion": lambda: both([torch.stack(list(rows)) for rows in zip(*map(plain, given), strict=True)]),
        "level by level": lambda: both(level_by_level(model, forest)),
        "replay": lambda: run(replayed),
        "compiled": lambda: run(compiled),
        "products": only,
        "large product": lambda: torch.mm(large, large),
    }
    times: dict[str, list[float]] = {who: [] for who in contenders}
    for turn in range(repetitions + 3):
        for who, work in contenders.items():
            if who == "recursion" and turn % 8:
                continue
            started = time.perf_counter()
            work()
            if turn > 2 or who == "recursion":
                times[who].append((time.perf_counter() - started) * 1e3)
    found = {who: (statistics.median(all_of), min(all_of)) for who, all_of in times.items()}
    median, best = found.pop("large product")
    share = operations / (2 * PRODUCT**3)
    found["floor"] = (median * share, best * share)
    assert len(kept) == 1
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=40)
    repetitions = parser.parse_args().repetitions
    torch.set_num_threads(1)
    table = Table(title="Forward and backward of 25 trees, ms: median (best)")
    for column in ("model", "width", "recursion", "level by level", "replay", "compiled", "products", "floor"):
        table.add_column(column)
    for name, width in CASES:
        found = measure(name, width, repetitions)
        times = (f"{found[who][0]:.2f} ({found[who][1]:.2f})" for who in list(table_names(table)))
        table.add_row(name, str(width), *times)
    Console(width=160).print(table)


def table_names(table: Table) -> list[str]:
    """The contenders of the table."""
    return [str(column.header) for column in table.columns[2:]]


if __name__ == "__main__":
    main()

"""Runs all calls of a level schedule, batch by batch, by ATen calls: what an invoke node of a graph does (JANUS 5).

In: a level schedule, the shared tensors and the seeds. Out: the rows that the step uses, and in a backward pass the
gradients of both. ``cells`` runs the batches of one cell. The rows of all batches are in buffers allocated once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from torchjanus.execute.regions.cells import CellCalls, CellRun, ReductionSums, Run, Tensors
from torchjanus.execute.running.gate import below_autograd
from torchjanus.execute.running.partition import apart
from torchjanus.graph.ir.program import Program
from torchjanus.graph.recursion.cells.invoke import EntryCalls, Invocation
from torchjanus.graph.recursion.cells.invoke_op import Calls, ScheduledRun, known_calls, register
from torchjanus.graph.recursion.cells.partition import Partition
from torchjanus.graph.recursion.variants.plan import LevelSchedule, ReductionBatch

__all__ = ["BatchedCalls", "invocations_of", "ready_calls", "run_by_replay"]


_TRUE = torch.ones((), dtype=torch.bool)


class BatchedCalls:
    """Runs the calls of a level schedule. See graph.recursion.cells.invoke_op.Calls."""

    def __init__(self, partition: Partition, cells: Sequence[CellCalls]) -> None:
        self.partition, self.owner = partition, partition.owner
        self.cells = cells
        self._once = [buffer.once for buffer in partition.recursion.buffers]
        self.batches = [0] * len(cells)  # the number of batches that each cell has run
        self.runs = 0

    def forward(self, laid: ScheduledRun, key: int, shared: Tensors, seeds: Tensors) -> list[torch.Tensor]:
        """Return the rows that the step uses, and the truth values."""
        with below_autograd():
            recursion, forest = self.partition.recursion, laid.forest
            buffers = [
                torch.empty((size, *buffer.shape), dtype=buffer.dtype)
                for size, buffer in zip(forest.sizes, recursion.buffers, strict=True)
            ]
            for index, seed in zip(recursion.seeds, seeds, strict=True):
                buffers[index].narrow(0, 0, seed.size(0)).copy_(seed)
            sizes = [seed.size(0) for seed in seeds]
            run = Run(forest, self._once, shared, sizes, buffers, self._runs(forest))
            run.sums = [None if added is None else ReductionSums(added) for added in forest.added]
            positions, summed = [0] * len(self.cells), [0] * len(run.sums)
            self.runs += 1
            for own in run.cells:
                if own is not None:
                    self.batches[own.cell.number] += len(own.batches)
                    own.cell.begin(run, own)
            for batch in forest.batches:
                if isinstance(batch, ReductionBatch):
                    self._add_up(run, batch, summed[batch.total])
                    summed[batch.total] += 1
                    continue
                number = batch.cell
                own = run.cells[number]
                assert own is not None
                own.cell.forward(run, own, batch, positions[number])
                positions[number] += 1
            laid.states[key] = run
            forest.kept.update((index, buffers[index]) for index in recursion.kept)
            taken = [
                torch.index_select(buffers[index], 0, rows)
                for index, rows in zip(recursion.results, forest.results, strict=True)
            ]
            asked = [buffers[index].all() for index in recursion.truths]
            asked += [(buffers[index].any() if len(buffers[index]) else _TRUE) for index in recursion.somewhere]
            asked += [buffers[index].any().logical_not() for index in recursion.nowhere]
            return [*taken, *(one.reshape(1) for one in asked)]

    def backward(
        self, laid: ScheduledRun, key: int, present: str, tangents: Tensors, shared: Tensors
    ) -> list[torch.Tensor]:
        """Return the gradients of the shared tensors, and of the seeds, which are the first rows of their buffers."""
        with below_autograd():
            partition, forest = self.partition, laid.forest
            run: Run = laid.states[key]
            run.shared = shared
            run.gradients = [
                None if not active else (torch.empty_like if whole else torch.zeros_like)(buffer)
                for buffer, active, whole in zip(
                    run.buffers, partition.active, self._complete(run, present), strict=True
                )
            ]
            self.begin_backward(run)
            left = iter(tangents)
            for flag, place in zip(present, partition.tangents, strict=True):
                if flag == "1":
                    run.give(partition.recursion.results[place], forest.results[place], next(left))
            positions = [0] * len(self.cells)
            summed = [0 if sums is None else len(sums.terms) for sums in run.sums]
            for own in run.cells:
                if own is not None:
                    positions[own.cell.number] = len(own.batches)
                    own.cell.begin_backward(run, own)
            for batch in reversed(forest.batches):
                if isinstance(batch, ReductionBatch):
                    summed[batch.total] -= 1
                    self._add_up_backward(run, batch, summed[batch.total])
                    continue
                number = batch.cell
                own = run.cells[number]
                assert own is not None
                positions[number] -= 1
                own.cell.backward(run, own, batch, positions[number])
            return self._gradients(run)

    def begin_backward(self, run: Run) -> None:
        """Hook for subclasses that need more of the schedule."""

    def _add_up(self, run: Run, adding: ReductionBatch, position: int) -> None:
        """Add up in the order of the terms: index_add_ adds them one after the other."""
        total, buffers, sums = self.partition.recursion.totals[adding.total], run.buffers, run.sums[adding.total]
        assert sums is not None
        made = buffers[total.gives].narrow(0, adding.row, adding.count)
        if total.start is None:
            made.zero_()
        elif total.start == total.gives:
            made.copy_(buffers[total.start].index_select(0, sums.starts[position]))
        else:
            torch.index_select(buffers[total.start], 0, sums.starts[position], out=made)
        made.index_add_(0, sums.targets[position], buffers[total.items].index_select(0, sums.terms[position]))

    def _add_up_backward(self, run: Run, adding: ReductionBatch, position: int) -> None:
        total, sums = self.partition.recursion.totals[adding.total], run.sums[adding.total]
        gradients, active = run.gradients, self.partition.active
        if not total.grad or not active[total.gives]:
            return
        assert sums is not None
        gradient = gradients[total.gives].narrow(0, adding.row, adding.count)
        if total.start is not None and active[total.start]:
            # A copy, where its target is the same buffer.
            copied = gradient.clone() if total.start == total.gives else gradient
            run.give(total.start, sums.starts[position], copied)
        if active[total.items]:
            run.give(total.items, sums.terms[position], gradient.index_select(0, sums.targets[position]))

    def _complete(self, run: Run, present: str) -> list[bool]:
        """Return for each buffer whether every row gets exactly one gradient, so that it need not be zeroed."""
        partition, forest = self.partition, run.forest
        recursion, active = partition.recursion, partition.active
        received = [0] * len(run.buffers)
        for own in run.cells:
            if own is not None:
                for place in own.cell.parts.taken:
                    received[own.cell.parts.cell.takes[place]] += own.total
        for total, added in zip(recursion.totals, forest.added, strict=False):
            if added is not None and total.grad and active[total.gives]:
                received[total.items] += len(added.terms)
                if total.start is not None and added.starts is not None:
                    received[total.start] += len(added.starts)
        for flag, place in zip(present, partition.tangents, strict=True):
            if flag == "1":
                received[recursion.results[place]] += len(forest.results[place])
        return [once and rows == size for once, rows, size in zip(run.once, received, forest.sizes, strict=True)]

    def _gradients(self, run: Run) -> list[torch.Tensor]:
        partition, shared = self.partition, run.shared
        sums: dict[int, torch.Tensor] = {}
        for own in run.cells:
            if own is not None:
                for index, found in zip(own.cell.parts.wanted, own.cell.sums(run, own), strict=True):
                    sums[index] = sums[index] + found if index in sums else found
        made = [
            sums[index].contiguous() if index in sums else torch.zeros(shared[index].size(), dtype=shared[index].dtype)
            for index in partition.wanted
        ]
        for place in partition.wanted_seeds:
            gradient = run.gradients[partition.recursion.seeds[place]]
            made.append(gradient.narrow(0, 0, run.seeds[place]).clone())
        return apart(made)

    def _runs(self, forest: LevelSchedule) -> list[CellRun | None]:
        runs: list[CellRun | None] = [None] * len(self.cells)
        for batch in forest.batches:
            if isinstance(batch, ReductionBatch):
                continue
            own = runs[batch.cell]
            if own is None:
                own = runs[batch.cell] = CellRun(self.cells[batch.cell], [])
            own.batches.append(batch)
            own.counts.append(batch.count)
            own.total += batch.count
        for own in runs:
            if own is not None:
                own.rows = [rows.split_with_sizes(own.counts) for rows in forest.taken[own.cell.number]]
        return runs


def _replay(partition: Partition) -> BatchedCalls:
    return BatchedCalls(partition, [CellCalls(number, parts) for number, parts in enumerate(partition.cells)])


def invocations_of(program: Program) -> Iterator[Partition]:
    """Yield the recursions that a program runs."""
    for node in program.nodes:
        func = node.func.invocation if isinstance(node.func, EntryCalls) else node.func
        if isinstance(func, Invocation):
            yield from func.made.values()


def ready_calls(program: Program) -> list[Calls]:
    """Return the runners of the program's recursions. The graph can be run as long as they are kept."""
    made: list[Calls] = []
    for partition in invocations_of(program):
        calls = known_calls(partition.key)
        if calls is None:
            calls = _replay(partition)
            register(partition.key, calls)
        made.append(calls)
    return made


def run_by_replay(invocation: Invocation) -> list[BatchedCalls]:
    """Run the invocation by replay outside of a graph, as long as the returned list is kept."""
    made: list[BatchedCalls] = []

    def run(partition: Partition) -> None:
        made.append(_replay(partition))
        register(partition.key, made[-1])

    for partition in invocation.made.values():
        run(partition)
    invocation.notify = run
    return made

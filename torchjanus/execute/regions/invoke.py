"""Runs all calls of a level schedule, batch by batch, by ATen calls: what an invoke node of a graph does (JANUS 5).

The parts of a cell (see graph.recursion.cells.split) are printed as Python, as the replay executor prints a whole step.
The rows of all batches are in buffers that are allocated once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.execute.running.gate import below_autograd
from torchjanus.execute.running.partition import apart, printed
from torchjanus.graph.ir.program import Program
from torchjanus.graph.recursion.cells.batch import Like
from torchjanus.graph.recursion.cells.invoke import EntryCalls, Invocation
from torchjanus.graph.recursion.cells.invoke_op import Calls, ScheduledRun, known_calls, register
from torchjanus.graph.recursion.cells.partition import Partition
from torchjanus.graph.recursion.cells.split import CellParts
from torchjanus.graph.recursion.variants.plan import Batch, LevelSchedule, ReductionBatch, ReductionSchedule
from torchjanus.graph.regions.partition import Source

__all__ = ["BatchedCalls", "CellCalls", "CellRun", "Run", "Tensors", "invocations_of", "ready_calls", "run_by_replay"]

Tensors = Sequence[torch.Tensor]


@dataclass(eq=False, slots=True)
class Run:
    """One forward run of a level schedule, and possibly its backward run. ``once``: for each buffer, whether each row
    is used once; ``gradients``: for each buffer that has them."""

    forest: LevelSchedule
    once: Sequence[bool]
    shared: Tensors
    seeds: list[int]  # how many rows of each seed the step has supplied
    buffers: list[torch.Tensor]
    cells: list[CellRun | None]  # None: no call runs the cell
    gradients: list[Any] = field(default_factory=list)
    sums: list[_ReductionSums | None] = field(default_factory=list)  # for each total

    def give(self, buffer: int, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add gradients to these rows. Where rows are used once there is nothing to add to."""
        if self.once[buffer]:
            self.gradients[buffer].index_copy_(0, rows, gradient)
        else:
            self.gradients[buffer].index_add_(0, rows, gradient)


@dataclass(eq=False, slots=True)
class CellRun:
    """One cell's batches in a run: the values ``common`` to all calls, and for each source a stack with a row for each
    call, in the order of the batches, with its ``slices`` by batch."""

    cell: CellCalls
    batches: list[Batch]
    counts: list[int] = field(default_factory=list)
    total: int = 0
    rows: list[Tensors] = field(default_factory=list)  # for each input of the cell, the rows that each batch takes
    stacks: dict[Source, torch.Tensor] = field(default_factory=dict)
    slices: dict[Source, Tensors] = field(default_factory=dict)
    common: Tensors = ()
    # Arguments of its batches, for runners that prepare them.
    forward: Iterator[Tensors] = field(default_factory=lambda: iter(()))
    backward: Iterator[Tensors] = field(default_factory=lambda: iter(()))

    def stack(self, source: Source, stack: torch.Tensor, factor: int = 1) -> None:
        """Set the stack of this source."""
        self.stacks[source] = stack
        counts = self.counts if factor == 1 else [count * factor for count in self.counts]
        self.slices[source] = stack.split_with_sizes(counts)

    def rows_given(self, place: int, buffers: Tensors) -> torch.Tensor:
        """Return the rows of output number ``place`` for all batches."""
        buffer, first = buffers[self.cell.parts.cell.gives[place]], self.batches[0].rows[place]
        if self._adjoin(place):
            return buffer.narrow(0, first, self.total)
        return torch.cat(list(self.slices_given(place, buffers)))

    def slices_given(self, place: int, buffers: Tensors) -> Tensors:
        """Return the same, by batch."""
        buffer = buffers[self.cell.parts.cell.gives[place]]
        if self._adjoin(place):
            return buffer.narrow(0, self.batches[0].rows[place], self.total).split_with_sizes(self.counts)
        return [buffer.narrow(0, batch.rows[place], batch.count) for batch in self.batches]

    def _adjoin(self, place: int) -> bool:
        end = self.batches[0].rows[place]
        for batch in self.batches:
            if batch.rows[place] != end:
                return False
            end += batch.count
        return True


class _ReductionSums:
    """What is added up for one total, by batch."""

    def __init__(self, added: ReductionSchedule) -> None:
        self.starts: Tensors = () if added.starts is None else added.starts.split_with_sizes(list(added.counts))
        self.terms: Tensors = added.terms.split_with_sizes(list(added.sizes))
        self.targets: Tensors = added.targets.split_with_sizes(list(added.sizes))


class CellCalls:
    """Runs one cell by replay."""

    def __init__(self, number: int, parts: CellParts) -> None:
        self.number, self.parts = number, parts
        self._forward = printed(parts.forward)
        self._common, self._rows, self._sums = (
            None if part is None else printed(part) for part in (parts.common, parts.rows, parts.sums)
        )

    writes = False  # whether the forward part itself writes what is saved

    def begin(self, run: Run, own: CellRun) -> None:
        """Compute what is common to all calls, and allocate what they save."""
        parts = self.parts
        if self._common is not None and parts.common is not None:
            own.common = self._common([run.shared[source.index] for source in parts.common.sources], ())
        for index, column in enumerate(run.forest.columns[self.number]):
            own.stack(Source("column", index), column)
        if len(own.batches) > 1 or self.writes:
            for index, like in enumerate(parts.saved):
                own.stack(Source("saved", index), room(own.total, like), like.size[0])

    def forward(self, run: Run, own: CellRun, batch: Batch, position: int) -> None:
        """Run one batch."""
        parts, slices, count = self.parts, own.slices, batch.count
        made = self._forward([self._given(run, own, batch, position, source) for source in parts.forward.sources], ())
        for place, index in enumerate(parts.cell.gives):
            run.buffers[index].narrow(0, batch.rows[place], count).copy_(made[place])
        for number, value in enumerate(made[len(parts.cell.gives) :]):
            source = Source("saved", number)
            if source in slices:
                slices[source][position].copy_(value)
            else:  # there is no other batch
                own.stacks[source] = value.contiguous()
                slices[source] = (own.stacks[source],)

    def begin_backward(self, run: Run, own: CellRun) -> None:
        """Allocate what the batches compute for ``sums``."""
        for index, like in enumerate(self.parts.row_results):
            own.stack(Source("row_results", index), room(own.total, like), like.size[0])

    def backward(self, run: Run, own: CellRun, batch: Batch, position: int) -> None:
        """Run one batch backwards: compute the gradients of the rows that it took."""
        parts = self.parts
        if self._rows is None or parts.rows is None:
            return
        made = self._rows([self._given(run, own, batch, position, source) for source in parts.rows.sources], ())
        for place, gradient in zip(parts.taken, made, strict=False):
            run.give(parts.cell.takes[place], own.rows[place][position], gradient)
        for index, value in enumerate(made[len(parts.taken) :]):
            own.slices[Source("row_results", index)][position].copy_(value)

    def sums(self, run: Run, own: CellRun) -> Tensors:
        """Return the gradients of the shared tensors in ``wanted``, over all batches."""
        if self._sums is None or self.parts.sums is None:
            return ()
        return self._sums([self._given_whole(run, own, source) for source in self.parts.sums.sources], ())

    def _given_whole(self, run: Run, own: CellRun, source: Source) -> Any:
        """Return an argument of ``sums``."""
        match source.kind:
            case "shared":
                return run.shared[source.index]
            case "output":
                return own.rows_given(source.index, run.buffers)
            case "tangent":
                return own.rows_given(source.index, run.gradients)
            case "taken":
                rows = run.forest.taken[self.number][source.index]
                return run.buffers[self.parts.cell.takes[source.index]].index_select(0, rows)
            case "count":
                return own.total
        return own.stacks[source]

    def _given(self, run: Run, own: CellRun, batch: Batch, position: int, source: Source) -> Any:
        """Return an argument of a part in one batch."""
        match source.kind:
            case "shared":
                return run.shared[source.index]
            case "common":
                return own.common[source.index]
            case "output":
                first = batch.rows[source.index]
                return run.buffers[self.parts.cell.gives[source.index]].narrow(0, first, batch.count)
            case "tangent":
                first = batch.rows[source.index]
                return run.gradients[self.parts.cell.gives[source.index]].narrow(0, first, batch.count)
            case "count":
                return batch.count
            case "taken":
                rows = own.rows[source.index][position]
                return run.buffers[self.parts.cell.takes[source.index]].index_select(0, rows)
        return own.slices[source][position]


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
            run.sums = [None if added is None else _ReductionSums(added) for added in forest.added]
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


def room(total: int, like: Like) -> torch.Tensor:
    """Return uninitialised rows for this many calls."""
    return torch.empty((total * like.size[0], *like.size[1:]), dtype=like.dtype)


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

"""Runs the batches of one recursive cell by replay, forward and backward, over buffers of rows (JANUS 5).

A buffer has a row for each call. The parts of a cell (see graph.recursion.cells.split) are printed as Python, as the
replay executor prints a whole step. In: a ``Run``, the buffers of one level schedule. Out: the rows that its batches
write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.execute.running.partition import printed
from torchjanus.graph.recursion.cells.batch import Like
from torchjanus.graph.recursion.cells.split import CellParts
from torchjanus.graph.recursion.variants.plan import Batch, LevelSchedule, ReductionSchedule
from torchjanus.graph.regions.partition import Source

__all__ = ["CellCalls", "CellRun", "ReductionSums", "Run", "Tensors"]


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
    sums: list[ReductionSums | None] = field(default_factory=list)  # for each total

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


class ReductionSums:
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


def room(total: int, like: Like) -> torch.Tensor:
    """Return uninitialised rows for this many calls."""
    return torch.empty((total * like.size[0], *like.size[1:]), dtype=like.dtype)

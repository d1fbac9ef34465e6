"""Checks that the compiled parts of a cell compute what replay does, for batches of several sizes.

Inductor was seen to be wrong for some sizes only, and to hold a dynamic size constant: the calls of a step on trial may
not be enough to find that. This module does not know how parts were compiled.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.execute.regions.cells import CellCalls, CellRun, Run, Tensors
from torchjanus.graph.lowering.invoke_for_inductor import adds
from torchjanus.graph.recursion.cells.partition import Partition
from torchjanus.graph.recursion.variants.plan import Batch, LevelSchedule

__all__ = ["disagreement"]

_COUNTS = (1, 2, 41)
_WITHIN = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest element
_LOOSE = 2e-2


def disagreement(partition: Partition, plain: CellCalls, compiled: CellCalls) -> str:
    """Return what differs on random rows, or "". Raises what the compiled code raises."""
    trial = _Trial(partition, plain)
    expected, found = trial.run(plain), trial.run(compiled)
    for name, value in expected.items():
        if not _close(value, found[name]):
            return name
    return ""


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    finite = one[one.isfinite()]
    within = _WITHIN.get(one.dtype, _LOOSE)
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(other, one, rtol=within, atol=within * largest, equal_nan=True)


class _Trial:
    """Some calls of one cell on random rows."""

    def __init__(self, partition: Partition, cell: CellCalls) -> None:
        self._partition = partition
        self._random = torch.Generator().manual_seed(0)  # not the user's
        recursion, parts = partition.recursion, cell.parts.cell
        total = sum(_COUNTS)
        sizes = [0] * len(recursion.buffers)
        taken: list[torch.Tensor] = []
        begun: dict[int, int] = {}  # first row, by buffer, of rows that may be used several times
        for place, index in enumerate(parts.takes):
            first = begun.setdefault(index, sizes[index])
            if recursion.buffers[index].once:
                first = sizes[index]
            sizes[index] = max(sizes[index], first + total)
            numbers = torch.arange(total).flip(0)
            taken.append(first + (numbers if adds(parts, place) else numbers // 2))
        given = []
        for index in parts.gives:
            given.append(sizes[index])
            sizes[index] += total
        batches, first = list[Batch](), 0
        for count in _COUNTS:
            batches.append(Batch(cell.number, count, first, tuple(row + first for row in given)))
            first += count
        columns: list[list[torch.Tensor]] = [[] for _ in recursion.cells]
        columns[cell.number] = [self._values((total, *one.shape), one.dtype) for one in parts.columns]
        everyone: list[list[torch.Tensor]] = [[] for _ in recursion.cells]
        everyone[cell.number] = taken
        self._batches = batches
        self._forest = LevelSchedule(sizes, batches, everyone, columns, [], [])
        self._shared = [self._like(one) for one in recursion.shared]
        self._buffers = [
            self._values((size, *one.shape), one.dtype) for size, one in zip(sizes, recursion.buffers, strict=True)
        ]
        self._gradients: list[Any] = [
            self._values(tuple(buffer.size()), buffer.dtype) if active else None
            for buffer, active in zip(self._buffers, partition.active, strict=True)
        ]
        for index, rows in zip(parts.takes, taken, strict=True):
            if self._gradients[index] is not None and recursion.buffers[index].once:
                self._gradients[index][rows] = 0

    def _values(self, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return random numbers; zeros for integers, which are valid indices of everything."""
        if not dtype.is_floating_point:
            return torch.zeros(size, dtype=dtype)
        return torch.randn(size, generator=self._random, dtype=torch.float64).to(dtype)

    def _like(self, one: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(one.size(), one.stride(), dtype=one.dtype)
        return made.copy_(self._values(tuple(one.size()), one.dtype))

    def run(self, cell: CellCalls) -> dict[str, torch.Tensor]:
        """Return all that the cell computes."""
        forest, partition = self._forest, self._partition
        batches = self._batches
        rows: list[Tensors] = [taken.split_with_sizes(list(_COUNTS)) for taken in forest.taken[cell.number]]
        own = CellRun(cell, batches, list(_COUNTS), sum(_COUNTS), rows)
        cells: list[CellRun | None] = [None] * len(partition.cells)
        cells[cell.number] = own
        buffers = [buffer.clone() for buffer in self._buffers]
        gradients = [None if one is None else one.clone() for one in self._gradients]
        once = [buffer.once for buffer in partition.recursion.buffers]
        run = Run(forest, once, self._shared, [], buffers, cells, gradients)
        with torch.no_grad():
            cell.begin(run, own)
            for position, batch in enumerate(batches):
                cell.forward(run, own, batch, position)
            cell.begin_backward(run, own)
            for position, batch in reversed(list(enumerate(batches))):
                cell.backward(run, own, batch, position)
            sums = cell.sums(run, own)
        found = {f"buffer {index}": value for index, value in enumerate(buffers)}
        found.update((f"gradient {index}", value) for index, value in enumerate(gradients) if value is not None)
        found.update((f"{source.kind} {source.index}", value) for source, value in own.stacks.items())
        found.update((f"sum {index}", value) for index, value in enumerate(sums))
        return found

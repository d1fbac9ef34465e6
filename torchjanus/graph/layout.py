"""Lays out a Forest: what was noted of the calls of one run, call by call, in batches level by level.

What is noted is numbers, and they are put in order many at a time. Knows nothing of trees, nor of how cells are run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from torchjanus.graph.recursion import Added, Adding, Batch, Column, Forest, Recursion, Total

__all__ = ["Noted", "lay_out"]


@dataclass(slots=True)
class Noted:
    """What following the calls of a run has found. Every row that is passed on has a number; ``level`` tells of each
    after how many cells it is there (those that the step supplies come first).

    ``units``: of each cell, one after the other, what goes through it: its level, the number of the first row it gives,
    those of the rows it takes (of a cell that takes none, only the second of these). ``columns`` are in the same order.
    ``sums``: of each total likewise the level, the row it gives, the one it starts from (or 0), how many terms it has;
    and ``terms``: their rows. ``results``: of each root those of the tensors it returns. ``writes``: see Forest.
    """

    level: list[int]
    units: Sequence[list[int]]
    columns: Sequence[Sequence[list[Any]]]
    sums: Sequence[list[int]]
    terms: Sequence[list[int]]
    results: list[list[int]]
    writes: list[tuple[int, Any, Any]]


def lay_out(recursion: Recursion, supplied: Sequence[int], noted: Noted, rows_written: Sequence[bool]) -> Forest:
    """The forest. ``supplied``: how many rows the step supplies of each seed; ``rows_written``: of each write, whether
    what is written is a row."""
    return _Layout(recursion, supplied, noted).forest(rows_written)


class _Kind:
    """All that goes through one cell, or total, by level. ``counts``: how much at each level; ``shifts``: of each of
    the rows that it gives, by how much in each batch its place differs from its number among its kind."""

    def __init__(self, flat: list[int], width: int, gives: int) -> None:
        self.table = _numbers(flat).view(-1, width)
        self.order: torch.Tensor | None = None  # None: as it is
        self.counts = [self.table.size(0)]
        if width > 1:
            level = self.table[:, 0]
            self.order = level.argsort(stable=True)
            self.counts = torch.bincount(level).tolist()
            self.table = self.table.index_select(0, self.order)
        self.first = 0
        self.shifts: list[list[int]] = [[] for _ in range(gives)]

    def sorted(self, values: torch.Tensor) -> torch.Tensor:
        """Values noted of each in this order."""
        return values if self.order is None else values.index_select(0, self.order)

    def per_batch(self, values: Sequence[int]) -> torch.Tensor:
        """One value of each batch, for all that is in it."""
        counts = torch.tensor([count for count in self.counts if count])
        return torch.tensor(values).repeat_interleave(counts, output_size=self.table.size(0))


class _Layout:
    def __init__(self, recursion: Recursion, supplied: Sequence[int], noted: Noted) -> None:
        self.recursion, self.noted = recursion, noted
        self.sizes = [0] * len(recursion.buffers)
        self.places = torch.empty(len(noted.level), dtype=torch.int64)  # of each row its place in its buffer
        begun = 0
        for buffer, seeds in zip(recursion.seeds, supplied, strict=True):
            self.places[begun : begun + seeds] = torch.arange(seeds)
            self.sizes[buffer] = seeds
            begun += seeds
        self.cells = [
            _Kind(flat, 2 + len(cell.takes) if cell.takes else 1, len(cell.gives)) if flat else None
            for cell, flat in zip(recursion.cells, noted.units, strict=True)
        ]
        self.totals = [_Kind(flat, 4, 1) if flat else None for flat in noted.sums]

    def forest(self, rows_written: Sequence[bool]) -> Forest:
        recursion, noted, places = self.recursion, self.noted, self.places
        batches = self._batches()
        for cell, kind in zip(recursion.cells, self.cells, strict=True):
            if kind is not None:
                first = kind.table[:, 1 if cell.takes else 0]
                for which in range(len(cell.gives)):
                    self._place(kind, which, first + which if which else first)
        for kind in self.totals:
            if kind is not None:
                self._place(kind, 0, kind.table[:, 1])
        writes = noted.writes
        if any(rows_written[number] for number, _, _ in writes):
            known = places.tolist()
            writes = [(n, target, known[value] if rows_written[n] else value) for n, target, value in writes]
        return Forest(
            self.sizes,
            batches,
            [_none if kind is None else self._taken(kind) for kind in self.cells],
            [
                [_stacked(values, column, kind) for values, column in zip(own, cell.columns, strict=True)]
                for own, cell, kind in zip(noted.columns, recursion.cells, self.cells, strict=True)
            ],
            [
                None if kind is None else self._added(kind, terms, total)
                for kind, terms, total in zip(self.totals, noted.terms, recursion.totals, strict=True)
            ],
            [
                places.index_select(0, _numbers([made[n] for made in noted.results]))
                for n in range(len(recursion.results))
            ],
            writes,
        )

    def _batches(self) -> list[Batch | Adding]:
        """The batches, level by level."""
        recursion, sizes = self.recursion, self.sizes
        gives = [*(cell.gives for cell in recursion.cells), *((total.gives,) for total in recursion.totals)]
        present = [(n, kind) for n, kind in enumerate((*self.cells, *self.totals)) if kind is not None]
        batches: list[Batch | Adding] = []
        for level in range(max((len(kind.counts) for _, kind in present), default=0)):
            for number, kind in present:
                count = kind.counts[level] if level < len(kind.counts) else 0
                if not count:
                    continue
                rows = []
                for buffer, shifts in zip(gives[number], kind.shifts, strict=True):
                    rows.append(sizes[buffer])
                    shifts.append(sizes[buffer] - kind.first)
                    sizes[buffer] += count
                if number < len(recursion.cells):
                    batches.append(Batch(number, count, kind.first, tuple(rows)))
                else:
                    batches.append(Adding(number - len(recursion.cells), count, kind.first, rows[0]))
                kind.first += count
        return batches

    def _place(self, kind: _Kind, which: int, rows: torch.Tensor) -> None:
        """Note the places of rows: their number among their kind, and the shift of their batch."""
        shifts = kind.shifts[which]
        places = torch.arange(rows.size(0))
        places += shifts[0] if len(set(shifts)) == 1 else kind.per_batch(shifts)
        self.places.index_copy_(0, rows, places)

    def _taken(self, kind: _Kind) -> Sequence[torch.Tensor]:
        """The rows that all calls of a cell take."""
        taken = kind.table[:, 2:].t().contiguous()
        return self.places.index_select(0, taken.view(-1)).view(taken.size()).unbind(0)

    def _added(self, kind: _Kind, terms: list[int], total: Total) -> Added:
        """The rows of a total's terms, and where each goes."""
        rows, lengths = _numbers(terms), kind.table[:, 3]
        if kind.order is not None:
            # Terms were noted in another order than sums are in now.
            before = torch.empty_like(lengths).index_copy_(0, kind.order, lengths)
            rank = torch.empty_like(lengths).index_copy_(0, kind.order, torch.arange(len(lengths)))
            rows = rows.index_select(0, rank.repeat_interleave(before).argsort(stable=True))
        counts = [count for count in kind.counts if count]
        begun = list(accumulate(counts, initial=0))
        targets = (torch.arange(len(lengths)) - kind.per_batch(begun[:-1])).repeat_interleave(lengths)
        ends = [0, *lengths.cumsum(0).tolist()]
        sizes = [ends[end] - ends[start] for start, end in pairwise(begun)]
        starts = self.places.index_select(0, kind.table[:, 2]) if total.start is not None else None
        return Added(starts, self.places.index_select(0, rows), targets, tuple(counts), tuple(sizes))


_none: Sequence[torch.Tensor] = ()


def _numbers(values: list[int]) -> torch.Tensor:
    """The numbers as a tensor: torch.tensor takes several times as long."""
    return torch.frombuffer(array("q", values), dtype=torch.int64) if values else torch.empty(0, dtype=torch.int64)


def _stacked(values: list[Any], column: Column, kind: _Kind | None) -> torch.Tensor:
    if values and isinstance(values[0], torch.Tensor):
        made = torch.stack(values)
    elif column.dtype is torch.int64:
        made = _numbers(values)
    else:
        made = torch.tensor(values, dtype=column.dtype)
    return made.reshape(-1, *column.shape) if kind is None else kind.sorted(made)

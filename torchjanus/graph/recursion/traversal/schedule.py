"""Lays out the level schedule: batches what the traversal noted call by call, level by level.

The notes are numbers, placed many at a time with tensor operations. Independent of trees and of how cells run.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.graph.recursion.variants.plan import (
    Batch,
    Column,
    LevelSchedule,
    Recursion,
    Reduction,
    ReductionBatch,
    ReductionSchedule,
)

__all__ = ["NoSuchRow", "TraversalNotes", "lay_out"]


class NoSuchRow(Exception):
    """A call picks a row that the tensor does not have, or from a tensor of another shape than in watched runs."""


@dataclass(slots=True)
class TraversalNotes:
    """What the traversal of one run noted.

    Every row has a number; ``level`` maps it to the level at which it is computed (the rows that the step supplies come
    first).

    By cell and level: ``units`` holds for each execution the number of its first output row, then the numbers of its
    input rows; ``columns`` holds its host-supplied values: numbers, tensors, or (tensor, row number) pairs. By
    reduction and level: ``sums`` holds triples of the output row, the row it starts from (or 0) and the number of
    terms; ``terms`` holds the rows of the terms. ``results``: for each entry call the rows it returns; ``lists``: for
    each list the rows that calls append; ``counts``: the final values of counters; ``bounds``, ``writes``: see
    LevelSchedule."""

    level: list[int]
    units: Sequence[Mapping[int, list[int]]]
    columns: Sequence[Sequence[Mapping[int, list[Any]]]]
    sums: Sequence[Mapping[int, list[int]]]
    terms: Sequence[Mapping[int, list[int]]]
    results: list[list[int]]
    writes: list[tuple[int, Any, Any]]
    lists: Sequence[list[int]] = ()
    counts: Sequence[list[Any]] = ()
    bounds: Sequence[int] = ()


def lay_out(
    recursion: Recursion, supplied: Sequence[int], noted: TraversalNotes, rows_written: Sequence[bool]
) -> LevelSchedule:
    """Return the schedule. ``supplied``: for each seed how many rows the step supplies; ``rows_written``: for each
    write whether its value is a row. Raises NoSuchRow."""
    return _Layout(recursion, supplied, noted).forest(rows_written)


class _Executions:
    """All executions of one cell or reduction. ``counts``: how many there are at each level that has any; ``first``:
    how many are in batches already."""

    def __init__(self, by_level: Mapping[int, list[int]], width: int) -> None:
        self.counts = {level: len(by_level[level]) // width for level in sorted(by_level)}
        self.first = 0
        self.table: torch.Tensor  # one row for each execution


class _Rows:
    """Row numbers from many lists, collected so that one tensor operation places them all: a call of torch costs as
    much as some hundred numbers."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._ends = [0]

    def add(self, lists: Iterable[list[int]]) -> int:
        """Append these lists as one. Return its index."""
        for some in lists:
            self._numbers.fromlist(some)
        self._ends.append(len(self._numbers))
        return len(self._ends) - 2

    def whole(self) -> torch.Tensor:
        """Return all numbers as one tensor."""
        return torch.frombuffer(self._numbers, dtype=torch.int64) if self._numbers else _NOTHING

    def split(self, whole: torch.Tensor) -> Sequence[torch.Tensor]:
        """Split a tensor as long as ``whole()`` at the ends of the lists."""
        return whole.split_with_sizes([end - begin for begin, end in itertools.pairwise(self._ends)])


class _Layout:
    """One layout in progress."""

    def __init__(self, recursion: Recursion, supplied: Sequence[int], noted: TraversalNotes) -> None:
        self.recursion, self.noted = recursion, noted
        self.sizes = [0] * len(recursion.buffers)
        self.places = torch.empty(len(noted.level), dtype=torch.int64)  # row number -> index in its buffer
        begun = 0
        for buffer, seeds in zip(recursion.seeds, supplied, strict=True):
            self.places[begun : begun + seeds] = torch.arange(seeds)
            self.sizes[buffer] = seeds
            begun += seeds
        rows = self.rows = _Rows()
        widths = [1 + len(cell.takes) for cell in recursion.cells]
        self.cells = [
            _Executions(units, width) if any(units.values()) else None
            for width, units in zip(widths, noted.units, strict=True)
        ]
        self.totals = [_Executions(sums, 3) if sums else None for sums in noted.sums]
        for kind, units in zip(self.cells, noted.units, strict=True):
            rows.add([] if kind is None else (units[level] for level in kind.counts))
        for kind, terms in zip(self.totals, noted.terms, strict=True):
            rows.add([] if kind is None else (terms[level] for level in kind.counts))
        for n in range(recursion.by_root):
            rows.add([[made[n] for made in noted.results]])
        for some in noted.lists:
            rows.add([some])
        whole = rows.whole()
        for kind, width, table in zip(self.cells, widths, rows.split(whole), strict=False):
            if kind is not None:
                kind.table = table.view(-1, width)
        for kind, sums in zip(self.totals, noted.sums, strict=True):
            if kind is not None:
                kind.table = _joined(sums, kind.counts).view(-1, 3)

    def forest(self, rows_written: Sequence[bool]) -> LevelSchedule:
        """Return the LevelSchedule."""
        recursion, noted, places = self.recursion, self.noted, self.places
        batches = self._batches()
        writes = noted.writes
        if any(rows_written[number] for number, _, _ in writes):
            known = places.tolist()
            writes = [(n, target, known[value] if rows_written[n] else value) for n, target, value in writes]
        found = self.rows.split(places.index_select(0, self.rows.whole()))
        cells = len(recursion.cells)
        totals = cells + len(recursion.totals)
        return LevelSchedule(
            self.sizes,
            batches,
            [
                _none
                if kind is None or not cell.takes
                else rows.view(-1, 1 + len(cell.takes)).t().contiguous()[1:].unbind(0)
                for kind, cell, rows in zip(self.cells, recursion.cells, found, strict=False)
            ],
            [
                [_stacked(values, column, kind) for values, column in zip(own, cell.columns, strict=True)]
                for own, cell, kind in zip(noted.columns, recursion.cells, self.cells, strict=True)
            ],
            [
                None if kind is None else self._added(kind, rows, terms, total)
                for kind, rows, terms, total in zip(
                    self.totals, found[cells:totals], noted.terms, recursion.totals, strict=True
                )
            ],
            found[totals:],
            writes,
        )

    def _batches(self) -> list[Batch | ReductionBatch]:
        """Return the batches, level by level, and assign every row its index in its buffer."""
        recursion, sizes = self.recursion, self.sizes
        gives = [*(cell.gives for cell in recursion.cells), *((total.gives,) for total in recursion.totals)]
        present = [(n, kind) for n, kind in enumerate((*self.cells, *self.totals)) if kind is not None]
        one = dict(present)
        places = {number: [array("q") for _ in gives[number]] for number, _ in present}
        batches: list[Batch | ReductionBatch] = []
        cells = len(recursion.cells)
        for _, number, count in sorted((level, n, k) for n, kind in present for level, k in kind.counts.items() if k):
            kind = one[number]
            rows = []
            for buffer, found in zip(gives[number], places[number], strict=True):
                row = sizes[buffer]
                rows.append(row)
                end = sizes[buffer] = row + count
                found += counting(end)[row:end]
            if number < cells:
                batches.append(Batch(number, count, kind.first, tuple(rows)))
            else:
                batches.append(ReductionBatch(number - cells, count, kind.first, rows[0]))
            kind.first += count
        known, numbers = array("q"), list[torch.Tensor]()
        for number, kind in present:
            first = kind.table[:, 0]
            for which, found in enumerate(places[number]):
                numbers.append(first + which if which else first)
                known += found
        if known:
            self.places.index_copy_(0, torch.cat(numbers), torch.frombuffer(known, dtype=torch.int64))
        return batches

    def _added(
        self, kind: _Executions, rows: torch.Tensor, terms: Mapping[int, list[int]], total: Reduction
    ) -> ReductionSchedule:
        """Return a reduction's operands: the ``rows`` of its terms, and the sum to which each term belongs."""
        lengths, counts = kind.table[:, 2], list(kind.counts.values())
        within = array("q")
        for count in counts:
            within += counting(count)[:count]
        return ReductionSchedule(
            self.places.index_select(0, kind.table[:, 1]) if total.start is not None else None,
            rows,
            torch.frombuffer(within, dtype=torch.int64).repeat_interleave(lengths, output_size=len(rows)),
            tuple(counts),
            tuple(len(terms[level]) for level in kind.counts),
        )


_COUNTED = [array("q")]


def counting(end: int) -> array[int]:
    """Return an array that begins with 0, 1, ... ``end`` - 1; a slice of it costs a tenth of a new one."""
    known = _COUNTED[0]
    if len(known) < end:
        known = _COUNTED[0] = array("q", range(2 * end))  # never changed: other threads may have it
    return known


_none: Sequence[torch.Tensor] = ()
_NOTHING = torch.empty(0, dtype=torch.int64)


def _numbers(values: list[int]) -> torch.Tensor:
    """Return the numbers as an int64 tensor; ``torch.tensor`` takes several times as long."""
    return torch.frombuffer(array("q", values), dtype=torch.int64) if values else torch.empty(0, dtype=torch.int64)


def _joined(by_level: Mapping[int, list[Any]], levels: Mapping[int, Any]) -> torch.Tensor:
    """Return the concatenated numbers of these levels."""
    return _numbers(_flat(by_level, levels))


def _flat(by_level: Mapping[int, list[Any]], levels: Mapping[int, Any]) -> list[Any]:
    """Return the concatenated lists of these levels."""
    made: list[Any] = []
    for level in levels:
        made += by_level[level]
    return made


def _stacked(by_level: Mapping[int, list[Any]], column: Column, kind: _Executions | None) -> torch.Tensor:
    """Return a column's values for all executions of a cell, one row each."""
    values = [] if kind is None else _flat(by_level, kind.counts)
    if values and isinstance(values[0], torch.Tensor):
        return torch.stack(values)
    if values and isinstance(values[0], tuple):
        return _picked(values, column)
    made = _numbers(values) if column.dtype is torch.int64 else torch.tensor(values, dtype=column.dtype)
    return made.reshape(-1, *column.shape)


def _picked(values: list[tuple[torch.Tensor, int]], column: Column) -> torch.Tensor:
    """Return these rows of these tensors; nearly always there is one tensor only. Raises NoSuchRow."""
    by_table: dict[int, tuple[torch.Tensor, list[int], list[int]]] = {}
    for place, (table, number) in enumerate(values):
        _, numbers, places = by_table.setdefault(id(table), (table, [], []))
        numbers.append(number)
        places.append(place)
    made = torch.empty((len(values), *column.shape), dtype=column.dtype)
    for table, numbers, places in by_table.values():
        if tuple(table.shape[1:]) != column.shape or not 0 <= min(numbers) <= max(numbers) < table.size(0):
            raise NoSuchRow
        rows = table.index_select(0, _numbers(numbers))
        if len(by_table) == 1:
            return rows
        made.index_copy_(0, _numbers(places), rows)
    return made

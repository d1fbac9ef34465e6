"""A recursive function as cells that run for many of its calls at once, and the level schedule of one run. Plain data.

JANUS's InvokeOp (sections 4.2.1 and 5) runs one call after the other; here the calls of one level run together. A call
is cut where it waits for the calls that it makes: a *cell* is what it computes between two of these. Values pass from
cell to cell through *buffers*: a buffer has one row for each value in the same role, such as an argument of a function,
or its result by whichever variant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = [
    "Batch", "Buffer", "Cell", "Column", "LevelSchedule", "Recursion", "Reduction", "ReductionBatch",
    "ReductionSchedule",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Buffer:
    """Values in the same role, one row each. ``differentiable``: gradients flow back through them. ``once``: each row
    is used at most once, by one call."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    differentiable: bool
    once: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A call's own data from the host: a number (0-dimensional) or a tensor of fixed shape without gradient."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Cell:
    """What ONE call computes between two points at which it waits.

    ``function(shared, given)`` consists of torch functions: ``shared`` are the recursion's shared tensors, ``given``
    one row of each buffer in ``takes``, then one row of each column. It returns one row for each buffer in ``gives``. A
    buffer may occur several times in either. ``alone``: for each of ``takes`` whether no two calls of a batch use the
    same row; empty if unknown. ``form``: equal for cells that compute the same from equal metadata, in any recursion of
    this process; None if unknown.
    """

    name: str
    function: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    takes: tuple[int, ...]
    columns: tuple[Column, ...]
    gives: tuple[int, ...]
    alone: tuple[bool, ...] = ()
    form: Any = None


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction over a varying number of rows: rows of buffer ``items`` are added in order to a row of buffer
    ``start``, or to zeros, giving a row of buffer ``gives``. ``grad``: gradients flow through it."""

    name: str
    start: int | None
    items: int
    gives: int
    grad: bool


@dataclass(frozen=True, slots=True)
class Recursion:
    """The cells of a recursion and the buffers between them.

    ``shared``: examples of the tensors that are the same in all calls (parameters), for their metadata. ``seeds``: the
    buffers whose first rows the step supplies; ``results``: those whose rows it takes; then it takes predicates:
    ``truths``, whether all rows are true; ``somewhere``, whether some row is true or the buffer is empty; ``nowhere``,
    whether no row is true. ``kept``: buffers needed after the run; ``totals``: the reductions; ``lists``: how many of
    the results, the last ones, are lists to which calls append, with any number of rows.
    """

    cells: tuple[Cell, ...]
    buffers: tuple[Buffer, ...]
    shared: tuple[torch.Tensor, ...]
    seeds: tuple[int, ...]
    results: tuple[int, ...]
    truths: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    totals: tuple[Reduction, ...] = ()
    lists: int = 0
    somewhere: tuple[int, ...] = ()
    nowhere: tuple[int, ...] = ()

    @property
    def asked(self) -> int:
        """How many predicates the step takes."""
        return len(self.truths) + len(self.somewhere) + len(self.nowhere)

    @property
    def by_root(self) -> int:
        """How many of the results have one row for each entry call."""
        return len(self.results) - self.lists


@dataclass(frozen=True, slots=True)
class Batch:
    """``count`` executions of one cell that run together, from number ``first`` on. Output ``k`` goes to rows ``rows[k]
    ... rows[k] + count`` of its buffer; no two outputs of batches share a row."""

    cell: int
    count: int
    first: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReductionBatch:
    """``count`` sums of one reduction that are computed together, from number ``first`` on. They go to rows ``row ...
    row + count``."""

    total: int
    count: int
    first: int
    row: int


@dataclass(frozen=True, slots=True, eq=False)
class ReductionSchedule:
    """All sums of one reduction, in the order of the batches: the rows that they start from (None: zeros), the rows of
    all terms, and for each term the index of its sum within the batch. ``counts``: sums by batch; ``sizes``: terms by
    batch."""

    starts: torch.Tensor | None
    terms: torch.Tensor
    targets: torch.Tensor
    counts: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(eq=False)
class LevelSchedule:
    """The level schedule of one run: all calls on some trees.

    ``sizes``: rows of each buffer; those that the step supplies come first. For each cell, over all its executions in
    the order of the batches: ``taken``, the input rows, a tensor for each of the cell's ``takes``; and ``columns``. A
    cell without executions has no batch. ``added``: by reduction, None without sums. ``results``: for each result the
    rows that the step takes (one for each entry call, any number for lists). ``writes``: the deferred writes in eager's
    order: which write, the object, and the value or its row; ``kept``: after the run, the buffers needed later.
    """

    sizes: Sequence[int]
    batches: Sequence[Batch | ReductionBatch]
    taken: Sequence[Sequence[torch.Tensor]]  # int64
    columns: Sequence[Sequence[torch.Tensor]]
    added: Sequence[ReductionSchedule | None]
    results: Sequence[torch.Tensor]  # int64, one for each result
    writes: Sequence[tuple[int, Any, Any]] = ()
    kept: dict[int, torch.Tensor] = field(default_factory=dict)
    numbers: Sequence[Sequence[Any]] = ()  # for each entry call the numbers that it returns
    counts: Sequence[Any] = ()  # final values of counters
    bounds: Sequence[int] = ()  # number of rows that each table has to have

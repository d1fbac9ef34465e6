"""A recursive function as cells that are run for many of its calls at once, and the plan of one run. Plain data.

JANUS's InvokeOp (sections 4.2.1 and 5) runs one call after the other; here the calls of one level run together. A call
is cut where it waits for calls that it makes: what it computes between two of them is a *cell*. Values pass from cell
to cell through *buffers*: one row for each value that can stand in the same place (what a function returns, whichever
way it was gone through; what it is given as an argument).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Added", "Adding", "Batch", "Buffer", "Cell", "Column", "Forest", "Recursion", "Total"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Values of one kind, a row each. ``differentiable``: gradients flow back through them. ``once``: each row is taken
    by one call at most, once."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    differentiable: bool
    once: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """Data of a call's own that the host supplies: a number (a tensor of no dimension) or a tensor of fixed shape that
    needs no gradient."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Cell:
    """What one call computes between two points at which it waits, for ONE call.

    ``function(shared, given)`` is made of torch functions: ``shared`` are the recursion's shared tensors, ``given`` one
    row of each of the buffers in ``takes`` and then one row of each column. It returns one row for each of the buffers
    in ``gives``. A buffer may occur several times in either. ``alone``: of each place in ``takes``, whether no two
    calls of a batch take the same row there; none where nothing is known of that. ``form``: equal for cells that
    compute the same of the like, in whichever recursion of this process; None where that is not known.
    """

    name: str
    function: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    takes: tuple[int, ...]
    columns: tuple[Column, ...]
    gives: tuple[int, ...]
    alone: tuple[bool, ...] = ()
    form: Any = None


@dataclass(frozen=True, slots=True)
class Total:
    """Rows of the buffer ``items``, more for one call than for another, added up one after the other to a row of the
    buffer ``start``, or to zeros: that gives a row of the buffer ``gives``. ``grad``: gradients flow through it."""

    name: str
    start: int | None
    items: int
    gives: int
    grad: bool


@dataclass(frozen=True, slots=True)
class Recursion:
    """``shared``: examples of the tensors that are the same in all calls (parameters), for their metadata. ``seeds``:
    the buffers whose rows the step itself supplies; ``results``: the buffers of which it takes rows; ``truths``: those
    of which it takes, behind them, whether all rows are true; ``somewhere``, ``nowhere``: likewise whether some row is
    true, if there is any, and whether none is; ``kept``: those whose rows are wanted after the run;
    ``totals``: what is added up beside the cells; ``lists``: how many of the results, the last ones, are lists to which
    calls append: of those there are any number of rows."""

    cells: tuple[Cell, ...]
    buffers: tuple[Buffer, ...]
    shared: tuple[torch.Tensor, ...]
    seeds: tuple[int, ...]
    results: tuple[int, ...]
    truths: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    totals: tuple[Total, ...] = ()
    lists: int = 0
    somewhere: tuple[int, ...] = ()
    nowhere: tuple[int, ...] = ()

    @property
    def asked(self) -> int:
        """How many truths the step takes."""
        return len(self.truths) + len(self.somewhere) + len(self.nowhere)

    @property
    def by_root(self) -> int:
        """How many of the results have a row for each root."""
        return len(self.results) - self.lists


@dataclass(frozen=True, slots=True)
class Batch:
    """``count`` calls that go through one cell together: those from number ``first`` on.

    What they give as ``gives[k]`` goes to rows ``rows[k] ... rows[k] + count`` (no two batches, and no two ``k``, give
    the same row).
    """

    cell: int
    count: int
    first: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Adding:
    """``count`` sums of one total that are formed together: those from number ``first`` on. They go to rows ``row ...
    row + count``."""

    total: int
    count: int
    first: int
    row: int


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """All sums of one total, in the order of the batches: the rows that they start from (None: zeros), the rows of all
    their terms, and of each term to which sum of its batch it is added. ``counts``: the sums of each batch; ``sizes``:
    their terms."""

    starts: torch.Tensor | None
    terms: torch.Tensor
    targets: torch.Tensor
    counts: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(eq=False)
class Forest:
    """The plan of one run: all calls of some trees.

    ``sizes``: rows of each buffer. The rows that the step supplies are the first of their buffer. Of each cell, for all
    its calls in the order of the batches: ``taken``, the rows that they take, a tensor for each of the cell's
    ``takes``, and ``columns``. ``added``: of each total that has sums. ``results``: for each of the recursion's results
    the rows that are taken (as many for each as there are roots, but for lists). A cell that has no call has no batch.
    ``writes``: what calls write to objects, in eager's order: which write it is, the object, and a value or the row
    that holds it; ``kept``: once the forest has been run, the buffers that have to be kept.
    """

    sizes: Sequence[int]
    batches: Sequence[Batch | Adding]
    taken: Sequence[Sequence[torch.Tensor]]  # int64
    columns: Sequence[Sequence[torch.Tensor]]
    added: Sequence[Added | None]
    results: Sequence[torch.Tensor]  # int64, one for each result
    writes: Sequence[tuple[int, Any, Any]] = ()
    kept: dict[int, torch.Tensor] = field(default_factory=dict)
    numbers: Sequence[Sequence[Any]] = ()  # of each root those that it returns
    counts: Sequence[Any] = ()  # the numbers that calls count
    bounds: Sequence[int] = ()  # how many rows each table has to have

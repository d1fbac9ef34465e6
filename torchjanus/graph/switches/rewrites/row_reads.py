"""Rewrites reads by the iteration index of tensors from before a switched loop: ``x[:, t]``, ``y[t + 1]``.

Each iteration receives its row, whether its arm reads it or not. Where only some arms read it, the row may not exist
for the others (``if t + 1 < n: ... x[t + 1]``). Then the rows are gathered in iteration order before the loop, with an
arbitrary row where there is none, and the graph asserts that each row that is read exists.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.access_path import Step
from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import map_leaves
from torchjanus.graph.switches.analysis.arms import ResolvedArms
from torchjanus.graph.switches.analysis.iterations import IndexedRead, Source
from torchjanus.graph.switches.rewrites.later_uses import LiveOutRewriter, distinct_place
from torchjanus.trace.actions import Op
from torchjanus.trace.facts import TensorPredicate
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Read, Size

__all__ = ["RowReadRewriter", "in_order", "rows_exist"]

_ROWS = 100  # first place number of row assertions, after those of other assertions


def _dimension_of(one: IndexedRead) -> int:
    """Return the dimension that the iteration index selects from. Raises NotMergeable where it is not known."""
    if one.op.name != "Tensor.__getitem__":
        return int(one.op.args[1])
    key = one.op.args[1]
    integers = 0
    for place, part in enumerate(key if isinstance(key, tuple) else (key,)):
        if type(part) is not int and not (isinstance(part, slice) and part == slice(None)):
            raise NotMergeable("branch-lists", "an iteration picks a row in a way that is not followed")
        if type(part) is int and integers == one.position:
            return place
        integers += type(part) is int
    raise NotMergeable("branch-lists", "an iteration picks a row in a way that is not followed")


def in_order(base: torch.Tensor, indices: torch.Tensor, dim: int, first: int) -> torch.Tensor:
    """Gather a row per iteration, an arbitrary one where it does not exist. ``first``: that of the first iteration."""
    return base.index_select(dim, (indices + first).remainder(base.size(dim)))


def rows_exist(arms: torch.Tensor, base: torch.Tensor, taking: Sequence[int], dim: int, first: int) -> torch.Tensor:
    """Return a scalar tensor: whether the row exists for each iteration whose arm reads it.

    ``arms``: the arm of each iteration, shape (iterations,); ``taking``: the arms that read the row."""
    rows = torch.ones_like(arms).cumsum(0) + (first - 1)
    there = rows.lt(base.size(dim)) & rows.ge(-base.size(dim))
    takes = torch.zeros_like(there)
    for arm in taking:
        takes = takes | arms.eq(arm)
    return (there | takes.logical_not()).all()


class RowReadRewriter(LiveOutRewriter):
    """The part of the rewriter that reads rows."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._ordered: list[Source] = []  # sources whose rows are gathered before the loop

    def row(self, source: Source, iteration: int, rows: int | None) -> Op:
        """Return the operation that reads an iteration's row. ``rows``: the gathered rows, if any."""
        one, base = self.picking(source)
        number = self.new(one.op.outs[0].number)
        if rows is not None:
            return _picked(one, rows, iteration, number)
        return _picked(one, base, self.frames.number(iteration) + one.more, number)

    def picking(self, source: Source) -> tuple[IndexedRead, int]:
        """Return how rows are read in this run, and the tensor they are read from."""
        found = next((one.indexed[source[1]] for one in self.acting.iterations if source[1] in one.indexed), None)
        if found is None:
            raise NotMergeable("branch-lists", "an iteration picks rows that no run has picked")
        numbers = {access_path.token: number for number, access_path in self.access_paths.items()}
        return found, self.known.tensor(source[1][3], numbers)

    def order(self, source: Source, events: list[Any]) -> int:
        """Append operations that gather the rows in iteration order. Raises NotMergeable if the loop counts down."""
        if self.frames.back:
            raise NotMergeable("branch-lists", "iterations pick rows backwards")
        (one, base), count = self.picking(source), self.frames.count
        dim, first = _dimension_of(one), self.frames.begins + one.more
        indices, rows = self.new(), self.new()
        quiet = replace(self.modes(), grad=False)
        events.append(Op(torch.arange, "torch.arange", (count,), {}, (TensorRef(indices),), quiet, self.frames.place))
        args = (TensorRef(base), TensorRef(indices), dim, first)
        events.append(Op(in_order, "in order", args, {}, (TensorRef(rows),), one.op.modes, self.frames.place))
        self._ordered.append(source)
        self.kinds[rows] = self.kinds[base]  # except for its size
        return rows

    def is_for_all(self, source: Source, resolved: ResolvedArms) -> bool:
        """Whether each iteration has such a row: all arms read it, or the trip count is the size of the dimension."""
        if self.frames.count is None or all(source in some for some in resolved.takes):
            return True
        one, base = self.picking(source)
        if one.more or self.frames.begins:
            return False
        access_path, count, dim = self.access_paths.get(base), self.frames.count, _dimension_of(one)
        if access_path is not None:
            return isinstance(count, Read) and count.access_path == access_path.then(Step.SIZE, dim)
        return isinstance(count, Size) and (count.ref, count.dim) == (base, dim)

    def check_rows(self, resolved: ResolvedArms, arms: TensorRef, modes: Any, after: int) -> Iterator[Any]:
        """Yield the assertions that the rows that were read exist. ``arms``: the arm of each iteration.

        ``after``: the number of operations that precede them."""
        place = self.frames.place
        for number, source in enumerate(self._ordered):
            one, base = self.picking(source)
            taking = tuple(arm for arm, some in enumerate(resolved.takes) if source in some)
            there = TensorRef(self.new())
            args = (arms, TensorRef(base), taking, _dimension_of(one), self.frames.begins + one.more)
            yield Op(rows_exist, "are there", args, {}, (there,), modes, place)
            yield TensorPredicate(there, True, after + 1 + number, distinct_place(place, _ROWS + number))


def _picked(one: IndexedRead, base: int, key: int, number: int) -> Op:
    """Return the row ``key`` of a tensor, as tensor ``number``."""
    positions = itertools.count()

    def leaf(value: Any) -> Any:
        return key if type(value) is int and next(positions) == one.position else value

    parts = [*map_leaves(one.op.args, leaf)]
    parts[0] = TensorRef(base)
    return replace(one.op, args=tuple(parts), outs=(TensorRef(number),))

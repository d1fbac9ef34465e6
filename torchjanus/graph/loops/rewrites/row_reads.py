"""Writes traces in which iterations, or what follows a loop, read rows of stacked tensors of an earlier loop.

``collected_outputs`` decides where this is done.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.trees import map_leaves
from torchjanus.graph.loops.roll.reversal import select_back
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import TensorPredicate
from torchjanus.trace.modes import Modes
from torchjanus.trace.operands import refs_in
from torchjanus.trace.operations import op_count, op_counts, ops_of, used_by
from torchjanus.trace.rewriting import AddingRewriter
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, Size, plus

__all__ = ["FirstRowRewriter", "RowReadRewriter", "RowReads"]


@dataclass(frozen=True, slots=True)
class RowReads:
    """The tensors that the iterations of a loop use. ``rows``: the tensors in the order in which iterations reach them.
    ``count``: the expression for their number. ``first``: the index of the one that the first iteration uses.
    ``taken``: the one that each iteration uses. They are stacked unless ``source`` or ``again`` is given; ``bases``:
    the tensors that are stacked if ``rows`` are their detached aliases. ``source``: the tensor of which they are the
    rows, and the dimension. ``again``: the operations by which each iteration computes its own: views of a tensor from
    before the loop. ``step``: 1 from first to last, -1 from last to first."""

    rows: tuple[int, ...]
    count: Expr
    first: int
    taken: tuple[int, ...]
    source: tuple[int, int] | None = None
    again: tuple[tuple[Op, ...], ...] = ()
    bases: tuple[int, ...] = ()
    step: int = 1

    @property
    def is_stacked(self) -> bool:
        return self.source is None and not self.again


class _StackingRewriter(AddingRewriter):
    """A rewriting that stacks tensors of iterations."""

    def stacked(self, rows: Sequence[int], row: bool = False) -> int:
        """Return the number of a new tensor: a stack of these, or with ``row`` a tensor like the only one."""
        size, _, dtype, device, _ = self.old.kinds[rows[0]]
        grad = any(self.old.kinds[one][4] for one in rows)
        number = self.new((), dtype)
        whole = size if row else (len(rows), *size)
        self.kinds[number] = (whole, torch.empty(whole, device="meta").stride(), dtype, device, grad)
        return number

    def stack(self, rows: Sequence[int], out: int, like: Op) -> Op:
        """Return the operation that stacks these tensors, with the modes and location of ``like``."""
        args = (list(map(TensorRef, rows)),)
        return Op(torch.stack, "torch.stack", args, {}, (TensorRef(out),), _graded(like), like.place)

    def pick(self, stack: int, row: int, out: int, like: Op) -> Op:
        """Return the operation that selects a row of the stack."""
        args = (TensorRef(stack), row)
        return Op(
            torch.Tensor.__getitem__, "Tensor.__getitem__", args, {}, (TensorRef(out),), _graded(like), like.place
        )


def _graded(like: Op) -> Modes:
    """Return modes in which gradients flow: the operation whose modes are copied may have them disabled."""
    modes: Modes = replace(like.modes, grad=True, inference=False, autocast=())
    return modes


class FirstRowRewriter(_StackingRewriter):
    """Writes the trace in which what follows a loop selects the row of the first iteration."""

    def __init__(self, old: Trace, number: int, columns: Sequence[RowReads]) -> None:
        super().__init__(old)
        self.limit = op_count(old.events[: old.loop_instances[number].end])
        self.columns = [(rows, self.stacked(rows.rows), self.stacked(rows.taken, row=True)) for rows in columns]
        self.firsts = {rows.taken[0]: first for rows, _, first in self.columns}
        self.others = {tensor for rows in columns for tensor in rows.rows}

    def position(self, after: int) -> int:
        return after + 2 * len(self.columns) if after > self.limit else after

    def operation(self, op: Op, after: int) -> Op:
        if after < self.limit:
            return op
        args = tuple(self._argument(value, after) for value in op.args)
        return replace(op, args=args, kwargs={key: self._argument(value, after) for key, value in op.kwargs.items()})

    def _argument(self, value: Any, after: int) -> Any:
        """Return the argument of an operation. A list may have the tensors of all iterations, and stays."""
        if isinstance(value, TensorRef):
            return TensorRef(self.firsts.get(value.number, value.number))
        return value if any(ref.number in self.others for ref in refs_in(value)) else self.values(value, after)

    def trace(self) -> Trace:
        ops = [at for at, event in enumerate(self.old.events) if isinstance(event, Op)]

        def ahead(at: int) -> Iterator[Op]:
            if ops[self.limit : self.limit + 1] == [at]:
                like = self.old.events[at]
                assert isinstance(like, Op)
                for rows, stack, first in self.columns:
                    yield self.stack(rows.rows, stack, like)
                    yield self.pick(stack, 0, first, like)

        events, inserted, begins = self.walk(lambda at, event, after: (self.event(event, after),), ahead)
        return self.made(events, **self.moved(begins, inserted))


class RowReadRewriter(_StackingRewriter):
    """Writes the trace in which one loop reads rows."""

    def __init__(self, old: Trace, number: int, skipped: int, columns: Sequence[RowReads]) -> None:
        super().__init__(old)
        self.instance = old.loop_instances[number]
        self.starts = self.instance.starts[skipped:]
        self.columns = columns
        past = op_counts(old.events)
        self.limits = [past[at] for at in (*self.starts, self.instance.end)]
        self.stacks: dict[tuple[int, ...], int] = {}
        self.stacking: list[Op] = []  # the operations that stack them
        for rows in columns:
            if rows.is_stacked and rows.rows not in self.stacks:
                self.stacking += self._stacking(rows)
        self.row_of: list[dict[int, int]] = []
        self.picks: list[list[Op]] = []  # per iteration
        for iteration, at in enumerate(self.starts):
            self.row_of.append({})
            self.picks.append([op for rows in columns for op in self._picked(rows, iteration, at)])

    def _stacking(self, rows: RowReads) -> Iterator[Op]:
        like = self._first(self.starts[0])
        self.stacks[rows.rows] = out = self.stacked(rows.rows)
        if rows.bases:
            whole = self.stacked(rows.bases)
            yield self.stack(rows.bases, whole, like)
            detach = torch.Tensor.detach
            yield Op(detach, "Tensor.detach", (TensorRef(whole),), {}, (TensorRef(out),), _graded(like), like.place)
        else:
            yield self.stack(rows.rows, out, like)

    def _picked(self, rows: RowReads, iteration: int, at: int) -> Iterator[Op]:
        """Yield the operations that give an iteration its row."""
        taken, like = rows.taken[iteration], self._first(at)
        if rows.again:
            made: dict[int, int] = {}
            for op in rows.again[iteration]:
                args, kwargs = ((self._renamed(part, made)) for part in (op.args, op.kwargs))
                made[op.outs[0].number] = out = self.new_like(op.outs[0].number)
                yield replace(op, args=args, kwargs=kwargs, outs=(TensorRef(out),))
            self.row_of[iteration][taken] = made[taken]
            return
        self.row_of[iteration][taken] = out = self.stacked((taken,), row=True)
        if rows.source is not None:
            number, dim = rows.source
            args = (TensorRef(number), dim, rows.first + iteration)
            select: Any = torch.select if rows.step > 0 else select_back
            yield Op(select, "torch.select", args, {}, (TensorRef(out),), _graded(like), like.place)
        else:
            yield self.pick(self.stacks[rows.rows], rows.first + iteration, out, like)

    def _renamed(self, value: Any, made: dict[int, int]) -> Any:
        return map_leaves(
            value, lambda leaf: TensorRef(made.get(leaf.number, leaf.number)) if isinstance(leaf, TensorRef) else leaf
        )

    def tensor(self, number: int, after: int) -> int:
        iteration = bisect.bisect_right(self.limits, after) - 1
        return self.row_of[iteration].get(number, number) if 0 <= iteration < len(self.row_of) else number

    def position(self, after: int) -> int:
        if after < self.limits[0]:
            return after
        return after + len(self.stacking) + len(self.picks[0]) * sum(start < after for start in self.limits[:-1])

    def _where(self, number: int, after: int) -> tuple[int, int]:
        """Return the tensor that a number depends on, and the position. At the begin of an iteration that may be a row
        that was just selected, or a row of the preceding iteration."""
        iteration, at = bisect.bisect_right(self.limits, after) - 1, self.position(after)
        begun = iteration >= 0 and after == self.limits[iteration]
        found = self.tensor(number, after)
        if begun and found != number:
            return found, at + len(self.picks[0])
        if begun and iteration and number in self.row_of[iteration - 1]:
            return self.row_of[iteration - 1][number], at
        return found, at

    def expr(self, expr: Any) -> Any:
        if isinstance(expr, Fetch | Size):
            ref, after = self._where(expr.ref, expr.after)
            return expr if (ref, after) == (expr.ref, expr.after) else replace(expr, ref=ref, after=after)
        return super().expr(expr)

    def token(self, token: Any) -> Any:
        if token[0] == "fetch":
            return (token[0], *self._where(token[1], token[2]), *token[3:])
        if token[0] == "size":
            ref, after = self._where(token[1], token[3])
            return (token[0], ref, token[2], after)
        return token

    def event(self, event: Any, after: int) -> Any:
        made = super().event(event, after)
        if isinstance(event, TensorPredicate):
            ref, at = self._where(event.ref.number, event.after)
            return replace(made, ref=TensorRef(ref), after=at)
        return made

    def trace(self) -> Trace:
        old = self.old

        def step(at: int, event: Any, after: int) -> Iterator[Any]:
            yield from self.picks[self.starts.index(at)] if at in self.starts else ()
            yield self.event(event, after)

        events, _, begins = self.walk(step, lambda at: self.stacking if at == self.starts[0] else ())
        for rows in self.columns:
            if rows.source is not None:
                self._forget(rows, *rows.source, events)
        moved = self.moved(begins)
        held = [self._held(rows) for rows in self.columns]
        moved["loop_instances"] = [
            replace(new, asked=(*new.asked, *held)) if one is self.instance else new
            for one, new in zip(old.loop_instances, moved["loop_instances"], strict=True)
        ]
        made = self.made(events, **moved)
        for rows in self.columns:
            if isinstance(rows.count, Size):
                made.fetched[rows.count.token] = len(rows.rows)
        return made

    def _forget(self, rows: RowReads, number: int, dim: int, events: list[Any]) -> None:
        """Replace an unbinding whose rows are not used any more by a selection of one row: the number of rows may
        change."""
        given = used_by(events)
        first = (TensorRef(rows.rows[0]),)
        at = next((n for n, e in enumerate(events) if isinstance(e, Op) and e.outs[:1] == first), None)
        if at is None or not given.isdisjoint(rows.rows):
            return
        op = events[at]
        args = (TensorRef(number), dim, 0)
        events[at] = replace(op, func=torch.select, name="torch.select", args=args, kwargs={}, outs=op.outs[:1])

    def _held(self, rows: RowReads) -> Expr:
        """Return the predicate that there are as many rows as the iterations use. In reverse order the difference of
        both numbers must be the same, since it decides which row comes first."""
        count = self.instance.count
        assert isinstance(count, Expr)
        skipped = len(self.instance.starts) - len(self.starts)
        if rows.step < 0:
            return Apply(operator.eq, (rows.count, plus(count, len(rows.rows) - len(rows.taken) - skipped)))
        return Apply(operator.ge, (rows.count, plus(count, rows.first - skipped)))

    def _first(self, at: int) -> Op:
        return ops_of(self.old.events[at:])[0]

"""Loops through what the rounds of an earlier loop have made, told as loops over the rows of one tensor:
``outs.append(h)``, and later ``for o in outs`` or ``outs[t]``.

What is made by each round is stacked when the earlier loop is over, and the later rounds take the rows of that by their
numbers, as they do of any other tensor. A rewriting of traces. Knows nothing of what is made of a loop.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.graph.loop_alike import KEPT, TRAINING, token_of_count
from torchjanus.graph.loop_lists import chains
from torchjanus.graph.loop_rewriting import Adding
from torchjanus.graph.loop_versions import changed_memory, knows
from torchjanus.graph.numbers import refs_in
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Asserted, Computed, Held, Pinned
from torchjanus.trace.rounds import Rounds, Until
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, Size, leaves

__all__ = ["collected"]

_GET = torch.Tensor.__getitem__

# (which earlier loop, how-manieth of what its rounds make, forwards (1) or backwards (-1), ahead of the later round)
_Column = tuple[int, int, int, int]


@dataclass(slots=True)
class _Made:
    """What the rounds of one loop make: of each tensor the round and how-manieth it is, and the tensors by these."""

    rounds: Rounds
    place: dict[int, tuple[int, int]] = field(default_factory=dict)
    at: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the rounds of a loop take: ``rows``: the tensors in the order in which rounds come by them, of which
    ``count`` is the number; ``first``: which of them the first round takes; ``taken``: which one each round takes."""

    rows: tuple[int, ...]
    count: Expr
    first: int
    taken: tuple[int, ...]


def collected(trace: Trace) -> Trace:
    """The run in which rounds take what an earlier loop's rounds have made as rows; itself where none does."""
    trace = _with_sums(trace)
    for number in range(len(trace.rounds)):
        found = _takers(trace, number)
        if found is not None:
            trace = _Collecting(trace, number, *found).trace()
    for number in range(len(trace.rounds)):
        firsts = _firsts(trace, number)
        if firsts:
            trace = _First(trace, number, firsts).trace()
    return trace


def _with_sums(trace: Trace) -> Trace:
    """The run in which the sums of what all rounds have made (``sum(losses)``) are loops, too."""
    added: list[Rounds] = []
    for rounds in trace.rounds:
        if isinstance(rounds.count, Until) or len(rounds.starts) <= KEPT:
            continue
        made = _made(trace, rounds)
        orders = {order for turn, order in made.at if turn == 0}
        for order in orders:
            whole = [made.at.get((turn, order), -1) for turn in range(len(rounds.starts))]
            for starts in chains(trace, whole):
                if starts[0] <= rounds.end:
                    continue  # they are added up where they are made
                count = Apply(operator.sub, (rounds.count, 1))
                added.append(Rounds(tuple(starts), starts[-1] + 1, count, (), 1))
    if not added:
        return trace
    pins = dict(trace.pins)
    for one in added:
        token = token_of_count(one)
        if token in pins:  # every loop says once that it has as many rounds
            pins[token] += 1
    made_ = replace(trace, rounds=[*trace.rounds, *added], pins=pins)
    made_.alive = [*trace.alive, trace]
    return made_


def _firsts(trace: Trace, number: int) -> list[_Rows]:
    """What follows a loop takes of its first round alone."""
    rounds = trace.rounds[number]
    if isinstance(rounds.count, Until) or len(rounds.starts) <= KEPT or not trace.memory:
        return []  # of few rounds the first one may be meant as one of the last
    made = _made(trace, rounds)
    taken = {ref for event in trace.events[rounds.end :] if isinstance(event, Op) for ref in _alone(event)}
    orders = sorted({made.place[ref][1] for ref in taken if made.place.get(ref, (-1, 0))[0] == 0})
    found = []
    for order in orders:
        whole = tuple(made.at.get((turn, order), -1) for turn in range(len(rounds.starts)))
        rows = _Rows(whole, rounds.count, 0, whole[:1])
        if -1 not in whole and _may_be_copies(trace, [rows]):
            found.append(rows)
    return found


def _alone(op: Op) -> Iterator[int]:
    """The tensors that an operation takes as such, and not in a list."""
    return (value.number for value in (*op.args, *op.kwargs.values()) if isinstance(value, TensorRef))


def _takers(trace: Trace, number: int) -> tuple[int, list[_Rows]] | None:
    """What the rounds of this loop take of others, and how many of its first rounds do not take it alike."""
    rounds = trace.rounds[number]
    if isinstance(rounds.count, Until) or len(rounds.starts) < KEPT or not trace.memory:
        return None
    earlier = [one for one in trace.rounds if one.starts and one.end <= rounds.starts[0]]
    made = [_made(trace, one) for one in earlier if not isinstance(one.count, Until) and len(one.starts) >= KEPT]
    if not made:
        return None
    taken = [_taken(trace, begin, end) for begin, end in itertools.pairwise((*rounds.starts, rounds.end))]
    whose = {tensor: which for which, one in enumerate(made) for tensor in one.place}
    if whose.keys().isdisjoint(itertools.chain.from_iterable(taken[1:])):
        return None
    if any(e.name in TRAINING for e in trace.events[rounds.starts[0] : rounds.end] if isinstance(e, Op)):
        return None
    for skipped in (0, 1):
        some = taken[skipped:]
        if len(some) >= KEPT and (rows := _rows(trace, rounds, skipped, made, whose, some)) is not None:
            return skipped, rows
    return None


def _made(trace: Trace, rounds: Rounds) -> _Made:
    made = _Made(rounds)
    for number, (begin, end) in enumerate(itertools.pairwise((*rounds.starts, rounds.end))):
        order = 0
        for event in trace.events[begin:end]:
            for ref in event.outs if isinstance(event, Op) else ():
                if ref.number not in made.place and ref.number not in trace.origins:
                    made.place[ref.number] = number, order
                    made.at[number, order] = ref.number
                    order += 1
    return made


def _taken(trace: Trace, begin: int, end: int) -> list[int]:
    """The tensors of which operations and numbers of a round speak, in order."""
    found: list[int] = []
    for event in trace.events[begin:end]:
        if isinstance(event, Op):
            found += (ref.number for ref in refs_in((event.args, event.kwargs)))
        elif isinstance(event, Asserted):
            found.append(event.ref.number)
        elif isinstance(event, Held | Pinned | Computed):
            found += (leaf.ref for leaf in leaves(event.expr) if isinstance(leaf, Fetch | Size))
    return found


def _rows(
    trace: Trace,
    rounds: Rounds,
    skipped: int,
    made: Sequence[_Made],
    whose: Mapping[int, int],
    taken: Sequence[Sequence[int]],
) -> list[_Rows] | None:
    """What rounds take, if each takes such rows as the others; None where they do not."""
    columns = [set(_columns(made, whose, number, some)) for number, some in enumerate(taken)]
    # The first round may take something else for the row of the one before, the last one for that of the next.
    alike = set.intersection(*columns[1:-1])
    chosen: dict[_Column, _Rows] = {}
    left = [{tensor for tensor in some if tensor in whose} for some in taken]
    for column in sorted(alike, key=lambda column: -column[2]):
        rows = _row(trace, rounds, skipped, made, column, taken, left)
        if rows is None:
            continue
        if all(tensor in some for tensor, some in zip(rows.taken[1:-1], left[1:-1], strict=True)):
            chosen[column] = rows
            for tensor, some in zip(rows.taken, left, strict=True):
                some.discard(tensor)
    if not chosen or any(left):
        return None
    return list(chosen.values()) if _may_be_copies(trace, chosen.values()) else None


def _columns(made: Sequence[_Made], whose: Mapping[int, int], number: int, taken: Sequence[int]) -> Iterator[_Column]:
    for tensor in taken:
        if tensor in whose:
            turn, order = made[whose[tensor]].place[tensor]
            yield whose[tensor], order, 1, turn - number
            yield whose[tensor], order, -1, turn + number


def _row(
    trace: Trace,
    rounds: Rounds,
    skipped: int,
    made: Sequence[_Made],
    column: _Column,
    taken: Sequence[Sequence[int]],
    left: Sequence[set[int]],
) -> _Rows | None:
    """What the rounds take as rows of a stack."""
    which, order, step, ahead = column
    source = made[which]
    whole = [source.at.get((number, order), -1) for number in range(len(source.rounds.starts))]
    count = source.rounds.count
    assert isinstance(count, Expr)
    if -1 in whole:
        return None
    whole = whole[::step]
    first = ahead if step > 0 else len(whole) - 1 - ahead
    last = first + len(taken) - 1
    if first == -1:  # the first round takes what stands before the rows
        before = _instead(taken, 0, whole[0])
        if before is None:
            return None
        whole, count, first, last = [before, *whole], _plus(count, 1), 0, last + 1
    if last == len(whole):
        behind = _instead(taken, len(taken) - 1, whole[-1])
        if behind is None:
            return None
        whole, count = [*whole, behind], _plus(count, 1)
    if first < 0 or last >= len(whole):
        return None
    return _Rows(tuple(whole), count, first, tuple(whole[first : last + 1]))


def _instead(taken: Sequence[Sequence[int]], number: int, like: int) -> int | None:
    """What a round at the edge takes where the one beside it takes this row of its own."""
    beside = taken[number + (1 if number == 0 else -1)]
    if len(beside) != len(taken[number]):
        return None
    found = {taken[number][place] for place, tensor in enumerate(beside) if tensor == like}
    return found.pop() if len(found) == 1 else None


def _plus(count: Expr, more: int) -> Expr:
    return Apply(operator.add, (count, more)) if more else count


def _may_be_copies(trace: Trace, columns: Any) -> bool:
    """Whether nobody can tell the rows from what they are copies of: all are alike, and nobody changes them."""
    tensors = {tensor for rows in columns for tensor in rows.rows}
    for rows in columns:
        kinds = [trace.kinds.get(tensor) for tensor in rows.rows]
        if None in kinds or len({(kind[0], kind[2], kind[3]) for kind in kinds if kind is not None}) > 1:
            return False
    changed = changed_memory(trace)
    memory = {trace.memory[tensor] for tensor in tensors}
    if 0 in memory or not changed.isdisjoint(memory):
        return False
    knowing = (e for e in trace.events if isinstance(e, Op) and knows(e))
    return tensors.isdisjoint(ref.number for e in knowing for ref in refs_in((e.args, e.kwargs)))


class _Stacking(Adding):
    """A rewriting that stacks what rounds have made."""

    def stacked(self, rows: Sequence[int], row: bool = False) -> int:
        """The number of one more tensor: a stack of these, or a row like the only one."""
        size, _, dtype, device, _ = self.old.kinds[rows[0]]
        grad = any(self.old.kinds[one][4] for one in rows)
        number = self.new((), dtype)
        whole = size if row else (len(rows), *size)
        self.kinds[number] = (whole, torch.empty(whole, device="meta").stride(), dtype, device, grad)
        return number

    def stack(self, rows: Sequence[int], out: int, like: Op) -> Op:
        """What makes a stack of these tensors, where ``like`` is done."""
        args = (list(map(TensorRef, rows)),)
        return Op(torch.stack, "torch.stack", args, {}, (TensorRef(out),), like.modes, like.place)

    def pick(self, stack: int, row: int, out: int, like: Op) -> Op:
        """What takes a row of it."""
        args = (TensorRef(stack), row)
        return Op(_GET, "Tensor.__getitem__", args, {}, (TensorRef(out),), like.modes, like.place)


class _First(_Stacking):
    """Writes the run anew with the rows of which what follows takes the first."""

    def __init__(self, old: Trace, number: int, columns: Sequence[_Rows]) -> None:
        super().__init__(old)
        self.end = old.rounds[number].end
        self.limit = sum(isinstance(event, Op) for event in old.events[: self.end])
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
        """What an operation takes. What is in a list may be what all rounds have made."""
        if isinstance(value, TensorRef):
            return TensorRef(self.firsts.get(value.number, value.number))
        return value if any(ref.number in self.others for ref in refs_in(value)) else self.values(value, after)

    def trace(self) -> Trace:
        events: list[Any] = []
        begins: list[int] = []
        ends: list[int] = []
        operations = 0
        for event in self.old.events:
            ends.append(len(events))
            if operations == self.limit and isinstance(event, Op):
                for rows, stack, first in self.columns:
                    events += (self.stack(rows.rows, stack, event), self.pick(stack, 0, first, event))
            begins.append(len(events))
            events.append(self.event(event, operations))
            operations += isinstance(event, Op)
        ends.append(len(events))
        begins.append(len(events))
        return self.made(events, **self.moved(lambda at, end: begins[at], ends.__getitem__))


class _Collecting(_Stacking):
    """Writes the run anew with the rows that one loop takes."""

    def __init__(self, old: Trace, number: int, skipped: int, columns: Sequence[_Rows]) -> None:
        super().__init__(old)
        self.rounds = old.rounds[number]
        self.starts = self.rounds.starts[skipped:]
        self.columns = columns
        past = [0, *itertools.accumulate(isinstance(event, Op) for event in old.events)]
        self.limits = [past[at] for at in (*self.starts, self.rounds.end)]
        self.stacks = {rows.rows: -1 for rows in columns}
        for rows in self.stacks:
            self.stacks[rows] = self.stacked(rows)
        self.row_of: list[dict[int, int]] = [
            {rows.taken[turn]: self.stacked(rows.taken[turn : turn + 1], row=True) for rows in columns}
            for turn in range(len(self.starts))
        ]

    def tensor(self, number: int, after: int) -> int:
        turn = bisect.bisect_right(self.limits, after) - 1
        return self.row_of[turn].get(number, number) if 0 <= turn < len(self.row_of) else number

    def position(self, after: int) -> int:
        if after < self.limits[0]:
            return after
        return after + len(self.stacks) + len(self.columns) * sum(start < after for start in self.limits[:-1])

    def _where(self, number: int, after: int) -> tuple[int, int]:
        """A tensor of which a number speaks, and the position at which it does. Where a round begins that may be a row
        which has just been picked, or one of the round before."""
        turn, at = bisect.bisect_right(self.limits, after) - 1, self.position(after)
        begun = turn >= 0 and after == self.limits[turn]
        found = self.tensor(number, after)
        if begun and found != number:
            return found, at + len(self.columns)
        if begun and turn and number in self.row_of[turn - 1]:
            return self.row_of[turn - 1][number], at
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
        if isinstance(event, Asserted):
            ref, at = self._where(event.ref.number, event.after)
            return replace(made, ref=TensorRef(ref), after=at)
        return made

    def trace(self) -> Trace:
        old = self.old
        events: list[Any] = []
        begins: list[int] = []
        operations = 0
        for at, event in enumerate(old.events):
            begins.append(len(events))
            if at == self.starts[0]:
                events += self._stacked()
                begins[-1] = len(events)
            if at in self.starts:
                events += self._picked(self.starts.index(at))
            events.append(self.event(event, operations))
            operations += isinstance(event, Op)
        begins.append(len(events))
        moved = self.moved(lambda at, end: begins[at], begins.__getitem__)
        held = [self._held(rows) for rows in self.columns]
        moved["rounds"] = [
            replace(new, asked=(*new.asked, *held)) if one is self.rounds else new
            for one, new in zip(old.rounds, moved["rounds"], strict=True)
        ]
        return self.made(events, **moved)

    def _held(self, rows: _Rows) -> Expr:
        """There are as many rows as the rounds take."""
        count = self.rounds.count
        assert isinstance(count, Expr)
        skipped = len(self.rounds.starts) - len(self.starts)
        return Apply(operator.ge, (rows.count, _plus(count, rows.first - skipped)))

    def _stacked(self) -> Iterator[Op]:
        first = self._first(self.starts[0])
        return (self.stack(rows, stack, first) for rows, stack in self.stacks.items())

    def _picked(self, turn: int) -> Iterator[Op]:
        first = self._first(self.starts[turn])
        for rows in self.columns:
            out = self.row_of[turn][rows.taken[turn]]
            yield self.pick(self.stacks[rows.rows], rows.first + turn, out, first)

    def _first(self, at: int) -> Op:
        return next(event for event in self.old.events[at:] if isinstance(event, Op))

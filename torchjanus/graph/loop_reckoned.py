"""Numbers that the rounds of a loop reckon with, told as the rows of a tensor that is made before the loop.

``t += h`` of ``h = 1 / n``, ``y * (i * h)``, ``torch.full_like(y, t)``, ``lr / (1 - beta ** step)``: what each round
gives to its operations is another number, by one formula for all of them. A rewriting of traces. Knows nothing of what
is made of a loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.graph.loop_counters import Counters
from torchjanus.graph.loop_rewriting import Adding
from torchjanus.graph.loop_scan import expr_token
from torchjanus.graph.loop_uses import is_counting
from torchjanus.graph.number_operands import is_arithmetic, taking
from torchjanus.graph.reckoned import reckoned
from torchjanus.graph.tensorise import beside
from torchjanus.origin import Origin
from torchjanus.trace.events import Computed, Found, Op, Rounds, TensorRef, Trace, Until
from torchjanus.trace.recipes import Constant, parts_of
from torchjanus.trace.reckoning import BACK, HOLE, LEAST, Form, kind_of, name_of
from torchjanus.trace.values import Apply, Expr, Fetch, Read, Size, Turn, leaves

__all__ = ["passes_on", "reckoned_rounds"]

_INDEXED = ("Tensor.__getitem__", "torch.select", "Tensor.select")


@dataclass(slots=True)
class _Row:
    """One number of an operation of each round. ``ops``: the positions of the operations, ``path``: where it stands in
    their arguments, ``form``: how it is made, ``given``: of which numbers of the call and tensors of one, ``values``:
    what it was."""

    ops: tuple[int, ...]
    path: tuple[Any, ...]
    form: Form
    given: tuple[Expr | TensorRef, ...]
    values: tuple[Any, ...]


@dataclass(slots=True)
class _Loop:
    rounds: Rounds
    rows: list[_Row] = field(default_factory=list)


def reckoned_rounds(trace: Trace) -> Trace:
    """The run with such numbers as rows; itself where there are none."""
    loops: list[_Loop] = []
    read = {e.origin: e.value for e in trace.events if isinstance(e, Found) and e.kind == "number"}
    for rounds in trace.rounds:
        if isinstance(rounds.count, Until) or not rounds.starts:
            continue
        inside = any(one.rounds.starts[0] < rounds.end and rounds.starts[0] < one.rounds.end for one in loops)
        for some in () if inside else (rounds, rounds.without_first()):
            if len(some.starts) >= LEAST and (rows := list(_rows(trace, some, read))):
                loops.append(_Loop(some, rows))
                break
    return _Reckoned(trace, loops).trace() if loops else trace


def passes_on(trace: Trace, rounds: Rounds) -> bool:
    """Whether a number that rounds have reckoned with, and that may be the same in rounds that are left out by chance,
    may be used when they are over."""
    if rounds.reckoned is None:
        return False
    passing = {(type(value), value) for value in rounds.reckoned.passing()}
    if not passing:
        return False
    used: list[Any] = []
    for event in trace.events[rounds.end :]:
        if isinstance(event, Op):
            used += (value for _, value in _leaves((event.args, event.kwargs)))
    used += (value for one in trace.plain if one.position >= rounds.end for value in (*one.operands, *one.reals))
    used += (value for some in trace.recipes.values() for recipe in some for value in _constants(recipe))
    used += () if trace.result is None else _constants(trace.result)
    return any((type(value), value) in passing for value in used if type(value) in (int, float))


def _constants(recipe: Any) -> Iterator[Any]:
    return (part.value for part in parts_of(recipe) if isinstance(part, Constant))


def _rows(trace: Trace, rounds: Rounds, read: Mapping[Origin, Any]) -> Iterator[_Row]:
    """``read``: the numbers of the call."""
    limits = [*rounds.starts, rounds.end]
    counters = Counters(trace, rounds)
    ops = [
        [at for at in range(begin, end) if isinstance(trace.events[at], Op)]
        for begin, end in itertools.pairwise(limits)
    ]
    if len({len(row) for row in ops}) > 1:
        return
    for column in zip(*ops, strict=True):
        events: list[Any] = [trace.events[at] for at in column]
        if len({event.name for event in events}) > 1:
            continue
        found = [dict(_leaves((event.args, event.kwargs))) for event in events]
        for path, first in found[0].items():
            values = [row.get(path) for row in found]
            if not _is_number(first) or not all(map(_is_number, values)):
                continue
            if not _may_be_row(events[0], path, values):
                continue
            form = _form(counters, rounds, column, values, read)
            if form is not None:
                yield _Row(column, path, *form, tuple(values))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or isinstance(value, Expr)


def _may_be_row(op: Op, path: tuple[Any, ...], values: Sequence[Any]) -> bool:
    """Whether a tensor may stand there, with the same result to the last bit, and the numbers are not known as rows
    anyway."""
    if op.name in _INDEXED or len(path) != 2 or len({expr_token(value) for value in values}) == 1:
        return False
    if any(isinstance(leaf, Size) for value in values if isinstance(value, Expr) for leaf in leaves(value)):
        return False
    if taking(op.name, path) is not None:
        return True
    return is_arithmetic(op.name) and path[0] == 0 and not op.kwargs and not is_counting(values)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What stands where among arguments, but for what stands in slices."""
    if isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _leaves(part, (*path, number))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, (*path, key))
    else:
        yield path, value


def _form(
    counters: Counters, rounds: Rounds, ops: Sequence[int], values: Sequence[Any], read: Mapping[Origin, Any]
) -> tuple[Form, tuple[Expr | TensorRef, ...]] | None:
    """How the numbers are made, and of which numbers of the call and tensors."""
    if any(isinstance(value, Expr) for value in values):
        made = _Told(rounds, read, counters, ops)
        form = made.form(values)
        given = tuple(made.given.values())
    else:
        form, given = _plain_form(counters.trace, rounds, ops, values), ()
    return None if form is None or kind_of(form) is None else (form, given)


def _plain_form(trace: Trace, rounds: Rounds, ops: Sequence[int], values: Sequence[Any]) -> Form | None:
    if rounds.reckoned is None:
        return _counted(rounds, values)
    known = rounds.reckoned
    before = {
        sum(plain.position <= at for plain in trace.plain[first : first + known.width])
        for first, at in zip(itertools.count(known.first, known.width), ops)  # counts for ever
    }
    found: Form | None = known.form(values, before.pop()) if len(before) == 1 else None
    return None if found is None or found[0] == "const" else found


def _counted(rounds: Rounds, values: Sequence[Any]) -> Form | None:
    """The form of integers that count rounds."""
    if any(type(value) is not int for value in values):
        return None
    count = len(values)
    if rounds.back and list(values) == list(range(count - 1, -1, -1)):
        return BACK
    for first, step in rounds.counters:
        if list(values) == [first + step * turn for turn in range(count)]:
            return ("turn", first, step)
    return None


class _Told:
    """Traced numbers of all rounds as a form."""

    def __init__(self, rounds: Rounds, read: Mapping[Origin, Any], counters: Counters, ops: Sequence[int]) -> None:
        self.rounds, self.read, self.counters, self.ops = rounds, read, counters, ops
        self.given: dict[Any, Expr | TensorRef] = {}  # by token: the numbers of the call, and tensors that hold one

    def form(self, row: Sequence[Any]) -> Form | None:
        if _holds(row[0]):
            return self._each(row)
        if len({expr_token(value) for value in row}) == 1:
            return self._same(row[0])
        return self._scan(row) or self._each(row)

    def _same(self, value: Any) -> Form | None:
        if not isinstance(value, Expr):
            return ("const", value) if type(value) in (int, float) else None
        kind = type(_value_of(value, self.read)).__name__
        return self._given(value.token, value, kind) if kind in ("int", "float") else None

    def _given(self, token: Any, value: Expr | TensorRef, kind: str) -> Form:
        number = list(self.given).index(token) if token in self.given else len(self.given)
        self.given.setdefault(token, value)
        return ("given", number, kind)

    def _fetched(self, row: Sequence[Any]) -> Form | None:
        """What rounds have fetched from a tensor with which they count."""
        tensor = self.counters.tensor(row)
        if tensor is None:
            return None
        return self.counters.form(row, self._given(("tensor", tensor.number), tensor, row[0].type.__name__))

    def _scan(self, row: Sequence[Any]) -> Form | None:
        """Where each round makes its number of the one before."""
        bodies = [_holed(later, expr_token(earlier)) for earlier, later in itertools.pairwise(row[1:])]
        if any(not _holds(body) for body in bodies):
            return None
        first = _like(bodies[0], row[1], expr_token(row[0]))  # what stands in it may stand elsewhere, too
        start = self.form([row[0]] * len(row))
        body = None if first is None or start is None else self.form([first, *bodies])
        return None if body is None or start is None else ("entering", start, body)

    def _each(self, row: Sequence[Any]) -> Form | None:
        if any(value is _HOLE for value in row):
            return HOLE if all(value is _HOLE for value in row) else None
        turns = [value.first if isinstance(value, Turn) else value for value in row]
        if all(type(value) is int for value in turns):
            return _counted(self.rounds, turns)
        if isinstance(row[0], Fetch):
            return self._fetched(row)
        if all(type(value) is float for value in row):
            return _plain_form(self.counters.trace, self.rounds, self.ops, row)
        if any(not isinstance(value, Apply) for value in row):
            return None
        names = {name_of(value.func) for value in row}
        if len(names) > 1 or None in names or len({len(value.args) for value in row}) > 1:
            return None
        parts = [self.form(column) for column in zip(*(value.args for value in row), strict=True)]
        return None if None in parts else (names.pop(), *parts)


def _parts(value: Any) -> Iterator[Apply]:
    """What it is computed by."""
    if isinstance(value, Apply):
        yield value
        for arg in value.args:
            yield from _parts(arg)


def _value_of(value: Any, read: Mapping[Origin, Any]) -> Any:
    """What a number of the call was."""
    if isinstance(value, Apply):
        return value.func(*(_value_of(arg, read) for arg in value.args))
    return read.get(value.origin) if isinstance(value, Read) else value


class _Hole:
    token = ("hole",)


_HOLE: Any = _Hole()


def _holed(value: Any, token: Any) -> Any:
    """The expression with a hole where a number is."""
    if expr_token(value) == token:
        return _HOLE
    if not isinstance(value, Apply):
        return value
    args = tuple(_holed(arg, token) for arg in value.args)
    same = all(new is old for new, old in zip(args, value.args, strict=True))
    return value if same else Apply(value.func, args)


def _like(body: Any, expr: Any, token: Any) -> Any:
    """The first round's expression, with the holes of another's body where this number is; None where it is not."""
    if body is _HOLE:
        return _HOLE if expr_token(expr) == token else None
    if not _holds(body):
        return expr
    if not isinstance(expr, Apply) or len(expr.args) != len(body.args):
        return None
    args = tuple(_like(inner, arg, token) for inner, arg in zip(body.args, expr.args, strict=True))
    return None if any(arg is None for arg in args) else Apply(expr.func, args)


def _holds(value: Any) -> bool:
    return value is _HOLE or (isinstance(value, Apply) and any(map(_holds, value.args)))


class _Reckoned(Adding):
    """Writes the run anew with the numbers as rows."""

    def __init__(self, old: Trace, loops: Sequence[_Loop]) -> None:
        super().__init__(old)
        self.modes = replace(next(e.modes for e in old.events if isinstance(e, Op)), grad=False)
        self.ahead = {one.rounds.starts[0]: one for one in loops}
        self.changed: dict[int, list[tuple[_Row, int]]] = {}  # of operations, their numbers and which round they are of
        for loop in loops:
            for row in loop.rows:
                for turn, at in enumerate(row.ops):
                    self.changed.setdefault(at, []).append((row, turn))
        self.computed = {
            part.token for loop in loops for row in loop.rows for value in row.values for part in _parts(value)
        } - {part.token for loop in loops for row in loop.rows for value in row.given for part in _parts(value)}
        self.rows: dict[int, list[TensorRef]] = {}  # of each row of numbers, by id, those of its rounds
        self.after = self._positions()

    def _positions(self) -> list[int]:
        """How many operations come before each of the old ones, and after the last."""
        found, made = [], 0
        for at, event in enumerate(self.old.events):
            made += 2 * len(self.ahead[at].rows) if at in self.ahead else 0
            if isinstance(event, Op):
                found.append(made)
                made += 1 + sum(_is_beside(event, row) for row, _ in self.changed.get(at, ()))
        return [*found, made]

    def _is_within(self, at: int) -> bool:
        return any(start <= at < one.rounds.end for start, one in self.ahead.items())

    def position(self, after: int) -> int:
        return self.after[after] if after else 0

    def trace(self) -> Trace:
        old = self.old
        events: list[Any] = []
        begins: list[int] = []
        operations = 0
        for at, event in enumerate(old.events):
            if at in self.ahead:
                events += self._columns(self.ahead[at])
            begins.append(len(events))
            if isinstance(event, Computed) and event.expr.token in self.computed and self._is_within(at):
                continue  # with the numbers of all rounds, which may raise as well
            if isinstance(event, Op) and at in self.changed:
                events += self._taking(event, self.changed[at], operations)
            else:
                events.append(self.event(event, operations))
            operations += isinstance(event, Op)
        begins.append(len(events))
        return self.made(events, **self.moved(lambda at, end: begins[at], begins.__getitem__))

    def _columns(self, loop: _Loop) -> Iterator[Op]:
        """What makes the numbers of all rounds."""
        rounds, place = loop.rounds, self.old.events[loop.rows[0].ops[0]].place
        for row in loop.rows:
            dtype = torch.float64 if kind_of(row.form) is float else torch.int64
            length = rounds.first + len(rounds.starts)
            whole = TensorRef(self.new((length,), dtype))
            args = (repr(row.form), rounds.count, rounds.first, *row.given)
            yield Op(reckoned, "reckoned", args, {}, (whole,), self.modes, place)
            parts = tuple(TensorRef(self.new((), dtype)) for _ in range(length))
            yield Op(torch.Tensor.unbind, "Tensor.unbind", (whole, 0), {}, parts, self.modes, place)
            self.rows[id(row)] = list(parts[rounds.first :])

    def _taking(self, op: Op, numbers: Sequence[tuple[_Row, int]], after: int) -> Iterator[Op]:
        """The operation with tensors in the places of its numbers."""
        others = [
            TensorRef(self.tensor(value.number, after)) for _, value in _leaves(op.args) if isinstance(value, TensorRef)
        ]
        made = self.operation(op, after)
        for row, turn in numbers:
            number = self.rows[id(row)][turn]
            if _is_beside(op, row):
                kind = self.kinds[number.number]
                operand = TensorRef(self.new((), kind[2]))
                args = (number, kind[2] is torch.float64, *others)
                yield Op(beside, "beside", args, {}, (operand,), self.modes, op.place)
                number = operand
            elif (func := taking(op.name, row.path)) is not None:
                made = replace(made, func=func, name=func.__name__)
            where, key = row.path
            if where:
                made = replace(made, kwargs={**made.kwargs, key: number})
            else:
                made = replace(made, args=(*made.args[:key], number, *made.args[key + 1 :]))
        yield made


def _is_beside(op: Op, row: _Row) -> bool:
    """Whether the number stands beside tensors, and is made one that promotes their types as little."""
    return taking(op.name, row.path) is None

"""Runs that differ only in how often a loop went round, told as one path: each loop is cut down to its first rounds.

What is cut must have done what the rounds before it did, and no more may be known of it than of them: see
``trace.events.Rounds``. Marks among the operations say where a loop's rounds begin and end and how many there really
are; ``loop_roll`` makes a loop node of them. Knows traces, not programs.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.graph.loop_rounds import begin_rounds, end_rounds
from torchjanus.graph.loop_until import is_question, untils
from torchjanus.trace.events import (
    Asserted,
    Computed,
    Decision,
    Entered,
    Extern,
    Fact,
    Held,
    Left,
    Op,
    Pinned,
    Rounds,
    TensorRef,
    Trace,
    Trips,
    Until,
)
from torchjanus.trace.recipes import Build, Number, TensorAt, TensorOf
from torchjanus.trace.values import Apply, Fetch, Size

__all__ = ["KEPT", "Brief", "Shortened", "brief", "shorten"]

KEPT = 3  # rounds


@dataclass(frozen=True, slots=True)
class Shortened:
    """The run with its loops cut down, how many rounds they had, and which came to their limit before a tensor ended
    them. ``order``: of the loops that tensors end, the how-manieth it is among all such of the run."""

    trace: Trace
    counts: tuple[int, ...]
    full: tuple[bool, ...]
    order: tuple[int, ...]

    def leasts(self, counts: Sequence[int]) -> Iterator[int]:
        """Of these counts, which are those of all loops that tensors end, those of the loops that were cut down."""
        return (counts[number] for number in self.order)

    def ways(self) -> list[int]:
        """What led to each loop, as a number: equal where two runs did the same up to the end of the loop's rounds,
        whatever became of the question that ended them."""
        found, past, before = [], 0, 0
        for event in self.trace.events:
            if isinstance(event, Op) and event.func is end_rounds:
                found.append(before)
            before, past = past, hash((past, event.token))
        return found


@dataclass(frozen=True, slots=True)
class Brief:
    """The run with one round of each loop that a tensor ends: equal tokens mean that any number of rounds leads to the
    same. How many there were."""

    tokens: tuple[Any, ...]
    counts: tuple[int, ...]


class _Unfit(Exception):
    """The rounds are not alike, or something else speaks of those that would be cut."""


def shorten(trace: Trace, which: Sequence[bool] | None = None) -> Shortened | None:
    """The run with ``KEPT`` rounds of each loop of a changeable number of rounds; None if it has no such loop.
    ``which``: of those that are long enough, which to cut down; without it all."""
    found = _fit(trace)
    fit = [loop for loop in found if loop.count >= KEPT]
    if which is not None:
        fit = [loop for loop, chosen in zip(fit, which, strict=True) if chosen]
    if not fit:
        return None
    ended = [loop for loop in found if loop.until is not None]
    order = tuple(number for number, loop in enumerate(ended) if loop in fit)
    try:
        return Shortened(
            _Cut(trace, fit).trace(), tuple(loop.count for loop in fit), tuple(loop.full for loop in fit), order
        )
    except _Unfit:
        return None


def brief(trace: Trace) -> Brief | None:
    """What the run has in common with those of fewer than ``KEPT`` rounds; None if no tensor ends a loop of it."""
    fit = _fit(trace)
    counts = tuple(loop.count for loop in fit if loop.until is not None)
    if not counts:
        return None
    try:
        return Brief(_Cut(trace, fit, 1).trace().tokens(), counts)
    except _Unfit:
        return None


def _fit(trace: Trace) -> list[_Loop]:
    """The loops of a changeable number of rounds."""
    fit: list[_Loop] = []
    if trace.failures:
        return fit
    for rounds in sorted((*trace.rounds, *untils(trace)), key=lambda rounds: rounds.starts[:1]):
        least = 1 if isinstance(rounds.count, Until) else KEPT
        inside = fit and rounds.starts and rounds.starts[0] < fit[-1].rounds.end
        if len(rounds.starts) < least or inside or trace.measured > rounds.starts[0]:
            continue
        try:
            fit.append(_Loop(trace, rounds))
        except _Unfit:
            continue
    while (free := [loop for loop in fit if _is_free(trace, loop, fit)]) != fit:
        fit = free
    return fit


def _is_free(trace: Trace, loop: _Loop, loops: list[_Loop]) -> bool:
    """Whether the number of rounds decides nothing but the number of rounds."""
    token = loop.token
    return token is None or trace.pins.get(token, 0) == sum(one.token == token and one.pinned for one in loops)


class _Loop:
    """A loop, and what each of its rounds did. Raises _Unfit."""

    def __init__(self, trace: Trace, rounds: Rounds) -> None:
        self.rounds = rounds
        self.count = len(rounds.starts)
        self.until = rounds.count if isinstance(rounds.count, Until) else None
        self.token = None if isinstance(rounds.count, Until) else rounds.count.token
        last = trace.events[rounds.end - 1]
        self.full = self.until is not None and isinstance(last, Asserted | Held) and last.outcome == self.until.go
        self.pinned = any(isinstance(e, Pinned) and e.expr.token == self.token for e in trace.events)
        self.positions = [  # for each round, how many operations come before it
            sum(isinstance(event, Op) for event in trace.events[:start]) for start in rounds.starts
        ]
        limits = [*rounds.starts, rounds.end]
        self.events = [trace.events[a:b] for a, b in itertools.pairwise(limits)]
        operations = [event for events in self.events for event in events if isinstance(event, Op)]
        if not operations:
            raise _Unfit  # there is nothing to make a node of
        self.modes = operations[0].modes
        self.made: dict[int, tuple[int, int]] = {}  # tensor -> round, how-manieth of the round
        self.rows: dict[int, tuple[int, int]] = {}  # tensor -> which unbinding made it, how-manieth
        for number, event in enumerate(trace.events[: rounds.starts[0]]):
            if isinstance(event, Op) and event.name in ("Tensor.unbind", "torch.unbind"):
                self.rows.update((ref.number, (number, which)) for which, ref in enumerate(event.outs))
        for number, events in enumerate(self.events):
            order = 0
            for event in events:
                for ref in event.outs if isinstance(event, Op) else ():
                    if ref.number not in self.made:
                        self.made[ref.number] = (number, order)
                        order += 1
        self.sizes = max(order for _, order in self.made.values()) + 1 if self.made else 0
        patterns = [self._pattern(number) for number in range(len(self.events))]
        if any(pattern != patterns[1] for pattern in patterns[2:]):
            raise _Unfit
        if self.count > 1:
            both = [[p for p in self._pattern(n, n == 0) if p[0] in ("op", "asked")] for n in (0, 1)]
            _check_first(*both)

    def _pattern(self, number: int, only_operations: bool = False) -> list[Any]:
        found: list[Any] = []
        events = self.events[number]
        for event in events:
            if isinstance(event, Op):
                found.append(self._operation(number, event))
            elif self.until is not None and is_question(event) and event is events[-1]:
                found.append(self._question(number, event))
            elif isinstance(event, Decision | Entered | Left | Trips):
                if not only_operations:
                    found.append(event.token)
            elif number or isinstance(event, Asserted) or not isinstance(event, Fact):
                raise _Unfit  # an effect, or something that the rounds before did not ask
        return found

    def _operation(self, number: int, op: Op) -> Any:
        if op.name.rpartition(".")[2] == "backward":
            raise _Unfit
        indexed = op.name in ("Tensor.__getitem__", "torch.select", "Tensor.select")

        def leaf(value: Any) -> Any:
            if isinstance(value, TensorRef):
                return self._tensor(number, value.number)
            if indexed and type(value) is int:
                return ("index", value - number) if value == number else ("int", value)
            return value.token if hasattr(value, "token") else ("constant", type(value).__name__, repr(value))

        outs = tuple(self._tensor(number, ref.number) for ref in op.outs)
        if any(out[0] != "own" for out in outs):
            raise _Unfit
        args = _map((op.args, op.kwargs), leaf)
        return ("op", op.name, id(op.func), repr(args), outs, op.modes, op.draws, op.checks)

    def _question(self, number: int, event: Any) -> Any:
        """What was asked in the end, whatever the answer."""
        if isinstance(event, Asserted):
            return ("asked", event.place, self._own(number, event.ref.number))

        def part(expr: Any) -> Any:
            if isinstance(expr, Fetch):
                after = expr.after - self.positions[number]
                return ("fetch", self._own(number, expr.ref), after, expr.type.__name__, expr.index)
            if isinstance(expr, Apply):
                return ("apply", expr.func, *map(part, expr.args))
            return expr.token if hasattr(expr, "token") else ("constant", type(expr).__name__, repr(expr))

        return ("asked", event.place, part(event.expr))

    def _own(self, number: int, tensor: int) -> int:
        found, order = self.made.get(tensor, (-1, -1))
        if found != number:
            raise _Unfit
        return order

    def _tensor(self, number: int, tensor: int) -> Any:
        where = self.made.get(tensor)
        if where is not None and number - where[0] in (0, 1):
            return ("own" if number == where[0] else "previous", where[1])
        if where is not None:
            raise _Unfit
        if tensor in self.rows and self.rows[tensor][1] == number:
            return ("row", self.rows[tensor][0])
        return ("outside", tensor)


def _check_first(first: list[Any], second: list[Any]) -> None:
    """The first round may begin from other tensors, and does the same with them."""
    if [_alike(pattern) for pattern in first] != [_alike(pattern) for pattern in second]:
        raise _Unfit


def _alike(pattern: Any) -> Any:
    """What has to be equal: of an operation all but its arguments."""
    return (*pattern[:3], *pattern[4:]) if pattern[0] == "op" else pattern


def _map(value: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        parts = [_map(part, leaf) for part in value]
        return parts if isinstance(value, list) else type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {key: _map(part, leaf) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(*(_map(part, leaf) for part in (value.start, value.stop, value.step)))
    return leaf(value)


@dataclass(slots=True)
class _Cut:
    """Makes the shortened trace. Raises _Unfit."""

    old: Trace
    loops: list[_Loop]
    least: int = KEPT  # rounds that are kept of a loop that a tensor ends
    numbers: dict[int, int] = field(default_factory=dict)  # old tensor -> new
    after: list[int] = field(default_factory=list)  # old operations before a point -> new ones; -1 within what is cut
    recipes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    fetched: dict[Any, Any] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # what the last round made -> what the last one kept made
    gone: set[int] = field(default_factory=set)  # what other rounds made
    lost: set[int] = field(default_factory=set)  # rows of a tensor for rounds that are cut
    inside: _Loop | None = None

    def trace(self) -> Trace:
        old = self.old
        pieces = list(self._pieces())
        self._renumber(pieces)
        pinned = {loop.token for loop in self.loops}
        events: list[Any] = []
        loops = iter(self.loops)
        for event, kept in pieces:
            if isinstance(event, Op) and event.func is begin_rounds:
                self.inside = next(loops)
            elif isinstance(event, Op) and event.func is end_rounds:
                self.inside = None
            if kept and not (isinstance(event, Pinned) and event.expr.token in pinned):
                events.append(self._event(event))
        for self.inside in (*self.loops, None):  # what is fetched in a round that is kept, then what is after the last
            for token, value in old.fetched.items():
                self._fetched(token, value)
        made = Trace(
            events=events,
            tensors=[None] * len(self.numbers),
            origins={self._number(number): origin for number, origin in old.origins.items()},
            owners=old.owners,
            result=self._recipe(old.result) if old.result is not None else None,
            fetched=self.fetched,
            alive=old.alive,
            ambient=old.ambient,
            failures=old.failures,
        )
        made.recipes = self.recipes
        for number, tensor in enumerate(old.tensors):
            if number in old.origins:
                made.tensors[self._number(number)] = tensor
        return made

    def _pieces(self) -> Iterator[tuple[Any, bool]]:
        """The events, and marks, and whether each is kept."""
        loops = {loop.rounds.starts[0]: loop for loop in self.loops}
        ends = {loop.rounds.end: loop for loop in self.loops}
        cut: tuple[int, int] = (0, 0)
        answers: dict[int, bool] = {}  # to the question that ends the last round that is kept
        for position, event in enumerate(self.old.events):
            if position in ends:
                yield self._end(ends[position], event), True
                if ends[position].until is None:
                    event = Trips(KEPT, event.place)
            loop = loops.get(position)
            if loop is not None:
                place, count, kept = event.place, loop.rounds.count, self.kept(loop)
                args: tuple[Any, ...] = (count, kept)
                starts = (*loop.rounds.starts, loop.rounds.end)
                if isinstance(count, Until):
                    args = (None, kept, count.go, count.limit)
                    answers[starts[kept] - 1] = self.old.events[starts[-1] - 1].outcome  # type: ignore[union-attr]
                else:
                    yield Held(Apply(operator.ge, args), True, place), True
                yield Op(begin_rounds, "begin_rounds", args, {}, (), loop.modes, place), True
                cut = (starts[kept], loop.rounds.end)
            if position in answers and isinstance(event, Asserted | Held):
                event = replace(event, outcome=answers[position])
            yield event, not cut[0] <= position < cut[1]
        if len(self.old.events) in ends:
            yield self._end(ends[len(self.old.events)], self.old.events[-1]), True

    def kept(self, loop: _Loop) -> int:
        """How many of its rounds are kept."""
        return KEPT if loop.until is None else self.least

    @staticmethod
    def _end(loop: _Loop, event: Any) -> Op:
        return Op(end_rounds, "end_rounds", (), {}, (), loop.modes, event.place)

    def _renumber(self, pieces: list[tuple[Any, bool]]) -> None:
        for loop in self.loops:
            by_place = {place: tensor for tensor, place in loop.made.items()}
            for tensor, (number, order) in loop.made.items():
                if number == loop.count - 1:
                    self.last[tensor] = by_place[self.kept(loop) - 1, order]
                else:
                    self.gone.add(tensor)  # only all together may they be spoken of
        dropped = {t for loop in self.loops for t, (n, _) in loop.made.items() if n >= self.kept(loop)}
        rows = {
            tensor
            for loop in self.loops
            for tensor, (_, which) in loop.rows.items()
            if loop.until is None and which >= KEPT and self._is_row(loop, tensor)
        }
        kept = [number for number in range(len(self.old.tensors)) if number not in dropped and number not in rows]
        self.numbers = {number: position for position, number in enumerate(kept)}
        self.lost = rows
        operations = 0
        self.after = [0]
        for event, stays in pieces:
            if not isinstance(event, Op):
                continue
            operations += stays
            if event.func is end_rounds:
                self.after[-1] = operations
            elif event.func is not begin_rounds:  # what is fetched here is fetched before the loop
                self.after.append(operations)

    def _is_row(self, loop: _Loop, tensor: int) -> bool:
        """Whether the loop takes the rows of this unbinding, one in each round."""
        source, _ = loop.rows[tensor]
        return any(f"('row', {source})" in p[3] for p in loop._pattern(1) if p[0] == "op")

    # what speaks of tensors, in new numbers

    def _number(self, tensor: int) -> int:
        if self.inside is None or tensor not in self.inside.made:
            if tensor in self.gone:
                raise _Unfit
            tensor = self.last.get(tensor, tensor)
        if tensor not in self.numbers:
            raise _Unfit
        return self.numbers[tensor]

    def _event(self, event: Any) -> Any:
        made = event
        if isinstance(event, Op):
            made = replace(
                event, args=self._values(event.args), kwargs=self._values(event.kwargs), outs=self._outs(event)
            )
        elif isinstance(event, Asserted):
            made = replace(event, ref=TensorRef(self._number(event.ref.number)), after=self._position(event.after))
        elif isinstance(event, Held | Pinned | Computed):
            made = replace(event, expr=self._expr(event.expr))
        elif isinstance(event, Extern):
            made = replace(event, after=self._position(event.after))
        if id(event) in self.old.recipes:
            self.recipes[id(made)] = tuple(map(self._recipe, self.old.recipes[id(event)]))
        return made

    def _outs(self, op: Op) -> tuple[TensorRef, ...]:
        """Of an unbinding whose rows the rounds take, the rows of the rounds that are kept."""
        return tuple(TensorRef(self._number(ref.number)) for ref in op.outs if ref.number not in self.lost)

    def _position(self, after: int) -> int:
        return self.after[after]

    def _values(self, value: Any) -> Any:
        if isinstance(value, list | tuple) and value and all(isinstance(part, TensorRef) for part in value):
            value = self._all_rounds(value)
        if isinstance(value, list | tuple):
            parts = [self._values(part) for part in value]
            if isinstance(value, list):
                return parts
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, dict):
            return {key: self._values(part) for key, part in value.items()}
        if isinstance(value, slice):
            return slice(*(self._values(part) for part in (value.start, value.stop, value.step)))
        if isinstance(value, TensorRef):
            return value if isinstance(value, _New) else TensorRef(self._number(value.number))
        return self._expr(value)

    def _all_rounds(self, value: Any) -> Any:
        """What all rounds made, in their order: what the rounds that are kept made."""
        for loop in self.loops:
            where = [loop.made.get(ref.number) for ref in value]
            if loop.until is not None:
                continue
            if None not in where and where == [(number, where[0][1]) for number in range(loop.count)]:  # type: ignore[index]
                return type(value)(_New(self.numbers[ref.number]) for ref in value[:KEPT])
        return value

    def _expr(self, expr: Any) -> Any:
        if isinstance(expr, Fetch):
            return replace(expr, ref=self._number(expr.ref), after=self._position(expr.after))
        if isinstance(expr, Size):
            return replace(expr, ref=self._number(expr.ref), after=self._position(expr.after))
        if isinstance(expr, Apply):
            return Apply(expr.func, tuple(self._expr(arg) for arg in expr.args))
        return expr

    def _fetched(self, token: Any, value: Any) -> None:
        try:
            if token[0] == "fetch":
                self.fetched["fetch", self._number(token[1]), self._position(token[2]), *token[3:]] = value
            elif token[0] == "size":
                self.fetched["size", self._number(token[1]), token[2], self._position(token[3])] = value
        except _Unfit:
            return  # nobody speaks of it any more, or the expression itself is found unfit

    def _recipe(self, recipe: Any) -> Any:
        if isinstance(recipe, TensorOf):
            return TensorOf(TensorRef(self._number(recipe.ref.number)))
        if isinstance(recipe, TensorAt):
            return TensorAt(TensorRef(self._number(recipe.ref.number)), self._position(recipe.after))
        if isinstance(recipe, Number):
            return Number(self._expr(recipe.expr))
        if isinstance(recipe, Build):
            items = tuple(
                tuple(map(self._recipe, item)) if isinstance(item, tuple) else self._recipe(item)
                for item in recipe.items
            )
            attributes = tuple((name, self._recipe(part)) for name, part in recipe.attributes)
            fields = tuple((key, self._recipe(part)) for key, part in recipe.fields)
            return replace(recipe, items=items, attributes=attributes, fields=fields)
        return recipe


class _New(TensorRef):
    """A tensor by its new number."""

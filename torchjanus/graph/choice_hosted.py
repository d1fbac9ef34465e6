"""What the host decides by chance in each round (``if random.random() < ratio``), told as if tensors did.

The numbers are drawn before the loop, in the program's order, and what is asked of them makes one tensor, of which each
round has its own element. So runs that went other ways do the same (scheduled sampling, teacher forcing). A rewriting
of traces.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.errors import Place
from torchjanus.graph.loop_rewriting import Rewriting
from torchjanus.graph.loop_scan import UnlikeRounds
from torchjanus.origin import Origin
from torchjanus.trace.events import Asserted, Extern, Found, Frames, Held, Op, TensorRef, Trace
from torchjanus.trace.recipes import Constant, FoundAt, Number
from torchjanus.trace.values import Apply, Expr, Fetch, Read, Size, leaves

__all__ = ["hosted", "is_chance"]

# Asked of numbers that other rounds have drawn, these raise no more than of those of the round that was seen.
_ASKING = (
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, operator.not_, bool,
    operator.add, operator.sub, operator.mul, operator.neg, operator.abs, abs, int, float, min, max,
)  # fmt: skip


def is_chance(event: Any) -> bool:
    """Whether what the host was given by the world decided."""
    return isinstance(event, Held) and any(
        isinstance(leaf, Read) and leaf.origin.waits_for for leaf in leaves(event.expr)
    )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Stands for the number that the round's call of this order gave."""

    order: int


@dataclass(frozen=True, slots=True)
class _Draws:
    """What the host draws in a loop. ``externs``: of each round the positions of its calls, ``given``: of each call
    where its number is found; ``asked``: what is asked of numbers, by place, in terms of ``_Drawn``; ``held``: of each
    event that asks, which of these it is, and in which round; ``first``: reads of what was there before that are told
    before the loop."""

    externs: tuple[tuple[int, ...], ...]
    given: dict[tuple[int, int], Origin]
    asked: dict[Any, tuple[Any, Place]]
    held: dict[int, tuple[Any, int]]
    first: tuple[int, ...]


def hosted(trace: Trace, frames: Frames) -> tuple[Trace, Frames]:
    """The run in which tensors decide what the host decides by chance in rounds of this loop, and the loop in it; the
    same where there is no such thing. Raises UnlikeRounds where it cannot be told so."""
    if not any(isinstance(event, Extern) for event in trace.events[frames.starts[0] : frames.end]):
        return trace, frames
    draws = _Looking(trace, frames).draws()
    if draws is None:
        return trace, frames
    number = trace.frames.index(frames)
    made = _Hosting(trace, frames, draws).trace()
    return made, made.frames[number]


class _Looking:
    """Looks what is drawn in the rounds of a loop."""

    def __init__(self, trace: Trace, frames: Frames) -> None:
        self.trace, self.frames = trace, frames
        self.limits = list(zip(frames.starts, (*frames.starts[1:], frames.end), strict=True))
        self.own: dict[Origin, tuple[int, int]] = {}  # whose number is found there: the round, the order of the call
        self.reads: dict[Origin, int] = {}

    def draws(self) -> _Draws | None:
        trace = self.trace
        externs = tuple(
            tuple(at for at in range(start, end) if isinstance(trace.events[at], Extern)) for start, end in self.limits
        )
        called = {trace.events[at].number: (turn, n) for turn, some in enumerate(externs) for n, at in enumerate(some)}  # type: ignore[union-attr]
        for at in range(self.frames.starts[0], self.frames.end):
            event = trace.events[at]
            if isinstance(event, Found):
                known = called.get(event.origin.waits_for - 1) if event.origin.waits_for else None
                if known is not None:
                    if event.kind != "number" or known in self.own.values():
                        raise UnlikeRounds
                    self.own[event.origin] = known
                self.reads.setdefault(event.origin, at)
        held: dict[int, tuple[Any, int]] = {}
        asked: dict[Any, tuple[Any, Place]] = {}
        needed: dict[int, None] = {}
        for turn, (start, end) in enumerate(self.limits):
            for at in range(start, end):
                event = trace.events[at]
                if isinstance(event, Held) and (form := self._form(event.expr, turn)) is not None:
                    key = (event.place, _token(form))
                    asked.setdefault(key, (form, event.place))
                    held[at] = (key, turn)
                    read = [leaf.origin for leaf in leaves(form) if isinstance(leaf, Read)]
                    needed.update((self.reads[origin], None) for origin in read if origin in self.reads)
        if not held:
            return None
        self._check(externs, held)
        given = {known: origin for origin, known in self.own.items()}
        return _Draws(externs, given, asked, held, tuple(needed))

    def _form(self, expr: Any, turn: int) -> Any:
        """What is asked, in terms of what the round has drawn; None where it is asked of nothing drawn in the loop."""
        found = [self.own[leaf.origin] for leaf in leaves(expr) if isinstance(leaf, Read) and leaf.origin in self.own]
        if not found:
            return None
        if any(known[0] != turn for known in found):
            raise UnlikeRounds
        return self._told(expr)

    def _told(self, expr: Any) -> Any:
        if isinstance(expr, Apply):
            drawn = any(isinstance(leaf, Read) and leaf.origin in self.own for leaf in leaves(expr))
            if drawn and not any(expr.func is func for func in _ASKING):
                raise UnlikeRounds
            return Apply(expr.func, tuple(map(self._told, expr.args)))
        if isinstance(expr, Fetch | Size):
            raise UnlikeRounds
        if isinstance(expr, Read):
            if expr.origin in self.own:
                return _Drawn(self.own[expr.origin][1])
            if expr.origin.waits_for:
                raise UnlikeRounds
        return expr

    def _check(self, externs: Sequence[Sequence[int]], held: dict[int, Any]) -> None:
        """Each round draws the same, nothing else calls the host, and what is drawn is only asked for."""
        trace = self.trace
        calls: list[list[Any]] = [[trace.events[at] for at in some] for some in externs]
        if len({tuple(call.token for call in some) for some in calls}) > 1:
            raise UnlikeRounds
        for call in (call for some in calls for call in some):
            recipes = trace.recipes.get(id(call), ())
            plain = all(
                isinstance(r, Constant | FoundAt) or (isinstance(r, Number) and not _is_late(r.expr)) for r in recipes
            )
            if not call.effects.harmless or call.draws or call.chosen or call.stale or not plain:
                raise UnlikeRounds
        if len(self.own) != sum(map(len, externs)):
            raise UnlikeRounds  # what is made of one is not known
        for at in range(self.frames.starts[0], self.frames.end):
            if at not in held and any(isinstance(one, Read) and one.origin in self.own for one in self._leaves(at)):
                raise UnlikeRounds

    def _leaves(self, at: int) -> Iterator[Any]:
        """The expressions that an event speaks of, part by part."""
        event, recipes = self.trace.events[at], self.trace.recipes.get(id(self.trace.events[at]), ())
        for part in (getattr(event, "expr", None), getattr(getattr(event, "key", None), "expr", None)):
            if part is not None:
                yield from leaves(part)
        for recipe in recipes:
            if isinstance(recipe, Number):
                yield from leaves(recipe.expr)
        if isinstance(event, Op):
            yield from _expressions((event.args, event.kwargs))


def _is_late(expr: Any) -> bool:
    return any(
        isinstance(one, Fetch | Size) or (isinstance(one, Read) and one.origin.waits_for) for one in leaves(expr)
    )


def _expressions(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _expressions(part)
    elif isinstance(value, dict):
        yield from _expressions(list(value.values()))
    elif isinstance(value, slice):
        yield from _expressions((value.start, value.stop, value.step))
    elif isinstance(value, Expr):
        yield from leaves(value)


def _token(form: Any) -> Any:
    if isinstance(form, Apply):
        return (form.func, *map(_token, form.args))
    return form.token if isinstance(form, Expr) else (type(form), form)


def _answers(*numbers: Any) -> torch.Tensor:
    return torch.stack([torch.full((), number, dtype=torch.int64) for number in numbers])


class _Hosting(Rewriting):
    """Writes the run anew with the draws before the loop."""

    def __init__(self, old: Trace, frames: Frames, draws: _Draws) -> None:
        super().__init__(old)
        self.frames, self.draws, self.at = frames, draws, frames.starts[0]
        self.before = sum(isinstance(event, Op) for event in old.events[: self.at])
        self.inserted = 2 * len(draws.asked)
        self.within = False
        self._words = {origin.token: ("drawn", order) for (_, order), origin in draws.given.items()}

    def position(self, after: int) -> int:
        later = after > self.before or (after == self.before and self.within)
        return after + self.inserted if later else after

    def trace(self) -> Trace:
        old, draws, frames = self.old, self.draws, self.frames
        modes = replace(next(event.modes for event in old.events if isinstance(event, Op)), grad=False)
        gone = {at for some in draws.externs for at in some} | set(draws.first)
        gone |= {at for at in range(self.at, frames.end) if getattr(old.events[at], "origin", None) in self._found}
        ahead: list[Any] = [old.events[at] for at in sorted(gone)]
        rows: dict[Any, int] = {}
        number, count = len(old.tensors), len(frames.starts)
        for key, (form, place) in draws.asked.items():
            asked = tuple(Apply(int, (self._of(form, turn),)) for turn in range(count))
            ahead.append(Op(_answers, "answers", asked, {}, (TensorRef(number),), modes, place))
            refs = tuple(TensorRef(number + 1 + turn) for turn in range(count))
            args = (TensorRef(number), 0)
            ahead.append(Op(torch.Tensor.unbind, "Tensor.unbind", args, {}, refs, modes, place))
            rows[key] = number + 1
            number += 1 + count
        events: list[Any] = []
        places: list[int] = []
        operations = 0
        for position, event in enumerate(old.events):
            if position == self.at:
                self.within = True
                for one in ahead:
                    if id(one) in old.recipes:
                        self.recipes[id(one)] = old.recipes[id(one)]
                    events.append(one)
            places.append(len(events))
            if position in gone:
                continue
            if position in draws.held:
                key, turn = draws.held[position]
                ref = TensorRef(rows[key] + turn)
                event = Asserted(ref, event.outcome, operations + self.inserted, event.place)  # type: ignore[union-attr]
            else:
                operations += isinstance(event, Op)
                event = self.event(event, operations)
            events.append(event)
        places.append(len(events))
        new = number - len(old.tensors)
        memory = max(old.memory, default=0) + 1
        kinds = dict(old.kinds)
        for row in rows.values():
            kinds[row - 1] = ((count,), (1,), torch.int64, torch.device("cpu"), False)
            kinds.update((row + n, ((), (), torch.int64, torch.device("cpu"), False)) for n in range(count))
        # A loop around this one goes round before the draws.
        changes = self.moved(
            lambda at, end: at if at == self.at and end > frames.end else places[at], places.__getitem__
        )
        changes["rounds"] = [
            one for one in changes["rounds"] if one.starts != tuple(places[at] for at in frames.starts)
        ]
        changes["plain"] = [replace(one, told=self._said(one.told)) for one in changes["plain"]]
        number = old.frames.index(frames)
        changes["frames"][number] = replace(changes["frames"][number], count=None)
        return self.made(
            events,
            tensors=[*old.tensors, *[None] * new],
            memory=[*old.memory, *(memory + n for n in range(new))] if old.memory else [],
            kinds=kinds,
            **changes,
        )  # fmt: skip

    @property
    def _found(self) -> frozenset[Origin]:
        return frozenset(self.draws.given.values())

    def _of(self, form: Any, turn: int) -> Any:
        if isinstance(form, _Drawn):
            return Read(self.draws.given[turn, form.order])
        return Apply(form.func, tuple(self._of(one, turn) for one in form.args)) if isinstance(form, Apply) else form

    def _said(self, told: Any) -> Any:
        """What was computed with plain numbers, in words that are the same in all rounds."""
        if not isinstance(told, tuple):
            return told
        return self._words[told] if told in self._words else tuple(map(self._said, told))

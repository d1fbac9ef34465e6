"""Hoists the host's random draws out of a loop, so that tensors decide what the host decided by chance.

Where one call gives all draws (``BatchedExtern``), the trip count may change. ``host_decisions`` finds
the draws and the predicates.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.trace.actions import BatchedExtern, Extern, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, NumberPredicate, TensorPredicate
from torchjanus.trace.loops.records import LoopSnapshots
from torchjanus.trace.operations import op_count, ops_of
from torchjanus.trace.rewriting import AddingRewriter
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Read

__all__ = ["DrawPlaceholder", "HostDraws", "hoisted_draws"]

MOST = 64  # greatest index of a first iteration


@dataclass(frozen=True, slots=True)
class DrawPlaceholder:
    """A placeholder for the number that the iteration's host call of this order returned."""

    order: int


@dataclass(frozen=True, slots=True)
class HostDraws:
    """The host's draws in a loop.

    ``externs``: for each iteration, the positions of its calls. ``given``: (iteration, order) -> where the number is
    found. ``asked``: predicates by key, as an expression with ``DrawPlaceholder`` leaves and a place. ``held``:
    position of a condition -> its predicate and iteration. ``first``: positions of reads of earlier values, which move
    before the loop."""

    externs: tuple[tuple[int, ...], ...]
    given: dict[tuple[int, int], AccessPath]
    asked: dict[Any, tuple[Any, Place]]
    held: dict[int, tuple[Any, int]]
    first: tuple[int, ...]

    @property
    def access_paths(self) -> frozenset[AccessPath]:
        """The access paths of the drawn numbers."""
        return frozenset(self.given.values())


# Comparisons of tensors, as written and with the operands exchanged.
_COMPARING: dict[Any, tuple[Any, Any]] = {
    operator.lt: (torch.lt, torch.gt), operator.le: (torch.le, torch.ge), operator.gt: (torch.gt, torch.lt),
    operator.ge: (torch.ge, torch.le), operator.eq: (torch.eq, torch.eq), operator.ne: (torch.ne, torch.ne),
}  # fmt: skip


def _reals(drawn: Any) -> torch.Tensor:
    """Return a list of floats as a float64 tensor. Raises TypeError for anything else."""
    return _numbers(drawn, float, torch.float64)


def _integers(drawn: Any) -> torch.Tensor:
    """Return a list of ints as an int64 tensor. Raises TypeError for anything else."""
    return _numbers(drawn, int, torch.int64)


def _numbers(drawn: Any, kind: type, dtype: torch.dtype) -> torch.Tensor:
    if type(drawn) is not list or any(type(one) is not kind for one in drawn):
        raise TypeError(f"not a list of {kind.__name__}")
    return torch.tensor(drawn, dtype=dtype)


def hoisted_draws(old: Trace, frames: LoopSnapshots, draws: HostDraws) -> DrawHoister:
    """Return the rewriter: one call for all draws where that is possible."""
    number = draws.externs[0][0] if draws.externs[0] else -1
    call, count = old.events[number], frames.count
    later = any(isinstance(event, Extern) for event in old.events[frames.end :])
    several = isinstance(call, Extern) and len(draws.externs[0]) == 1 and not call.kwargs and count is not None
    given = [tuple(r.token for r in old.recipes.get(id(old.events[at]), ())) for some in draws.externs for at in some]
    if not several or later or len(set(given)) > 1 or not 0 <= frames.begins <= MOST:
        return DrawHoister(old, frames, draws)
    kinds = {
        type(event.value)
        for event in old.events
        if isinstance(event, HeapRead) and event.access_path in draws.access_paths
    }
    (kind, *others) = kinds
    if others or kind not in (float, int) or not all(_is_compared(form, kind) for form, _ in draws.asked.values()):
        return DrawHoister(old, frames, draws)
    return _BatchedDrawHoister(old, frames, draws, kind)


def _is_compared(form: Any, kind: type) -> bool:
    """Whether a drawn number is compared with a number that is not drawn, and tensors give Python's answer."""
    if not isinstance(form, Apply) or form.func not in _COMPARING:
        return False
    other = [arg for arg in form.args if not isinstance(arg, DrawPlaceholder)]
    if len(other) != 1 or any(_is_drawn(arg) for arg in other):
        return False
    return kind is float or type(other[0]) is int


def _is_drawn(form: Any) -> bool:
    return isinstance(form, DrawPlaceholder) or (isinstance(form, Apply) and any(map(_is_drawn, form.args)))


class DrawHoister(AddingRewriter):
    """Rewrites the run with each draw as its own call before the loop."""

    dtype = torch.int64  # of the predicates' results
    skipped = 0  # unused results before those of the first iteration

    def __init__(self, old: Trace, frames: LoopSnapshots, draws: HostDraws) -> None:
        super().__init__(old)
        self.frames, self.draws, self.at = frames, draws, frames.starts[0]
        self.before = op_count(old.events[: self.at])
        self.within = False
        self.count = len(frames.starts)
        self.access_paths = dict(old.access_paths)
        self.modes = replace(ops_of(old.events)[0].modes, grad=False)
        self._words = {access_path.token: ("drawn", order) for (_, order), access_path in draws.given.items()}

    @property
    def inserted(self) -> int:
        """The number of operations that are added."""
        return (3 if self.skipped else 2) * len(self.draws.asked)

    def position(self, after: int) -> int:
        later = after > self.before or (after == self.before and self.within)
        return after + self.inserted if later else after

    def trace(self) -> Trace:
        """Return the rewritten run."""
        old, draws, frames = self.old, self.draws, self.frames
        gone = {at for some in draws.externs for at in some} | set(draws.first)
        gone |= {
            at
            for at in range(self.at, frames.end)
            if getattr(old.events[at], "access_path", None) in draws.access_paths
        }
        ahead = self.drawn(gone)
        rows: dict[Any, int] = {}
        for key, (form, place) in draws.asked.items():
            asked = self.new((self.count,), self.dtype)
            ahead.append(replace(self.asking(form, place), outs=(TensorRef(asked),)))
            if self.skipped:
                args, asked = (
                    (TensorRef(asked), "-" * self.skipped),
                    self.new((self.skipped + self.count,), self.dtype),
                )
                ahead.append(Op(_behind, "behind", args, {}, (TensorRef(asked),), self.modes, place))
            refs = tuple(TensorRef(self.new((), self.dtype)) for _ in range(self.skipped + self.count))
            ahead.append(Op(torch.Tensor.unbind, "Tensor.unbind", (TensorRef(asked), 0), {}, refs, self.modes, place))
            rows[key] = refs[self.skipped].number

        def step(position: int, event: Any, after: int) -> Iterator[Any]:
            self.within |= position == self.at
            if position in draws.held:
                key, iteration = draws.held[position]
                yield TensorPredicate(
                    TensorRef(rows[key] + iteration), event.outcome, self.position(after), event.place
                )
            elif position not in gone:
                yield self.event(event, after)

        events, _, places = self.walk(step, lambda at: ahead if at == self.at else ())
        # A loop around this one starts its iteration before the draws.
        changes = self.moved(lambda at, end: at if at == self.at and end > frames.end else places[at], places)
        starts = tuple(places[at] for at in frames.starts)
        changes["loop_instances"] = [one for one in changes["loop_instances"] if one.starts != starts]
        changes["plain"] = [replace(one, structure=self._with_draw_names(one.structure)) for one in changes["plain"]]
        number = old.frames.index(frames)
        changes["frames"][number] = self.framed(changes["frames"][number])
        made = self.made(events, access_paths=self.access_paths, **changes)
        # A fetch right before the loop precedes what is added; iterations may refer to it, too.
        self.within = False
        fetched = {self.token(token): value for token, value in old.fetched.items()}
        pins = {self._pinned(token): times for token, times in old.pins.items()}
        return replace(made, fetched=fetched | made.fetched, pins=pins | made.pins)

    def drawn(self, gone: set[int]) -> list[Any]:
        """Return the events before the loop: calls, their results, facts that they need. ``gone``: events to move."""
        found = []
        for at in sorted(gone):
            event = made = self.old.events[at]
            if isinstance(event, Extern):
                made = replace(event, after=min(event.after, self.before))
            if id(event) in self.old.recipes:
                self.recipes[id(made)] = self.old.recipes[id(event)]
            found.append(made)
        return found

    def asking(self, form: Any, place: Place) -> Op:
        """Return the operation that evaluates a predicate for all iterations."""
        asked = tuple(Apply(int, (self._of(form, iteration),)) for iteration in range(self.count))
        return Op(_answers, "answers", asked, {}, (), self.modes, place)

    def framed(self, frames: LoopSnapshots) -> LoopSnapshots:
        """Return the loop's frames: the trip count is constant, since that many numbers are drawn."""
        return replace(frames, count=None)

    def _of(self, form: Any, iteration: int) -> Any:
        if isinstance(form, DrawPlaceholder):
            return Read(self.draws.given[iteration, form.order])
        return (
            Apply(form.func, tuple(self._of(one, iteration) for one in form.args)) if isinstance(form, Apply) else form
        )

    def _with_draw_names(self, merged: Any) -> Any:
        """Return a plain computation's structure with names for drawn numbers that all iterations share."""
        if not isinstance(merged, tuple):
            return merged
        return self._words[merged] if merged in self._words else tuple(map(self._with_draw_names, merged))


class _BatchedDrawHoister(DrawHoister):
    """Rewrites the run with one call for all draws, for any trip count."""

    dtype = torch.bool

    def __init__(self, old: Trace, frames: LoopSnapshots, draws: HostDraws, kind: type) -> None:
        super().__init__(old, frames, draws)
        self.kind = kind
        self.skipped = frames.begins  # an iteration takes the element of its index
        self.together = _reals if kind is float else _integers
        self.given = draws.given[0, 0].then(Step.OF, self.together)

    def drawn(self, gone: set[int]) -> list[Any]:
        old, frames = self.old, self.frames
        call = old.events[self.draws.externs[0][0]]
        assert isinstance(call, Extern)
        assert isinstance(frames.count, Expr)
        several = BatchedExtern(
            call.func, call.args, call.kwargs, call.place, call.number, min(call.after, self.before), call.effects,
            count=frames.count,
        )  # fmt: skip
        self.recipes[id(several)] = old.recipes.get(id(call), ())
        values = {event.access_path: event.value for event in old.events if isinstance(event, HeapRead)}
        value = self.together([self.kind(values[self.draws.given[iteration, 0]]) for iteration in range(self.count)])
        self.number = self.new((self.count,), value.dtype)
        self.tensors[self.number], self.access_paths[self.number] = value, self.given
        detail = ("Tensor", str(value.dtype).removeprefix("torch."), tuple(value.shape), (1,), "cpu", False, True)
        size = self.given.then(Step.SIZE, 0)
        return [
            *(old.events[at] for at in self.draws.first),
            several,
            HeapRead(self.given, value, "tensor", detail, place=call.place),
            HeapRead(size, self.count, "number", place=call.place),
            NumberPredicate(Apply(operator.eq, (frames.count, Read(size))), True, call.place),
        ]

    def asking(self, form: Any, place: Place) -> Op:
        first, other = form.args
        exchanged = isinstance(other, DrawPlaceholder)
        func = _COMPARING[form.func][exchanged]
        args = (TensorRef(self.number), first if exchanged else other)
        return Op(func, f"torch.{func.__name__}", args, {}, (), self.modes, place)

    def framed(self, frames: LoopSnapshots) -> LoopSnapshots:
        return frames


def _behind(answers: torch.Tensor, others: str) -> torch.Tensor:
    """Return ``answers`` after ``len(others)`` zeros."""
    return torch.cat((answers.new_zeros(len(others)), answers))


def _answers(*numbers: Any) -> torch.Tensor:
    return torch.stack([torch.full((), number, dtype=torch.int64) for number in numbers])

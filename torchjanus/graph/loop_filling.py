"""Tensors that a loop's rounds fill (``outputs[t] = out``), told as filled when the loop is over.

Nobody looks at such a tensor before that, so rounds need not change what was there before them. A rewriting of traces.
Knows nothing of what is made of the loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.graph.loop_rewriting import Rewriting
from torchjanus.graph.loop_versions import changed_memory, knows
from torchjanus.graph.numbers import expressions_in, refs_in
from torchjanus.trace.events import Asserted, Frames, Op, Rounds, TensorRef, Trace, Trips, Until
from torchjanus.trace.recipes import TensorAt, TensorOf, parts_of
from torchjanus.trace.values import Fetch, Size, leaves

__all__ = ["filled", "filled_rounds", "is_whole", "uses"]

_WRITING = "Tensor.__setitem__"


@dataclass(frozen=True, slots=True)
class _Filled:
    """A tensor that rounds fill. ``writes``: of each round the event that writes; ``dim``: in which dimension the next
    element, ``first``: where the first of these lies; ``step``: -1 where they are written from the last one on."""

    number: int
    writes: tuple[int, ...]
    dim: int
    first: int
    step: int


def filled(trace: Trace, frames: Frames) -> tuple[Trace, Frames]:
    """The run in which what rounds of this loop fill is filled behind it, and the loop in it; the same where there is
    no such thing."""
    if frames.region or len(frames.starts) < 2:
        return trace, frames
    number = trace.frames.index(frames)
    while (one := next((one for one in _filled(trace, frames) if _is_last_told(trace, one)), None)) is not None:
        states = trace.frames[number].states
        values = [trace.events[at].args[2] for at in one.writes]  # type: ignore[union-attr]
        trace = _Filling(trace, frames.end, one).trace()
        frames = trace.frames[number]
        assert len(frames.states) == len(states)
        for state, value in zip(frames.states[1:], values, strict=True):
            state["written", one.number] = ("tensor", value.number)  # which may be in no variable
    return trace, frames


def filled_rounds(trace: Trace, without: Container[int] = ()) -> tuple[Trace, frozenset[int]]:
    """The run in which what rounds of a changeable number fill is filled behind them, and which of its loops do so; the
    run itself where there are none. ``without``: loops, by their places in ``trace.rounds``, that are left alone.

    Gradients that a round's row gets from several places are added up in another order then, as always in a loop whose
    rounds are told once."""
    found: set[int] = set()
    if not any(isinstance(event, Op) and event.name == _WRITING for event in trace.events):
        return trace, frozenset()
    for number in range(len(trace.rounds)):
        while number not in without and is_whole(trace, rounds := trace.rounds[number]):
            one = next(_filled(trace, rounds), None)
            if one is None:
                break
            trace = _Filling(trace, rounds.end, one).trace()
            found.add(number)
    return trace, frozenset(found)


def is_whole(trace: Trace, rounds: Rounds) -> bool:
    """Whether it came to its end by itself, so that what stands behind it is the end."""
    if isinstance(rounds.count, Until) or len(rounds.starts) < 2 or rounds.end >= len(trace.events):
        return False
    return isinstance(trace.events[rounds.end], Trips)


def _filled(trace: Trace, frames: Frames | Rounds) -> Iterator[_Filled]:
    limits = list(zip(frames.starts, (*frames.starts[1:], frames.end), strict=True))
    writes: dict[int, list[tuple[int, int]]] = {}
    for turn, (start, end) in enumerate(limits):
        for at in range(start, end):
            event = trace.events[at]
            if isinstance(event, Op) and event.name == _WRITING and isinstance(event.args[0], TensorRef):
                writes.setdefault(event.args[0].number, []).append((turn, at))
    if not writes:
        return
    there_made = [event for event in trace.events[: frames.end] if isinstance(event, Op)]
    there = {ref.number for event in there_made for ref in event.outs} | {*trace.origins}
    sharing = Counter(trace.memory[number] for number in there)
    makers = {ref.number: event for event in there_made for ref in event.outs}
    changed = changed_memory(trace)
    for number, found in writes.items():
        events: list[Any] = [trace.events[at] for _, at in found]
        values = [event.args[2] for event in events]
        alone = bool(trace.memory[number]) and sharing[trace.memory[number]] == 1 and number not in trace.origins
        if not alone or number not in trace.kinds or [turn for turn, _ in found] != list(range(len(limits))):
            continue
        size, *_, graded = trace.kinds[number]
        place = _place([event.args[1] for event in events], size)
        if place is None or len({(event.modes, event.place) for event in events}) > 1:
            continue
        if makers[number].kwargs.get("requires_grad") or (graded and not events[0].modes.grad):
            continue  # another tensor would not have its gradient
        row = (*size[: place[0]], *size[place[0] + 1 :])
        if len(set(map(repr, values))) < len(values) or not all(
            _is_row(trace, value, row, changed) for value in values
        ):
            continue
        if uses(trace, frames, number) == len(found) and not _is_known(trace, number):
            yield _Filled(number, tuple(at for _, at in found), *place)


def _is_row(trace: Trace, value: Any, size: tuple[int, ...], changed: frozenset[int]) -> bool:
    """Whether it is a tensor of this size that the call has made and that stays as it is."""
    if not isinstance(value, TensorRef) or trace.kinds.get(value.number, (None,))[0] != size:
        return False
    memory = trace.memory[value.number]
    return bool(memory) and memory not in changed and value.number not in trace.origins


def _is_known(trace: Trace, number: int) -> bool:
    """Whether the program asks for more than its value."""
    operations = (e for e in trace.events if isinstance(e, Op) and knows(e))
    return any(_speaks(op.args, number) for op in operations)


def _place(keys: Sequence[Any], size: tuple[int, ...]) -> tuple[int, int, int] | None:
    """The dimension in which each round writes the next element, where the first of these lies, and by how much a round
    goes on: 1 or -1. None where that is not what these keys say."""
    parts = [key if isinstance(key, tuple) else (key,) for key in keys]
    found = {tuple(n for n, part in enumerate(some) if type(part) is int) for some in parts}
    if (
        len(found) > 1
        or len(*found) != 1
        or any(part != slice(None) for some in parts for part in some if type(part) is not int)
    ):
        return None
    ((dim,),) = found
    numbers = [some[dim] for some in parts]
    if min(numbers) < 0 or max(map(len, parts)) > len(size):
        return None
    step = numbers[1] - numbers[0]
    ordered = abs(step) == 1 and numbers == list(range(numbers[0], numbers[0] + step * len(numbers), step))
    return (dim, min(numbers), step) if ordered else None


def uses(trace: Trace, frames: Frames | Rounds, number: int) -> int:
    """How often rounds speak of the tensor."""
    found = 0
    for event in trace.events[frames.starts[0] : frames.end]:
        recipes = trace.recipes.get(id(event), ())
        told: list[Any] = [getattr(event, "expr", None), *recipes]
        if isinstance(event, Op):
            told += [event.args, event.kwargs, event.outs]
        elif isinstance(event, Asserted):
            told.append(event.ref)
        parts = (part for recipe in recipes for part in parts_of(recipe))
        told += [part.ref for part in parts if isinstance(part, TensorOf | TensorAt)]
        found += _speaks(told, number)
    return found


def _speaks(value: Any, number: int) -> int:
    of = [leaf.ref for expr in expressions_in(value) for leaf in leaves(expr) if isinstance(leaf, Fetch | Size)]
    return [*(ref.number for ref in refs_in(value)), *of].count(number)


def _is_last_told(trace: Trace, one: _Filled) -> bool:
    """Whether gradients come to each row from one other place at most: then it does not matter which comes first."""
    for at in one.writes:
        number = trace.events[at].args[2].number  # type: ignore[union-attr]
        users = [e for e in trace.events if isinstance(e, Op) and _speaks((e.args, e.kwargs), number)]
        graded = [op for op in users if op.modes.grad and any(trace.kinds.get(r.number, (True,))[-1] for r in op.outs)]
        if len(graded) > 1:
            return False
    return True


def written(tensor: torch.Tensor, where: str, rows: torch.Tensor) -> torch.Tensor:
    """The tensor with these rows in it. ``where``: the dimension, and the first element; a text, for a number among
    arguments may be one that rounds hand on."""
    dim, first = map(int, where.split())
    made = tensor.clone()
    made.narrow(dim, first, rows.size(dim)).copy_(rows)
    return made


class _Filling(Rewriting):
    """Writes the run anew with what is written behind the loop."""

    def __init__(self, old: Trace, end: int, one: _Filled) -> None:
        """``end``: before which event the loop ends."""
        super().__init__(old)
        self.end, self.one, self.new = end, one, len(old.tensors)
        self.behind_it = end  # what says that the loop has come to its end, and what it goes over has
        while any(isinstance(event, Trips) for event in old.events[self.behind_it + 1 : self.behind_it + 2]):
            self.behind_it += 1
        self.after: list[int] = []  # so many operations come before each of the writes
        count = 0
        for at, event in enumerate(old.events[: end + 1]):
            if at in one.writes:
                self.after.append(count)
            count += isinstance(event, Op)
        self.whole = count  # before what comes behind the loop
        self.behind = False

    def tensor(self, number: int, after: int) -> int:
        return self.new if number == self.one.number and (self.behind or after > self.whole) else number

    def final(self, number: int) -> int:
        return self.new if number == self.one.number else number

    def position(self, after: int) -> int:
        later = after > self.whole or (after == self.whole and self.behind)
        return after - sum(one < after for one in self.after) + 2 * later

    def trace(self) -> Trace:
        old, one, end = self.old, self.one, self.end
        writes: list[Any] = [old.events[at] for at in one.writes]
        events: list[Any] = []
        places: list[int] = []
        operations = 0
        for position, event in enumerate(old.events):
            places.append(len(events))
            if position in one.writes:
                operations += 1
                continue
            events.append(self.event(event, operations))
            operations += isinstance(event, Op)
            if position == self.behind_it:
                stacked, made = TensorRef(self.new + 1), TensorRef(self.new)
                modes, at = writes[0].modes, writes[0].place
                rows = [op.args[2] for op in writes][:: one.step]
                where = f"{one.dim} {one.first}"
                stacking = (rows,) if not one.dim else (rows, one.dim)
                events.append(Op(torch.stack, "torch.stack", stacking, {}, (stacked,), modes, at))
                args = (TensorRef(one.number), where, stacked)
                events.append(Op(written, "written", args, {}, (made,), modes, at))
                self.behind = True
        places.append(len(events))
        graded = any(old.kinds[op.args[2].number][-1] for op in writes) and writes[0].modes.grad
        kind, row = old.kinds[one.number], old.kinds[writes[0].args[2].number]
        size = (*row[0][: one.dim], len(writes), *row[0][one.dim :])
        strides = tuple(math.prod(size[n + 1 :]) for n in range(len(size)))
        kinds = {
            **old.kinds,
            one.number: (*kind[:4], False),
            self.new: (*kind[:4], graded or kind[4]),
            self.new + 1: (size, strides, *row[2:4], graded),
        }
        last = max(old.memory)
        memory = [*old.memory, old.memory[one.number], last + 1]
        memory[one.number] = last + 2

        def begins(position: int, _: int) -> int:
            # What comes last in the last round stays in it, though the write that followed is gone.
            return places[position] if position >= end else min(places[position], places[end] - 1)

        changes = self.moved(begins, places.__getitem__)
        return self.made(
            events,
            tensors=[*old.tensors, None, None],
            memory=memory,
            kinds=kinds,
            **changes,
        )

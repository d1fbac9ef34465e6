"""Sums over the rounds of a loop that begin with the number 0 (``loss = 0.0``), told as if they began with a tensor.

The first round adds to a number, the others to a tensor: alike they are only when that is one, too. A rewriting of
traces. It is done where every round of a run adds, so that there is no run that could end with the number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.graph.loop_rewriting import Rewriting
from torchjanus.trace.events import Frames, Op, TensorRef, Trace, Turns

__all__ = ["begun"]

_ADDING = frozenset({"Tensor.add", "Tensor.__add__", "Tensor.__radd__", "torch.add"})


@dataclass(frozen=True, slots=True)
class _Sum:
    """``name``: the variable. ``first``: the position of the first round's addition; ``other``: the second's, which
    takes the sum at ``place`` among its arguments."""

    frames: Frames
    name: Any
    first: int
    other: int
    place: int


def begun(trace: Trace, frames: Frames) -> tuple[Trace, Frames]:
    """The run in which the sums of this loop begin with tensors, and the loop in it."""
    while (one := next(_sums(trace, frames), None)) is not None:
        number = trace.frames.index(frames)
        trace = _Beginning(trace, one).trace()
        frames = trace.frames[number]
    return trace, frames


def _sums(trace: Trace, frames: Frames) -> Iterator[_Sum]:
    if len(frames.starts) < 2:
        return
    for name, (kind, value, *_) in frames.states[0].items():
        if kind in ("int", "float") and repr(value) in ("0", "0.0"):
            row = [state.get(name) for state in frames.states[1:]]
            if all(held is not None and held[0] == "tensor" for held in row):
                one = _sum(trace, frames, name, value, [held[1] for held in row if held is not None])
                if one is not None:
                    yield one


def _sum(trace: Trace, frames: Frames, name: Any, value: Any, sums: Sequence[int]) -> _Sum | None:
    """Where each round makes the next of these sums of the one before, and of something else."""
    if len(set(sums)) < len(sums) or trace.kinds.get(sums[0], (None,))[0] != ():
        return None
    limits = (*frames.starts, frames.end)
    found: list[tuple[int, Op]] = []
    for number, tensor in enumerate(sums):
        made = [
            (position, event)
            for position in range(limits[number], limits[number + 1])
            if isinstance(event := trace.events[position], Op) and event.outs == (TensorRef(tensor),)
        ]
        if len(made) != 1:
            return None
        found += made
    (first, beginning), (other, second), *_ = found
    if beginning.name not in _ADDING or beginning.kwargs or second.kwargs or len(second.args) != 2:
        return None
    if not (len(beginning.args) == 2 and isinstance(beginning.args[0], TensorRef) and _is(beginning.args[1], value)):
        return None
    places = [place for place, arg in enumerate(second.args) if arg == TensorRef(sums[0])]
    if len(places) != 1 or not isinstance(second.args[1 - places[0]], TensorRef):
        return None
    for (_, event), before in zip(found[1:], sums, strict=False):
        if (event.place, event.name) != (second.place, second.name) or event.args[places[0]] != TensorRef(before):
            return None
    return _Sum(frames, name, first, other, places[0]) if beginning.place == second.place else None


def _is(arg: Any, value: Any) -> bool:
    return type(arg) is type(value) and bool(arg == value)


class _Beginning(Rewriting):
    """Writes the run anew with a zero before the loop."""

    def __init__(self, old: Trace, one: _Sum) -> None:
        super().__init__(old)
        self.one, self.at = one, one.frames.starts[0]
        self.before = sum(isinstance(event, Op) for event in old.events[: self.at])

    def position(self, after: int) -> int:
        return after + (after >= self.before)

    def trace(self) -> Trace:
        old, one = self.old, self.one
        zero = len(old.tensors)
        first, second = old.events[one.first], old.events[one.other]
        assert isinstance(first, Op)
        assert isinstance(second, Op)
        kind = old.kinds[one.frames.states[1][one.name][1]]
        events: list[Any] = []
        for position, event in enumerate(old.events):
            if position == self.at:
                modes = replace(first.modes, grad=False)
                kwargs = {"dtype": kind[2], "device": kind[3]}
                made = Op(torch.zeros, "torch.zeros", ((),), kwargs, (TensorRef(zero),), modes, one.frames.place)
                events.append(made)
            if position == one.first:
                pair = [first.args[0], first.args[0]]
                pair[one.place] = TensorRef(zero)
                event = replace(first, func=second.func, name=second.name, args=tuple(pair))
            events.append(self.event(event, 0))
        return self.made(
            events,
            tensors=[*old.tensors, None],
            memory=[*old.memory, 1 + max(old.memory, default=0)] if old.memory else [],
            kinds={**old.kinds, zero: ((), (), kind[2], kind[3], False)},
            rounds=[
                replace(rounds, starts=tuple(map(self._start, rounds.starts)), end=self._end(rounds.end))
                for rounds in old.rounds
            ],
            turns=[self._turned(turns) for turns in old.turns],
            frames=[self._framed(frames, zero) for frames in old.frames],
            plain=[replace(plain, position=self._start(plain.position)) for plain in old.plain],
            given=[replace(plain, position=self._start(plain.position)) for plain in old.given],
            peeked=[(self._start(position), number) for position, number in old.peeked],
            counted=[(self._start(position), *rest) for position, *rest in old.counted],
            loops=[
                replace(loop, starts=tuple(map(self._start, loop.starts)), end=self._end(loop.end))
                for loop in old.loops
            ],
            changed={self._start(position): names for position, names in old.changed.items()},
            measured=old.measured if old.measured < 0 else self._end(old.measured),
        )  # fmt: skip

    def _start(self, position: int) -> int:
        return position + (position >= self.at)

    def _end(self, position: int) -> int:
        return position + (position > self.at)

    def _turned(self, turns: Turns) -> Turns:
        end = None if turns.end is None else self._end(turns.end)
        return replace(turns, starts=[*map(self._start, turns.starts)], end=end)

    def _framed(self, frames: Frames, zero: int) -> Frames:
        states = [{name: self.held(value) for name, value in state.items()} for state in frames.states]
        if frames is self.one.frames:
            states[0][self.one.name] = ("tensor", zero)
        return replace(
            frames, starts=tuple(map(self._start, frames.starts)), end=self._end(frames.end), states=tuple(states)
        )

"""Tensors that a loop's rounds fill (``outputs[t] = out``), told as filled when the loop is over.

Nobody looks at such a tensor before that, so rounds need not change what was there before them. A rewriting of traces.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.graph.choice_before import map_values
from torchjanus.graph.loop_rewriting import Rewriting
from torchjanus.trace.events import Asserted, Frames, Op, TensorRef, Trace
from torchjanus.trace.values import Expr, Fetch, Size, leaves

__all__ = ["filled"]

_WRITING = "Tensor.__setitem__"


@dataclass(frozen=True, slots=True)
class _Filled:
    """A tensor that rounds fill. ``writes``: of each round the event that writes."""

    number: int
    writes: tuple[int, ...]


def filled(trace: Trace, frames: Frames) -> tuple[Trace, Frames]:
    """The run in which what rounds of this loop fill is filled behind it, and the loop in it; the same where there is
    no such thing."""
    if frames.region or len(frames.starts) < 2:
        return trace, frames
    number = trace.frames.index(frames)
    while (one := next(_filled(trace, frames), None)) is not None:
        trace = _Filling(trace, frames, one).trace()
        frames = trace.frames[number]
    return trace, frames


def _filled(trace: Trace, frames: Frames) -> Iterator[_Filled]:
    limits = list(zip(frames.starts, (*frames.starts[1:], frames.end), strict=True))
    writes: dict[int, list[tuple[int, int]]] = {}
    for turn, (start, end) in enumerate(limits):
        for at in range(start, end):
            event = trace.events[at]
            if isinstance(event, Op) and event.name == _WRITING and isinstance(event.args[0], TensorRef):
                writes.setdefault(event.args[0].number, []).append((turn, at))
    there = {ref.number for e in trace.events[: frames.end] if isinstance(e, Op) for ref in e.outs} | {*trace.origins}
    sharing = Counter(trace.memory[number] for number in there)
    for number, found in writes.items():
        alone = bool(trace.memory[number]) and sharing[trace.memory[number]] == 1
        events: list[Any] = [trace.events[at] for _, at in found]
        values = [event.args[2] for event in events]
        if not alone or number in trace.origins or [turn for turn, _ in found] != list(range(len(limits))):
            continue
        if not all(
            isinstance(value, TensorRef) and _is_plain(event.args[1])
            for value, event in zip(values, events, strict=True)
        ):
            continue
        if len({(event.modes, event.place) for event in events}) > 1 or len(set(values)) < len(values):
            continue
        if _uses(trace, frames, number) == len(found) and all(_is_free(trace, value.number) for value in values):
            yield _Filled(number, tuple(at for _, at in found))


def _is_plain(key: Any) -> bool:
    found: list[Any] = []
    map_values(key, found.append)
    return all(type(part) is int or part is None or part is Ellipsis for part in found)


def _uses(trace: Trace, frames: Frames, number: int) -> int:
    """How often rounds speak of the tensor."""
    found = 0
    for event in trace.events[frames.starts[0] : frames.end]:
        if isinstance(event, Op):
            found += _speaks((event.args, event.kwargs, event.outs), number)
        elif isinstance(event, Asserted):
            found += event.ref.number == number
        elif hasattr(event, "expr"):
            found += sum(isinstance(leaf, Fetch | Size) and leaf.ref == number for leaf in leaves(event.expr))
        for recipe in trace.recipes.get(id(event), ()):
            found += f"%{number}" in repr(recipe)
    return found


def _speaks(value: Any, number: int) -> int:
    found: list[Any] = []

    def leaf(part: Any) -> None:
        if isinstance(part, TensorRef):
            found.append(part.number)
        elif isinstance(part, Expr):
            found.extend(one.ref for one in leaves(part) if isinstance(one, Fetch | Size))

    map_values(value, leaf)
    return found.count(number)


def _is_free(trace: Trace, number: int) -> bool:
    """Whether gradients come to it from one other place at most: then it does not matter which comes first. And
    whether nothing changes it."""
    users = [e for e in trace.events if isinstance(e, Op) and _speaks((e.args, e.kwargs), number)]
    graded = [op for op in users if op.modes.grad and any(trace.kinds.get(r.number, (True,))[-1] for r in op.outs)]
    makers = sum(ref.number == number for e in trace.events if isinstance(e, Op) for ref in e.outs)
    return len(graded) <= 1 and makers == 1


def _text(keys: tuple[Any, ...]) -> str:
    """As a text: a number among the arguments of an operation may be one that rounds hand on."""

    def told(part: Any) -> Any:
        if isinstance(part, tuple):
            return ("tuple", *map(told, part))
        if isinstance(part, slice):
            return ("slice", part.start, part.stop, part.step)
        return ("...",) if part is Ellipsis else part

    return repr(tuple(map(told, keys)))


def _key(told: Any) -> Any:
    if not isinstance(told, tuple):
        return told
    match told:
        case ("tuple", *parts):
            return tuple(map(_key, parts))
        case ("slice", start, stop, step):
            return slice(start, stop, step)
    return Ellipsis


def _written(tensor: torch.Tensor, keys: str, rows: list[torch.Tensor]) -> torch.Tensor:
    made = tensor.clone()
    for told, row in zip(ast.literal_eval(keys), rows, strict=True):
        made[_key(told)] = row
    return made


class _Filling(Rewriting):
    """Writes the run anew with what is written behind the loop."""

    def __init__(self, old: Trace, frames: Frames, one: _Filled) -> None:
        super().__init__(old)
        self.frames, self.one, self.new = frames, one, len(old.tensors)
        self.after: list[int] = []  # so many operations come before each of the writes
        count = 0
        for at, event in enumerate(old.events[: frames.end + 1]):
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
        return after - sum(one < after for one in self.after) + later

    def trace(self) -> Trace:
        old, one, end = self.old, self.one, self.frames.end
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
            if position == end:
                args = (TensorRef(one.number), _text(tuple(op.args[1] for op in writes)), [op.args[2] for op in writes])
                first = writes[0]
                events.append(Op(_written, "written", args, {}, (TensorRef(self.new),), first.modes, first.place))
                self.behind = True
        places.append(len(events))
        kind = old.kinds.get(one.number)
        graded = any(old.kinds.get(op.args[2].number, (False,))[-1] for op in writes) and writes[0].modes.grad
        kinds, memory = dict(old.kinds), [*old.memory, old.memory[one.number]]
        memory[one.number] = 1 + max(old.memory)
        if kind is not None:
            kinds[one.number] = (*kind[:4], False)
            kinds[self.new] = (*kind[:4], graded or kind[4])
        return self.made(
            events,
            tensors=[*old.tensors, None],
            memory=memory,
            kinds=kinds,
            **self.moved(lambda position, _: places[position], places.__getitem__),
        )

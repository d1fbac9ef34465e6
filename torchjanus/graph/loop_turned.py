"""Loops that go through tensors from the last row to the first, told as if these came first to last of a turned tensor.

A rewriting of traces, operation by operation: nothing is added, and no position changes. Knows nothing of what is made
of a loop.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.errors import Place
from torchjanus.graph.dimensions import geometries, is_size
from torchjanus.origin import Step
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Found
from torchjanus.trace.rounds import Rounds
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Read, Size, leaves

__all__ = ["SELECT_BACK", "UNBINDING", "UNBIND_BACK", "select_back", "size_of", "turned", "unread"]


def unbind_back(tensor: torch.Tensor, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """The rows of a tensor, the last one first."""
    return tensor.unbind(dim)[::-1]


def select_back(tensor: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """A row, counted from the last one."""
    return tensor.select(dim, tensor.size(dim) - 1 - index)


UNBIND_BACK, SELECT_BACK = unbind_back.__name__, select_back.__name__
UNBINDING = ("Tensor.unbind", "torch.unbind")


def turned(trace: Trace) -> Trace:
    """The run with its loops that go backwards turned; itself where there are none."""
    loops = [one for one in trace.rounds if len(one.starts) > 1 and isinstance(one.count, Expr)]
    events: dict[int, Op] = {}
    rounds = {id(one): one for one in trace.rounds}
    takers = _takers(trace) if loops else {}
    for loop in loops:
        events.update(_unbindings(trace, loop, takers))
        if loop.back:
            found = dict(_selections(trace, loop))
            events.update((position, op) for position, (op, _) in found.items())
            asked = {expr.token: expr for _, expr in found.values()}
            rounds[id(loop)] = replace(loop, asked=tuple(asked.values()))
    if not events:
        return trace
    written = [events.get(position, event) for position, event in enumerate(trace.events)]
    made = replace(trace, events=written, rounds=[rounds[id(one)] for one in trace.rounds])
    made.alive = [*trace.alive, trace]
    made.fetched = {**trace.fetched, **dict(_sizes(made))}
    return made


def _sizes(trace: Trace) -> Iterator[tuple[Any, int]]:
    """What the sizes are that are asked."""
    for leaf in (leaf for loop in trace.rounds for expr in loop.asked for leaf in leaves(expr)):
        if isinstance(leaf, Size) and (length := _length(trace, leaf.ref)) is not None:
            yield leaf.token, length[leaf.dim]


def _rounds(loop: Rounds, position: int) -> int | None:
    """In which round that is."""
    if not loop.starts or not loop.starts[0] <= position < loop.end:
        return None
    return sum(start <= position for start in loop.starts) - 1


def _takers(trace: Trace) -> dict[int, list[int]]:
    """Of each row of an unbinding the operations that take it, by position."""
    unbound = (event for event in trace.events if isinstance(event, Op) and event.name in UNBINDING)
    takers: dict[int, list[int]] = {ref.number: [] for event in unbound for ref in event.outs}
    for position, event in enumerate(trace.events if takers else ()):
        for number in _tensors_of(event) if isinstance(event, Op) else ():
            if number in takers:
                takers[number].append(position)
    return takers


def _unbindings(trace: Trace, loop: Rounds, takers: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, Op]]:
    """The unbindings whose rows this loop takes from the last to the first, with these in its order."""
    made: dict[int, tuple[int, int]] = {}  # row -> which unbinding, how-manieth
    for position, event in enumerate(trace.events[: loop.starts[0]]):
        if isinstance(event, Op) and event.name in UNBINDING and len(event.outs) == len(loop.starts):
            made.update((ref.number, (position, which)) for which, ref in enumerate(event.outs))
    taken: dict[int, set[int | None]] = {}
    for number, (unbinding, which) in made.items():
        for position in takers[number]:
            number_of_round = _rounds(loop, position)
            down = number_of_round is not None and which == len(loop.starts) - 1 - number_of_round
            taken.setdefault(unbinding, set()).add(which if down else None)
    for unbinding, which_ones in taken.items():
        if which_ones == set(range(len(loop.starts))):
            op = trace.events[unbinding]
            assert isinstance(op, Op)
            yield unbinding, replace(op, func=unbind_back, outs=op.outs[::-1])


def _tensors_of(event: Op) -> Iterator[int]:
    def within(value: Any) -> Iterator[int]:
        if isinstance(value, TensorRef):
            yield value.number
        elif isinstance(value, list | tuple):
            for part in value:
                yield from within(part)
        elif isinstance(value, dict):
            yield from within(tuple(value.values()))

    return within((event.args, event.kwargs))


def _selections(trace: Trace, loop: Rounds) -> Iterator[tuple[int, tuple[Op, Expr]]]:
    """The rows that the rounds select by numbers that go down, by numbers that go up; and what must hold for that."""
    limits = [*loop.starts, loop.end]
    rows = [
        [p for p in range(begin, end) if isinstance(trace.events[p], Op)] for begin, end in itertools.pairwise(limits)
    ]
    if len({len(row) for row in rows}) > 1:
        return
    before = [0]
    for event in trace.events:
        before.append(before[-1] + isinstance(event, Op))
    for column in zip(*rows, strict=True):
        ops: list[Any] = [trace.events[position] for position in column]
        if any(op.name != "Tensor.__getitem__" or op.args[0] != ops[0].args[0] or len(op.outs) != 1 for op in ops):
            continue
        dim = _dim_of([op.args[1] for op in ops])
        if dim is None:
            continue
        number = ops[0].args[0].number
        length = _length(trace, number)
        if length is None or dim >= len(length):
            continue
        size = size_of(trace, number, dim, before[loop.starts[0]])
        held = Apply(operator.eq, (Apply(operator.sub, (size, loop.count)), length[dim] - len(loop.starts)))
        for position, op in zip(column, ops, strict=True):
            index = length[dim] - 1 - _index(op.args[1], dim)
            args = (op.args[0], dim, index)
            yield position, (replace(op, func=select_back, name="torch.select", args=args), held)


def _index(key: Any, dim: int) -> int:
    found: int = key[dim] if type(key) is tuple else key
    return found


def _dim_of(keys: Sequence[Any]) -> int | None:
    """Along which dimension these keys pick a whole row each, every one the row before the last; None if none."""
    shapes = {(type(key), len(key) if type(key) is tuple else 0) for key in keys}
    if len(shapes) > 1 or type(keys[0]) not in (int, tuple):
        return None
    width = len(keys[0]) if type(keys[0]) is tuple else 1
    numbers = [d for d in range(width) if all(type(_index(key, d)) is int for key in keys)]
    if len(numbers) != 1:
        return None
    dim = numbers[0]
    steps = [_index(key, dim) for key in keys]
    if steps[-1] < 0 or steps != list(range(steps[0], steps[0] - len(steps), -1)):
        return None
    rest = [part for key in keys if type(key) is tuple for d, part in enumerate(key) if d != dim]
    return dim if all(type(part) is slice and part == slice(None) for part in rest) else None


def _length(trace: Trace, number: int) -> Sequence[int] | None:
    """The sizes of a tensor."""
    origin, kind = trace.origins.get(number), trace.kinds.get(number)
    if origin is not None:
        return geometries(trace).get(origin.token, (None,))[0]
    return None if kind is None else kind[0]


def size_of(trace: Trace, number: int, dim: int, after: int) -> Expr:
    """Where its size is read."""
    origin = trace.origins.get(number)
    return Size(number, dim, after) if origin is None else Read(origin.then(Step.SIZE, dim))


def unread(trace: Trace, asked: Sequence[Expr], place: Place) -> Iterator[Found]:
    """The sizes that are asked for, and that the run itself has not looked at."""
    found = {event.origin.token for event in trace.events if isinstance(event, Found)}
    for leaf in (leaf for expr in asked for leaf in leaves(expr)):
        if isinstance(leaf, Read) and is_size(leaf.origin) and leaf.origin.token not in found:
            found.add(leaf.origin.token)
            assert leaf.origin.base is not None
            yield Found(
                leaf.origin, geometries(trace)[leaf.origin.base.token][0][leaf.origin.key], "number", place=place
            )

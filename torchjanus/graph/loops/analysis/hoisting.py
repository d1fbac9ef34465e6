"""Hoists indexing out of inner loops: of ``x[i, t]`` the row ``x[i]`` is selected before the inner loop.

The inner iterations then do not depend on the induction variable of the outer loop. A rewriting of traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.records import LoopInstance
from torchjanus.trace.operations import made_by, op_positions
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef

__all__ = ["hoisted"]

_PICK = "Tensor.__getitem__"


@dataclass(slots=True)
class _Pick:
    """``source[key]`` in all iterations of a loop, by their positions. ``whole``: the key that is hoisted. ``rest``:
    the key that remains in each iteration; None if nothing remains."""

    column: tuple[int, ...]
    whole: Any
    rest: list[Any] | None


@dataclass(slots=True)
class _HoistedBefore:
    """The selections that are hoisted before an event."""

    added: dict[int, list[_Pick]] = field(default_factory=dict)
    picks: dict[int, tuple[_Pick, int]] = field(default_factory=dict)  # position -> (the selection, its iteration)
    ends: set[int] = field(default_factory=set)  # ends of the loops with hoisted selections


def hoisted(trace: Trace, nests: Sequence[tuple[LoopInstance, Sequence[LoopInstance]]]) -> tuple[Trace, dict[int, int]]:
    """Return the new trace, and where each loop ends in it (old end -> new end). ``nests``: (outer loop, its inner
    loops)."""
    found = _HoistedBefore()
    for _, inner in nests:
        for one in inner:
            for pick in _picks(trace, one):
                found.ends.add(one.end)
                found.added.setdefault(one.starts[0], []).append(pick)
                found.picks.update((at, (pick, number)) for number, at in enumerate(pick.column))
    if not found.picks:
        return trace, {one.end: one.end for one in trace.loop_instances}
    return _HoistingRewriter(trace, found).written()


def _picks(trace: Trace, loop: LoopInstance) -> Iterator[_Pick]:
    rows = op_positions(trace.events, loop.spans)
    if len({len(row) for row in rows}) > 1:
        return
    made = made_by(_op(trace, at) for row in rows for at in row)
    if made & {*trace.access_paths, *made_by(trace.events[: loop.starts[0]])}:
        return  # something is modified in place
    for column in zip(*rows, strict=True):
        ops = [_op(trace, at) for at in column]
        source = ops[0].args[0] if ops[0].args else None
        if (
            any(op.name != _PICK or op.kwargs or len(op.args) != 2 or op.args[0] != source for op in ops)
            or type(source) is not TensorRef
            or source.number in made
        ):
            continue
        keys = [op.args[1] if type(op.args[1]) is tuple else (op.args[1],) for op in ops]
        parts = list(zip(*keys, strict=False))
        if len({len(key) for key in keys}) > 1 or not all(type(part) in (int, slice) for key in keys for part in key):
            continue
        if not all(map(_is_plain, (part for key in keys for part in key))):
            continue
        held = [place for place, row in enumerate(parts) if type(row[0]) is int and all(n == row[0] for n in row)]
        same = all(all(part == row[0] for part in row) for row in parts)
        if not held:
            continue
        if same:
            yield _Pick(column, ops[0].args[1], None)
            continue
        whole = tuple(parts[place][0] if place in held else slice(None) for place in range(held[-1] + 1))
        rest = [tuple(part for place, part in enumerate(key) if place not in held) for key in keys]
        yield _Pick(column, whole, [key[0] if len(key) == 1 else key for key in rest])


def _is_plain(part: Any) -> bool:
    ends = (part.start, part.stop, part.step) if type(part) is slice else (part,)
    return all(end is None or type(end) is int for end in ends)


def _op(trace: Trace, at: int) -> Op:
    event = trace.events[at]
    assert isinstance(event, Op)
    return event


class _HoistingRewriter(TraceRewriter):
    def __init__(self, old: Trace, found: _HoistedBefore) -> None:
        super().__init__(old)
        self.found = found
        self.tensors, self.kinds = list(old.tensors), dict(old.kinds)
        self.memory = list(old.memory)
        self.names: dict[int, int] = {}  # tensor of an iteration -> the hoisted one
        self.after = [0]  # old number of operations before a position -> new number

    def tensor(self, number: int, after: int) -> int:
        return self.names.get(number, number)

    def final(self, number: int) -> int:
        return self.names.get(number, number)

    def position(self, after: int) -> int:
        return self.after[after]

    def written(self) -> tuple[Trace, dict[int, int]]:
        """Return the new trace, and where each loop ends in it."""
        old, found = self.old, self.found
        where: dict[int, int] = {}  # id of a selection -> its tensor
        operations = 0
        for at, event in enumerate(old.events):
            for one in found.added.get(at, ()):
                where[id(one)] = self._new(one)
                operations += 1
                self.after[-1] = operations
            if isinstance(event, Op):
                gone = at in found.picks and found.picks[at][0].rest is None
                if gone:
                    self.names[event.outs[0].number] = where[id(found.picks[at][0])]
                operations += not gone
                self.after.append(operations)

        def ahead(at: int) -> Iterator[Op]:
            for one in found.added.get(at, ()):
                op = _op(old, one.column[0])
                yield replace(op, args=(self.values(op.args[0], 0), one.whole), outs=(TensorRef(where[id(one)]),))

        def step(at: int, event: Any, after: int) -> Iterator[Any]:
            if at not in found.picks:
                yield self.event(event, after)
            elif (rest := found.picks[at][0].rest) is not None:
                pick, number = found.picks[at]
                yield replace(self.event(event, after), args=(TensorRef(where[id(pick)]), rest[number]))

        events, places, begins = self.walk(step, ahead)
        moved = self.moved(lambda at, end: (begins if end in found.ends else places)[at], places)
        new = self.made(
            events, tensors=self.tensors, kinds=self.kinds, memory=self.memory if old.memory else [], **moved
        )
        return new, {one.end: places[one.end] for one in old.loop_instances}

    def _new(self, pick: _Pick) -> int:
        """Return the number of the tensor that is selected before the loop."""
        op = _op(self.old, pick.column[0])
        source = op.args[0].number
        number = len(self.tensors)
        self.tensors.append(None)
        if self.memory:
            self.memory.append(self.memory[source])
        kind = self.kinds.get(source)
        if kind is not None:
            blank = torch.empty_strided(kind[0], kind[1], dtype=kind[2], device="meta")[pick.whole]
            self.kinds[number] = (tuple(blank.shape), blank.stride(), kind[2], kind[3], kind[4] and op.modes.grad)
        return number

"""Finds loops over lists of trees: the lists of each, and which of its operations are sums over the iterations.

Independent of what replaces a loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.recursion.entry_loops.iterations import items_of
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.loops.records import Iterations
from torchjanus.trace.operations import op_positions, ops_of
from torchjanus.trace.terms import TensorRef

__all__ = ["EntryCallLoop", "added_up", "loop_of"]

_ADDING = ("Tensor.add", "Tensor.__add__", "Tensor.__radd__", "torch.add", "functional_add")


@dataclass(slots=True)
class EntryCallLoop(Iterations):
    """A loop over the lists ``over``. ``ops``: by iteration, the positions of its operations; ``keyed``: the same by
    place and earlier occurrences there; ``sums``: the operations that add to the carried value; ``made``: by iteration,
    the tensors it computes, in order; ``even``: the lists must be equally long; ``picks``: the (line, column) at which
    an iteration picks elements by its index."""

    place: Place
    starts: tuple[int, ...]
    end: int
    over: tuple[AccessPath, ...]
    ops: list[list[int]]
    sums: tuple[tuple[Place, int], ...] = ()
    made: tuple[tuple[int, ...], ...] = ()
    keyed: tuple[dict[tuple[Place, int], int], ...] = ()
    even: bool = False
    picks: frozenset[tuple[int, int]] = frozenset()

    @property
    def lists(self) -> dict[Any, int]:
        """The lists by token, numbered."""
        return {access_path.token: number for number, access_path in enumerate(self.over)}

    def holds(self, position: int) -> bool:
        """Whether the event is in the loop."""
        return self.starts[0] <= position <= self.end


def loop_of(
    trace: Trace,
    place: Place,
    starts: tuple[int, ...],
    end: int,
    sums: tuple[tuple[Place, int], ...] | None,
    picked: Sequence[AccessPath] = (),
) -> EntryCallLoop | None:
    """Return the loop, or None if it iterates over no lists. ``picked``: lists of which iterations pick elements by
    their index. Raises NotMergeable."""
    spans = list(itertools.pairwise((*starts, end)))
    lengths = [
        e.access_path.base
        for e in trace.events
        if isinstance(e, HeapRead)
        and e.access_path.step is Step.LEN
        and e.value == len(starts)
        and e.access_path.base is not None
    ]
    over = []
    for base in dict.fromkeys((*lengths, *picked)):
        if not any(
            isinstance(e, HeapRead) and e.access_path == base and type(e.value) in (list, tuple) for e in trace.events
        ):
            continue
        found = [set().union(*(items_of(e, {base.token: 0}) for e in ops_of(trace.events[a:b]))) for a, b in spans]
        if all(some == {number} for number, some in enumerate(found)):
            over.append(base)
    if not set(over) & set(lengths) or set(picked) - set(over):
        return None
    ops = op_positions(trace.events, spans)
    loop = EntryCallLoop(place, starts, end, tuple(over), ops, even=bool(picked))
    loop.keyed = tuple(_keyed(trace, positions) for positions in ops)
    loop.made = tuple(_made(trace, positions) for positions in ops)
    loop.sums = tuple(_sums(trace, loop)) if sums is None else sums
    return loop


def _keyed(trace: Trace, positions: Sequence[int]) -> dict[tuple[Place, int], int]:
    """Return the operations of an iteration by place and number of earlier occurrences there."""
    found: dict[tuple[Place, int], int] = {}
    for position in positions:
        place, times = trace.events[position].place, 0
        while (place, times) in found:
            times += 1
        found[place, times] = position
    return found


def _made(trace: Trace, positions: Sequence[int]) -> tuple[int, ...]:
    """Return the tensors that these operations compute, in order."""
    found: dict[int, None] = {}
    for position in positions:
        found.update((ref.number, None) for ref in trace.events[position].outs)  # type: ignore[union-attr]
    return tuple(found)


def _sums(trace: Trace, loop: EntryCallLoop) -> Iterator[tuple[Place, int]]:
    """Yield the operations of an iteration that add to the result of the iteration before."""
    first, second = loop.keyed[0], loop.keyed[1]
    before = set(loop.made[0])
    for place, position in second.items():
        op = trace.events[position]
        assert isinstance(op, Op)
        carried = [ref.number for ref in op.inputs if ref.number in before]
        if not carried:
            continue
        if place not in first or carried != [ref.number for ref in trace.events[first[place]].outs]:  # type: ignore[union-attr]
            raise NotMergeable("recursion-entry-loop", "a sum is changed outside of its place")
        yield place


def added_up(
    trace: Trace, inside: frozenset[int], loop: EntryCallLoop, place: tuple[Place, int]
) -> tuple[list[int], int | None, list[int]]:
    """Return the sum's terms, start (None: zero), and value after each iteration. Raises NotMergeable."""
    terms: list[int] = []
    outs: list[int] = []
    start: int | None = None
    for number, positions in enumerate(loop.keyed):
        op = trace.events[positions[place]] if place in positions else None
        if not isinstance(op, Op) or op.name not in _ADDING or op.kwargs or len(op.args) != 2 or len(op.outs) != 1:
            raise NotMergeable("recursion-entry-loop", "an iteration carries on more than a sum")
        own = [a.number for a in op.args if isinstance(a, TensorRef) and a.number in loop.made[number]]
        others = [a for a in op.args if not (isinstance(a, TensorRef) and a.number in loop.made[number])]
        if len(own) != 1 or op.outs[0].number in own:
            raise NotMergeable("recursion-entry-loop", "a sum takes its term in another way")
        if number:
            if others != [TensorRef(outs[-1])]:
                raise NotMergeable("recursion-entry-loop", "a sum is not carried from one iteration to the next")
        elif isinstance(others[0], TensorRef):
            start = others[0].number
        elif type(others[0]) not in (int, float) or others[0] != 0:
            raise NotMergeable("recursion-entry-loop", "a sum begins with a number other than zero")
        terms.append(own[0])
        outs.append(op.outs[0].number)
    if start is not None and start in inside:
        raise NotMergeable("recursion-entry-loop", "a sum begins with what an iteration has made")
    if set(terms) & set(outs):
        raise NotMergeable("recursion-entry-loop", "a term of a sum is a sum itself")
    return terms, start, outs

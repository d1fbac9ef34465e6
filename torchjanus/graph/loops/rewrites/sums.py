"""Makes sums over the iterations of a loop that begin with the number 0 (``loss = 0.0``) begin with a tensor.

The first iteration adds a tensor to a number, the others to a tensor; a tensor at the begin makes them alike. This is
done where every iteration of a run adds, or where a decision in an iteration makes the first one, or the second. What
only the first iteration observes of the number stays a number. A rewriting of traces.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.errors import Place
from torchjanus.graph.loops.rewrites.accumulators import functional_add, functional_sub
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HostComputation, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.loops.records import LoopInstance, LoopSnapshots, TensorTermination, before_iterations
from torchjanus.trace.operations import op_count
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, leaves

__all__ = ["sums_from_zero_tensors", "sums_from_zero_tensors_within"]

_ADDING = frozenset(f"Tensor.{name}" for name in ("add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "rsub"))
# Addition of a tensor and a number -> the same for two tensors.
_LATER = {
    "Tensor.add": frozenset({"Tensor.add", functional_add.__name__}),
    "Tensor.__rsub__": frozenset({"Tensor.sub", functional_sub.__name__}),
    "Tensor.rsub": frozenset({"Tensor.sub", functional_sub.__name__}),
}


@dataclass(frozen=True, slots=True)
class _Sum:
    """``name``: the variable, if it is known. ``first``: the position of the first iteration's addition. ``other``: the
    position of the addition at the same source location in another iteration. ``place``: the sum's index among its
    arguments."""

    name: Any
    first: int
    other: int
    place: int


def sums_from_zero_tensors(trace: Trace, frames: LoopSnapshots, known: set[Place]) -> tuple[Trace, LoopSnapshots]:
    """Return the trace in which the sums of this loop begin with tensors, and the loop in it. ``known``: source
    locations at which the program was seen to add to such a number, in this run and others. Other uses might raise for
    a number."""
    while (one := next(_sums(trace, frames, known), None)) is not None:
        number, zero = trace.frames.index(frames), len(trace.tensors)
        trace = _SumRewriter(trace, one, frames.starts[0]).trace()
        frames = trace.frames[number]
        for state in frames.states[:2]:
            if state[one.name][0] != "tensor":
                state[one.name] = ("tensor", zero)
        frames.begun = (*frames.begun, one.name)
    return trace, frames


def _sums(trace: Trace, frames: LoopSnapshots, known: set[Place]) -> Iterator[_Sum]:
    if len(frames.starts) < 2:
        return
    for name, (kind, value, *_) in frames.states[0].items():
        if kind in ("int", "float") and repr(value) in ("0", "0.0"):
            later = frames.states[1].get(name) == frames.states[0][name]  # the first iteration does not add
            row = [state.get(name) for state in frames.states[1 + later :]]
            if row and all(held is not None and held[0] == "tensor" for held in row):
                limits = (*frames.starts[later:], frames.end)
                one = _sum(trace, limits, name, value, [held[1] for held in row if held is not None], known)
                if one is not None:
                    yield one


def _sum(
    trace: Trace, limits: Sequence[int], name: Any, value: Any, sums: Sequence[int], known: set[Place]
) -> _Sum | None:
    """Return the sum, if each iteration computes it from the preceding one or leaves it unchanged; else None.
    ``limits``: the positions at which the iterations begin, and the last one ends."""
    made_by = [number for number, tensor in enumerate(sums) if not number or tensor != sums[number - 1]]
    if len(set(sums)) < len(made_by) or trace.kinds.get(sums[0], (None,))[0] != ():
        return None
    found: list[tuple[int, Op]] = []
    for number in made_by:
        tensor = sums[number]
        made = [
            (position, event)
            for position in range(limits[number], limits[number + 1])
            if isinstance(event := trace.events[position], Op) and event.outs == (TensorRef(tensor),)
        ]
        if len(made) != 1:
            return None
        found += made
    (first, beginning), *later = found
    if beginning.name not in _ADDING or beginning.kwargs:
        return None
    if not (len(beginning.args) == 2 and isinstance(beginning.args[0], TensorRef) and _is(beginning.args[1], value)):
        return None
    known.add(beginning.place)
    consumers: list[_Sum] = []
    for (position, event), before in zip(later, (sums[number] for number in made_by), strict=False):
        places = [place for place, arg in enumerate(event.args) if arg == TensorRef(before)]
        if len(places) != 1 or len(event.args) != 2 or event.kwargs or event.place not in known:
            return None
        if event.place == beginning.place and isinstance(event.args[1 - places[0]], TensorRef):
            consumers.append(_Sum(name, first, position, places[0]))
    alone = consumers and _taken(trace, limits, sums) == len(later)
    return consumers[0] if alone else None


def _taken(trace: Trace, limits: Sequence[int], sums: Sequence[int]) -> int:
    """Return how often iterations use the sum that they begin with, in operations or predicates."""
    count = 0
    for (start, end), number in zip(itertools.pairwise(limits[1:]), sums, strict=False):
        for event in trace.events[start:end]:
            if isinstance(event, Op):
                count += any(ref.number == number for ref in event.inputs)
            elif isinstance(event, TensorPredicate):
                count += event.ref.number == number
            elif isinstance(event, NumberPredicate | Specialization | HostComputation):
                count += sum(isinstance(leaf, Fetch) and leaf.ref == number for leaf in leaves(event.expr))
    return count


def _is(arg: Any, value: Any) -> bool:
    return type(arg) is type(value) and bool(arg == value)


def sums_from_zero_tensors_within(trace: Trace, loops: Sequence[LoopInstance]) -> Trace:
    """Return the trace in which the sums of these loops, some of which are nested, begin with tensors before all of
    them. Only scalars are added, so that adding a scalar tensor is bitwise equal to adding a number."""
    for number in [number for number, instance in enumerate(trace.loop_instances) if instance in loops]:
        while (one := next(_added(trace, trace.loop_instances[number]), None)) is not None:
            at = before_iterations(trace.loop_instances, trace.loop_instances[number].starts[0])
            trace = _SumRewriter(trace, one, at).trace()
    return trace


def _added(trace: Trace, instance: LoopInstance) -> Iterator[_Sum]:
    """Yield the sums that the first iteration begins by adding to the number 0, and to which the second adds."""
    if len(instance.starts) < 2 or isinstance(instance.count, TensorTermination):
        return
    start, middle, *rest = instance.limits
    for first in range(start, middle):
        event = trace.events[first]
        if not isinstance(event, Op) or event.name not in _ADDING or event.kwargs or len(event.args) != 2:
            continue
        term, number = event.args
        if not isinstance(term, TensorRef) or type(number) not in (int, float) or repr(number) not in ("0", "0.0"):
            continue
        if any(trace.kinds.get(ref.number, (None,))[0] != () for ref in (term, *event.outs)):
            continue
        for other in range(middle, rest[0]):
            later = trace.events[other]
            if isinstance(later, Op) and later.place == event.place and later.name in _LATER.get(event.name, ()):
                if len(later.args) == 2 and not later.kwargs and event.outs[0] in later.args:
                    yield _Sum(None, first, other, later.args.index(event.outs[0]))


class _SumRewriter(TraceRewriter):
    """Writes the new trace, with a zero before the loop."""

    def __init__(self, old: Trace, one: _Sum, at: int) -> None:
        super().__init__(old)
        self.one, self.at = one, at
        self.before = op_count(old.events[: self.at])

    def position(self, after: int) -> int:
        return after + (after >= self.before)

    def trace(self) -> Trace:
        old, one = self.old, self.one
        zero = len(old.tensors)
        first, other = old.events[one.first], old.events[one.other]
        assert isinstance(first, Op)
        assert isinstance(other, Op)
        kind = old.kinds[first.outs[0].number]
        kwargs = {"dtype": kind[2], "device": kind[3]}
        modes = replace(first.modes, grad=False)
        begin = Op(torch.zeros, "torch.zeros", ((),), kwargs, (TensorRef(zero),), modes, first.place)
        pair = [first.args[0], first.args[0]]
        pair[one.place] = TensorRef(zero)
        added = replace(first, func=other.func, name=other.name, args=tuple(pair))
        events, inserted, begins = self.walk(
            lambda at, event, after: (self.event(added if at == one.first else event, after),),
            lambda at: (begin,) if at == self.at else (),
        )
        return self.made(
            events,
            tensors=[*old.tensors, None],
            memory=[*old.memory, 1 + max(old.memory, default=0)] if old.memory else [],
            kinds={**old.kinds, zero: ((), (), kind[2], kind[3], False)},
            **self.moved(begins, inserted),
        )

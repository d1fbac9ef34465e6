"""Makes sums that loops add up in place (``total += loss``) new tensors in each iteration.

A tensor of the call that shares memory with no other one gets a new number after each such change; later uses take the
number of that time. A pure rewriting of traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.graph.loops.rewrites.gradient_flow import writes
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.records import LoopSnapshots
from torchjanus.trace.operands import refs_in
from torchjanus.trace.operations import op_count, ops_of
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef

__all__ = [
    "CHANGES",
    "changed_memory",
    "functional_accumulators",
    "functional_add",
    "functional_sub",
    "knows",
    "used_as_objects",
]

# Operations that use a tensor as an object, not only its value.
_KNOWING = frozenset(
    """retain_grad register_hook register_post_accumulate_grad_hook requires_grad_ detach_ set_ set_data resize_
    untyped_storage storage share_memory_ grad __get__ __set__""".split()
)

# The running statistics that functions modify: their positions, for each way to call them.
_RUNNING = {
    "F.batch_norm": slice(1, 3), "F.instance_norm": slice(1, 3),
    "torch.batch_norm": slice(3, 5), "torch.instance_norm": slice(3, 5), "torch.native_batch_norm": slice(3, 5),
}  # fmt: skip
_REVERSED = frozenset({"T", "mT", "H", "mH"})  # properties that are views


def functional_add(tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.add(tensor, *args, **kwargs).to(tensor.dtype)


def functional_sub(tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.sub(tensor, *args, **kwargs).to(tensor.dtype)


def functional_mul(tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.mul(tensor, *args, **kwargs).to(tensor.dtype)


def functional_div(tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.div(tensor, *args, **kwargs).to(tensor.dtype)


# Functions of this module, so that another process finds them by name.
CHANGES: dict[str, Callable[..., torch.Tensor]] = {
    "Tensor.add_": functional_add,
    "Tensor.__iadd__": functional_add,
    "Tensor.sub_": functional_sub,
    "Tensor.__isub__": functional_sub,
    "Tensor.mul_": functional_mul,
    "Tensor.__imul__": functional_mul,
    "Tensor.div_": functional_div,
    "Tensor.__itruediv__": functional_div,
}


def functional_accumulators(trace: Trace, ranges: Sequence[tuple[int, int]] | None = None) -> Trace:
    """Return the trace with the sums of its loops as new tensors; the trace itself if there are none. ``ranges``: the
    begins and ends of the loops, if other loops than those with a changeable trip count are meant."""
    if ranges is None:
        ranges = [(instance.starts[0], instance.end) for instance in trace.loop_instances if instance.starts]
    found = _sums(trace, ranges) if ranges else frozenset()
    return _AccumulatorRewriter(trace, found).trace() if found else trace


def _sums(trace: Trace, ranges: Sequence[tuple[int, int]]) -> frozenset[int]:
    """Return the tensors that are only added to, within loops, and that have separate memory."""
    makers: dict[int, Op] = {}
    begun: dict[int, int] = {}  # tensor -> position at which it was made
    found: dict[int, int] = {}  # tensor -> position of the last addition
    unsuited: set[int] = set()
    for position, event in enumerate(trace.events):
        if not isinstance(event, Op):
            continue
        kept = [ref.number for ref in event.outs if ref.number in makers or ref.number in trace.access_paths]
        taken = [value.number for value in event.args if isinstance(value, TensorRef)]
        for ref in event.outs:
            makers.setdefault(ref.number, event)
            begun.setdefault(ref.number, position)
        if knows(event):
            unsuited.update(taken)
            unsuited.update(ref.number for ref in event.outs)  # the parameter refers to ``p.grad``
        if not kept:
            continue
        number = kept[0]
        inside = any(first <= position < end for first, end in ranges)
        own = number in makers and number not in trace.access_paths
        graded = event.modes.grad or (number in makers and makers[number].modes == event.modes)
        adding = event.name in CHANGES and taken[:1] == kept and event.outs == (TensorRef(number),)
        if inside and own and graded and adding and trace.memory[number]:
            found[number] = position
        else:
            unsuited.add(number)
    for number, last in found.items():
        others = (n for n, memory in enumerate(trace.memory) if memory == trace.memory[number] and n != number)
        if any(other in trace.access_paths or begun.get(other, -1) < last for other in others):
            unsuited.add(number)  # an alias has the earlier value
    return frozenset(found.keys() - unsuited)


def knows(op: Op) -> bool:
    """Whether the operation uses a tensor as an object, not only its value."""
    owner, _, name = op.name.rpartition(".")
    return name in _KNOWING and owner.rpartition(".")[2] not in _REVERSED


def used_as_objects(events: Iterable[Any]) -> set[int]:
    """Return the tensors that operations among the events use as objects, not only their values."""
    return {ref.number for op in ops_of(events) if knows(op) for ref in op.inputs}


def changed_memory(trace: Trace) -> frozenset[int]:
    """Return the memory in which operations of the run have modified existing tensors."""
    there, found = set(trace.access_paths), set[int]()
    for event in trace.events:
        if isinstance(event, Op):
            given = [ref for ref in event.outs if ref.number in there]
            if writes(event):  # some have no output: ``x[0] = y``, operations on lists
                given += refs_in((event.args[:1], event.kwargs.get("out")))
            elif event.name in _RUNNING:
                named = [event.kwargs.get(name) for name in ("running_mean", "running_var")]
                given += refs_in((event.args[_RUNNING[event.name]], named))
            found.update(trace.memory[ref.number] for ref in given)
            there.update(ref.number for ref in event.outs)
    return frozenset(found)


class _AccumulatorRewriter(TraceRewriter):
    def __init__(self, old: Trace, sums: frozenset[int]) -> None:
        super().__init__(old)
        self.sums = sums
        self.versions: dict[int, list[tuple[int, int]]] = {number: [(0, number)] for number in sums}
        self.memory = list(old.memory)
        self.kinds = dict(old.kinds)

    def trace(self) -> Trace:
        self._number()
        events, _, _ = self.walk(lambda at, event, after: (self.event(event, after),))
        tensors = [*self.old.tensors, *[None] * (len(self.memory) - len(self.old.tensors))]
        frames = [self._framed(one) for one in self.old.frames]
        return self.made(events, tensors=tensors, memory=self.memory, kinds=self.kinds, frames=frames)

    def _framed(self, frames: LoopSnapshots) -> LoopSnapshots:
        """Return the loop with the numbers that variables hold before each iteration and after the last."""
        states = []
        for position, state in zip(frames.limits, frames.states, strict=True):
            after = op_count(self.old.events[:position])
            held = {n: ("tensor", self.tensor(v[1], after)) for n, v in state.items() if v[0] == "tensor"}
            states.append({**{name: self.held(value) for name, value in state.items()}, **held})
        return replace(frames, states=tuple(states))

    def _number(self) -> None:
        operations = 0
        for event in self.old.events:
            if isinstance(event, Op):
                operations += 1
                if self._changed(event) is not None:
                    number = event.outs[0].number
                    before = self.versions[number][-1][1]
                    self.versions[number].append((operations, len(self.memory)))
                    if before in self.kinds:
                        self.kinds[len(self.memory)] = self.kinds[before]
                    self.memory.append(self.memory[before])  # the last one stays where it was
                    self.memory[before] = -1 - before

    def _changed(self, op: Op) -> Callable[..., torch.Tensor] | None:
        first = op.args[0] if op.args else None
        is_sum = isinstance(first, TensorRef) and first.number in self.sums and op.outs == (first,)
        return CHANGES.get(op.name) if is_sum else None

    def tensor(self, number: int, after: int) -> int:
        versions = self.versions.get(number)
        return number if versions is None else [name for begun, name in versions if begun <= after][-1]

    def final(self, number: int) -> int:
        versions = self.versions.get(number)
        return number if versions is None else versions[-1][1]

    def operation(self, op: Op, after: int) -> Op:
        func, made = self._changed(op), super().operation(op, after)
        if func is None:
            return made
        return replace(
            made, func=func, name=func.__name__, outs=(TensorRef(self.tensor(op.outs[0].number, after + 1)),)
        )

"""Makes tensors from before the call that iterations modify in place (running statistics, counters, averages)
loop-carried values.

Each iteration makes a new tensor, and the last one is copied back after the loop. A pure rewriting of traces. Training
loops are made functional by ``loops.roll.training``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from torchjanus.graph.loops.analysis.alignment import TRAINING
from torchjanus.graph.loops.rewrites.accumulators import CHANGES, used_as_objects
from torchjanus.graph.loops.rewrites.gradient_flow import writes
from torchjanus.trace.actions import Op
from torchjanus.trace.events import LoopEnd, Trace
from torchjanus.trace.loops.records import LoopInstance, TensorTermination
from torchjanus.trace.operands import refs_in
from torchjanus.trace.operations import made_by, op_count, ops_of
from torchjanus.trace.recipes import TensorAt, parts_of
from torchjanus.trace.rewriting import AddingRewriter
from torchjanus.trace.terms import TensorRef

__all__ = ["functional_state"]

_NORMS = frozenset({"F.batch_norm", "F.instance_norm"})  # modify their second and third argument


def functional_copy(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Return the tensor that ``copy_()`` would leave."""
    return source.detach().to(tensor.dtype).expand_as(tensor).clone()


def functional_fill(tensor: torch.Tensor, value: Any) -> torch.Tensor:
    """Return the tensor that ``fill_()`` would leave."""
    return torch.full_like(tensor, value)


def functional_batch_norm(x: Any, mean: Any, var: Any, /, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """Return the output and the new statistics."""
    mean, var = mean.clone(), var.clone()
    return functional.batch_norm(x, mean, var, *args, **kwargs), mean, var


def functional_instance_norm(x: Any, mean: Any, var: Any, /, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """Return the output and the new statistics."""
    mean, var = mean.clone(), var.clone()
    return functional.instance_norm(x, mean, var, *args, **kwargs), mean, var


def put_back(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Write the statistics without a new version: autograd saves them for backward, but does not read them there."""
    with torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor):
        return tensor.copy_(value)


# Functions of this module, so that another process finds them by name.
_ANEW: Mapping[str, Callable[..., Any]] = {
    **CHANGES,
    "Tensor.copy_": functional_copy,
    "Tensor.fill_": functional_fill,
    "F.batch_norm": functional_batch_norm,
    "F.instance_norm": functional_instance_norm,
}


def functional_state(trace: Trace) -> Trace:
    """Return the trace with such tensors loop-carried; the trace itself if there are none."""
    for number in range(len(trace.loop_instances)):
        changed = _changed(trace, trace.loop_instances[number]) if trace.memory else frozenset()
        if changed:
            trace = _StateRewriter(trace, number, changed).trace()
    return trace


def _given(op: Op) -> Iterator[int]:
    """Yield the tensors that the operation modifies in place, if it has a functional form here."""
    if op.name in _NORMS:
        yield from (value.number for value in op.args[1:3] if isinstance(value, TensorRef))
    elif op.name in _ANEW and isinstance(op.args[0], TensorRef) and op.outs == op.args[:1]:
        yield op.args[0].number


def _changed(trace: Trace, instance: LoopInstance) -> frozenset[int]:
    """Return the tensors that become loop-carried: each iteration modifies them, nothing shares memory with them, and
    only their values are used."""
    if isinstance(instance.count, TensorTermination) or len(instance.starts) < 2:
        return frozenset()
    events = trace.events[instance.starts[0] : instance.end]
    operations = ops_of(events)
    if any(op.name in TRAINING for op in operations):
        return frozenset()
    rows = [frozenset[int]() for _ in instance.starts]
    for iteration, (start, end) in enumerate(instance.spans):
        for event in trace.events[start:end]:
            if isinstance(event, Op):
                rows[iteration] |= frozenset(_given(event))
    found = {number for number in frozenset.intersection(*rows) if number in trace.access_paths}
    known = used_as_objects(operations)
    other = {
        ref.number
        for op in operations
        if writes(op) or any(ref.number in found for ref in op.outs)
        for ref in (*refs_in((op.args[:1], op.kwargs.get("out"))), *op.outs)
        if ref.number not in _given(op)
    }
    shown = {
        part.ref.number
        for event in events
        for recipe in trace.recipes.get(id(event), ())
        for part in parts_of(recipe)
        if isinstance(part, TensorAt)
    }
    later = made_by(trace.events[instance.end :])
    sharing = Counter(place for number, place in enumerate(trace.memory) if number in found or number not in later)
    alone = {n for n in found if trace.memory[n] and sharing[trace.memory[n]] == 1}
    # A tensor that gets a backward graph is more than a value.
    graded = {n for op in operations for n in _given(op) if op.name not in _NORMS and _is_graded(trace, op)}
    graded |= {n for n in found if n not in trace.kinds or trace.kinds[n][4]}
    return frozenset(alone - known - other - shown - graded)


def _is_graded(trace: Trace, op: Op) -> bool:
    """Whether a gradient may flow through the operation."""
    given = (ref.number for ref in op.inputs)
    return op.modes.grad and any(number not in trace.kinds or trace.kinds[number][4] for number in given)


class _StateRewriter(AddingRewriter):
    """Writes the new trace, with the tensors of one loop."""

    def __init__(self, old: Trace, number: int, changed: frozenset[int]) -> None:
        super().__init__(old)
        self.instance = old.loop_instances[number]
        self.changed = sorted(changed)
        self.limit = op_count(old.events[: self.instance.end])
        self.first = operations = op_count(old.events[: self.instance.starts[0]])
        self.versions = {one: [(operations, self.new_like(one))] for one in self.changed}
        seen: set[int] = set()
        for event in old.events[self.instance.starts[0] : self.instance.end]:
            if isinstance(event, Op):
                operations += 1
                for one in _given(event):
                    if one in self.versions:
                        self.versions[one].append((operations, self.new_like(one)))
                        seen.update((one,) if event.name not in _NORMS else ())
        self.unseen = changed - seen  # modified without a new version for autograd

    def tensor(self, number: int, after: int) -> int:
        if number not in self.versions or not self.first <= after < self.limit:
            return number
        return [name for begun, name in self.versions[number] if begun <= after][-1]

    def position(self, after: int) -> int:
        return after + len(self.changed) * ((after >= self.first) + (after >= self.limit))

    def operation(self, op: Op, after: int) -> Op:
        made = super().operation(op, after)
        given = [one for one in _given(op) if one in self.versions] if self.first <= after < self.limit else []
        if not given:
            return made
        versions = tuple(TensorRef(self._version(one, after + 1)) for one in given)
        func = _ANEW[op.name]
        outs = (*made.outs, *versions) if op.name in _NORMS else versions
        return replace(made, func=func, name=func.__name__, outs=outs)

    def _version(self, number: int, after: int) -> int:
        return [name for begun, name in self.versions[number] if begun <= after][-1]

    def trace(self) -> Trace:
        behind = self.instance.end
        while behind < len(self.old.events) and isinstance(self.old.events[behind], LoopEnd):
            behind += 1

        def ahead(at: int) -> Iterator[Any]:
            if at == self.instance.starts[0]:
                yield from self._taken()
            if at == behind < len(self.old.events):
                yield from self._put_back()

        events, _, begins = self.walk(lambda at, event, after: (self.event(event, after),), ahead)
        return self.made(events, **self.moved(begins))

    def _taken(self) -> Iterator[Op]:
        """Yield the copies that the first iteration gets: backward graphs may save them while the tensor changes."""
        like = ops_of(self.old.events[self.instance.starts[0] :])[0]
        quiet = replace(like.modes, grad=False)
        for one in self.changed:
            first = (TensorRef(self.versions[one][0][1]),)
            yield Op(torch.Tensor.clone, "Tensor.clone", (TensorRef(one),), {}, first, quiet, like.place)

    def _put_back(self) -> Iterator[Op]:
        like = ops_of(self.old.events[: self.instance.end])[-1]
        quiet = replace(like.modes, grad=False)
        for one in self.changed:
            ref, last = TensorRef(one), TensorRef(self.versions[one][-1][1])
            func: Any = put_back if one in self.unseen else torch.Tensor.copy_
            yield Op(func, "Tensor.copy_", (ref, last), {}, (ref,), quiet, like.place)

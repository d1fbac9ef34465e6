"""Finds tensors of one number that each iteration changes by a constant (``step_t += 1`` in an optimizer), and the
closed form of what iterations fetch from them.

``recurrences`` uses the forms.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.records import LoopInstance
from torchjanus.trace.loops.recurrences import HOLE, Form, column
from torchjanus.trace.operations import op_counts, ops_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch

__all__ = ["Counters"]

_STEPS = {"add_": "add", "__iadd__": "add", "sub_": "sub", "__isub__": "sub", "mul_": "mul", "__imul__": "mul"}
_NARROW = {torch.float32: "float32", torch.float64: "float", torch.int64: "int"}

_Step = tuple[str, float | int]


class Counters:
    """The counting tensors of one loop."""

    def __init__(self, trace: Trace, instance: LoopInstance) -> None:
        self.trace = trace
        past = op_counts(trace.events)
        self.limits = [past[at] for at in instance.limits]
        first, last = self.limits[0], self.limits[-1]
        self.ops = ops_of(trace.events)[first:last]
        self._steps: dict[int, list[list[tuple[int, _Step]]] | None] = {}

    def form(self, row: Sequence[Any], start: Form) -> Form | None:
        """Return the form of the numbers fetched from such a tensor, given the form of its value before the loop; else
        None."""
        tensor = self.tensor(row)
        steps = None if tensor is None else self._steps_of(tensor.number)
        if steps is None:
            return None
        done = {sum(at < fetch.after for at, _ in taken) for fetch, taken in zip(row, steps, strict=True)}
        if len(done) > 1:
            return None
        kind, before = self._kind(row[0].ref), done.pop()
        taken = [step for _, step in steps[0]]
        whole = _stepped(HOLE, taken, kind)
        made = ("made", start, whole) if before == len(taken) else ("entering", start, whole)
        form = made if before == len(taken) else _stepped(made, taken[:before], kind)
        return form if self._is_right(row, taken[before:] + taken[:before], kind) else None

    def tensor(self, row: Sequence[Any]) -> TensorRef | None:
        """Return the one tensor from before the loop that all these numbers were fetched from; else None."""
        if any(not isinstance(one, Fetch) or one.index is not None or one.each for one in row):
            return None
        if len({(one.ref, one.type) for one in row}) > 1 or row[0].type not in (int, float):
            return None
        if any(not a <= one.after <= b for one, (a, b) in zip(row, itertools.pairwise(self.limits), strict=True)):
            return None
        return TensorRef(row[0].ref)

    def _kind(self, number: int) -> Any:
        return self.trace.kinds[number][2]

    def _steps_of(self, number: int) -> list[list[tuple[int, _Step]]] | None:
        """Return the steps of each iteration as (number of operations before, step); None if the iterations differ, or
        something else is done with the tensor."""
        if number not in self._steps:
            self._steps[number] = self._found(number)
        return self._steps[number]

    def _found(self, number: int) -> list[list[tuple[int, _Step]]] | None:
        trace = self.trace
        size, _, dtype, device, requires_grad = trace.kinds.get(number, ((0,), (), None, None, False))
        if size or dtype not in _NARROW or device.type != "cpu" or requires_grad:
            return None
        taken: list[tuple[int, _Step]] = []
        for at, op in enumerate(self.ops, self.limits[0]):
            outs = {ref.number for ref in op.outs}
            if any(self._is_beside(ref.number, number) for ref in (*op.outs, *op.inputs)):
                return None  # it may be modified through an alias
            if number not in outs:
                continue
            step = _step(op, number, dtype)
            if step is None:
                return None
            taken.append((at, step))
        iterations = [[(at, step) for at, step in taken if a <= at < b] for a, b in itertools.pairwise(self.limits)]
        same = len({tuple(step for _, step in one) for one in iterations}) == 1
        return iterations if same and taken else None

    def _is_beside(self, other: int, number: int) -> bool:
        """Whether another tensor shares memory with this one, or may."""
        memory = self.trace.memory
        if other == number or not memory:
            return other != number
        return memory[other] in (memory[number], 0) or not memory[number]

    def _is_right(self, row: Sequence[Fetch], steps: Sequence[_Step], kind: Any) -> bool:
        """Whether each fetched number follows from the preceding one by these steps."""
        values = [self.trace.fetched[one.token] for one in row]
        body = _stepped(HOLE, steps, kind)
        return all(
            column(("made", ("const", before), body), 1) == [after] for before, after in itertools.pairwise(values)
        )


def _step(op: Op, number: int, dtype: torch.dtype) -> _Step | None:
    """Return the step that the operation makes with the tensor; None for other operations."""
    name = _STEPS.get(op.name.rpartition(".")[2])
    if name is None or len(op.args) != 2 or op.kwargs or op.args[0] != TensorRef(number):
        return None
    amount = op.args[1]
    if type(amount) not in (int, float) or (dtype is torch.int64 and type(amount) is not int):
        return None
    return name, amount


def _stepped(form: Form, steps: Sequence[_Step], dtype: torch.dtype) -> Form:
    """Return the form after these steps. Each step rounds to the type of the tensor."""
    narrow = _NARROW[dtype]
    for name, amount in steps:
        known = amount if dtype is torch.int64 else float(torch.tensor(amount, dtype=dtype))
        form = (name, form, ("const", known))
        form = form if narrow != "float32" else (narrow, form)
    return form

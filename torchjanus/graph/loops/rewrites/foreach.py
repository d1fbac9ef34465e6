"""Splits operations on lists of tensors (``torch._foreach_add_``) within loops into one operation per tensor.

Torch does the same on the CPU. The closed forms of numbers that change by iteration need single operations: an
optimizer with ``foreach=True`` counts its steps in a list. A rewriting of traces.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.graph.loops.analysis.tensor_termination import terminated_loops
from torchjanus.ops.calls import FOREACH
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, leaves

__all__ = ["split_foreach"]

_PREFIX = "torch._foreach_"
# Arguments that the single operations take by name.
_NAMED = {"addcmul": (None, None, None, "value"), "addcdiv": (None, None, None, "value")}


def split_foreach(trace: Trace) -> Trace:
    """Return the trace with such operations split, in loops that compute with fetched numbers; the trace itself if
    there are none."""
    ranges = [
        (one.starts[0], one.end)
        for one in (*trace.loop_instances, *terminated_loops(trace))
        if one.starts and _counts(trace, one.starts[0], one.end)
    ]
    parted = {
        at
        for begin, end in ranges
        for at in range(begin, end)
        if isinstance(event := trace.events[at], Op) and event.name.startswith(_PREFIX)
    }
    if not parted or not all(_can_be(trace, trace.events[at]) for at in parted):
        return trace
    return _ForeachRewriter(trace, parted).trace()


def _counts(trace: Trace, begin: int, end: int) -> bool:
    """Whether operations on lists compute with numbers that were fetched from tensors."""
    return any(
        isinstance(leaf, Fetch)
        for event in trace.events[begin:end]
        if isinstance(event, Op) and event.name.startswith(_PREFIX)
        for expr in expressions_in((event.args, event.kwargs))
        for leaf in leaves(expr)
    )


def _can_be(trace: Trace, op: Any) -> bool:
    numbers = {ref.number for ref in op.inputs}
    devices = {trace.kinds[number][3].type if number in trace.kinds else "" for number in numbers}
    lists = [arg for arg in op.args if isinstance(arg, list | tuple)]
    return (
        op.name.removeprefix(_PREFIX) in FOREACH
        and devices == {"cpu"}
        and bool(op.args)
        and op.args[0] in lists
        and {len(one) for one in lists} == {len(op.outs)}
        and not any(isinstance(value, list | tuple) for value in op.kwargs.values())
    )


class _ForeachRewriter(TraceRewriter):
    def __init__(self, old: Trace, parted: set[int]) -> None:
        super().__init__(old)
        self.parted = parted
        more = (
            (len(event.outs) if at in parted else 1) for at, event in enumerate(old.events) if isinstance(event, Op)
        )
        self.after = [0, *itertools.accumulate(more)]
        self.constants: dict[int, float] = {}  # tensor -> its number, until it is used otherwise

    def position(self, after: int) -> int:
        return self.after[after]

    def trace(self) -> Trace:
        """Return the new trace."""

        def step(at: int, event: Any, after: int) -> Iterator[Any]:
            if isinstance(event, Op) and at in self.parted:
                yield from self._singles(event)
            else:
                yield self.event(event, after)
                self._learn(event)

        events, _, begins = self.walk(step)
        return self.made(events, **self.moved(begins))

    def _learn(self, event: Any) -> None:
        if not isinstance(event, Op):
            return
        for ref in event.inputs:
            self.constants.pop(ref.number, None)
        number = event.args[0] if event.name == "torch.tensor" and len(event.args) == 1 else None
        kind = self.old.kinds.get(event.outs[0].number) if type(number) is float else None
        if kind is not None and kind[2] is torch.float32 and float(torch.tensor(number, dtype=torch.float32)) == number:
            self.constants[event.outs[0].number] = number

    def _singles(self, op: Op) -> Iterator[Op]:
        name = op.name.removeprefix(_PREFIX)
        named: Sequence[str | None] = _NAMED.get(name.rstrip("_"), ())
        for ref in op.outs:
            self.constants.pop(ref.number, None)
        for which, out in enumerate(op.outs):
            given = [arg[which] if isinstance(arg, list | tuple) else self._number(arg) for arg in op.args]
            kwargs = {key: value for key, value in op.kwargs.items() if (key, value) != ("alpha", 1)}
            args = []
            for arg, key in itertools.zip_longest(given, named[: len(given)]):
                if key is None:
                    args.append(arg)
                else:
                    kwargs[key] = arg
            func = getattr(torch.Tensor, name)
            merged = (self.values(tuple(args), 0), self.values(kwargs, 0))
            yield replace(op, func=func, name=f"Tensor.{name}", args=merged[0], kwargs=merged[1], outs=(out,))

    def _number(self, value: Any) -> Any:
        """Return the number for a tensor that holds a known one; else the value."""
        return self.constants.get(value.number, value) if isinstance(value, TensorRef) else value

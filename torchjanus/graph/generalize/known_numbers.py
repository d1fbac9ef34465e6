"""Fold fetches from counters that the step itself makes of constants: they are constants.

An optimizer made within the step counts its steps from zero in each call, so what Python computes from that count is
the same whenever the step takes this path. This is a rewrite of traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.graph.ir.numbers import Numbers, need, varies
from torchjanus.graph.ir.repetition import begin_iterations, end_iterations
from torchjanus.trace.actions import InvokeOp, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HostComputation, NumberPredicate, Specialization
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.operations import ops_of
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.values import Apply, Expr, Fetch

__all__ = ["with_known_numbers"]

_MAKING = frozenset(("torch.tensor", "torch.zeros", "torch.ones", "torch.full"))
# Operations that return a new tensor, or the one that they change.
_COMPUTING = frozenset(
    """Tensor.add_ Tensor.__iadd__ Tensor.sub_ Tensor.__isub__ Tensor.mul_ Tensor.__imul__ Tensor.div_
    Tensor.__itruediv__ torch._foreach_add_ torch._foreach_mul_ functional_add functional_sub functional_mul
    functional_div""".split()
)


def with_known_numbers(work: Numbers) -> list[Trace]:
    """Return the runs with constants in place of such fetches, in operations and in decisions."""
    traces = list(work.traces)
    ops = ops_of(traces[-1].events)
    if not any(token[0] == "fetch" for token in traces[-1].fetched) or not any(op.name in _MAKING for op in ops):
        return traces
    if any(isinstance(event, InvokeOp) for event in traces[-1].events):
        return traces  # the trace does not show what recursive calls do with tensors of the step
    known = _known(work, ops)
    return [_ConstantRewriter(trace, known).trace() for trace in traces] if known.until else traces


@dataclass(slots=True)
class _Known:
    """``until``: for each known tensor, the first and the last position in the operations at which it is known."""

    fetched: Mapping[Any, Any]
    until: dict[int, tuple[int, int]] = field(default_factory=dict)

    def number(self, expr: Any) -> Any:
        """Return the constant of a fetch from a known tensor; else the expression."""
        if not isinstance(expr, Fetch) or expr.type not in (int, float) or expr.index is not None or expr.each:
            return expr
        first, last = self.until.get(expr.ref, (1, 0))
        return self.fetched[expr.token] if first <= expr.after <= last else expr


def _known(work: Numbers, ops: list[Op]) -> _Known:
    """Return which tensors are known at which operations."""
    known = _Known(work.traces[-1].fetched)
    rewriter = _ConstantRewriter(work.traces[-1], known)
    open_: set[int] = set()  # the tensors that are known at this operation
    ending = dict(_ends(ops))
    for at, op in enumerate(ops):
        open_ -= ending.get(at, set())
        used = {ref.number for ref in op.inputs}
        if used <= open_ and op.name in (_COMPUTING if used else _MAKING) and _is_constant(work, rewriter, op):
            for ref in op.outs:
                if ref.number not in open_:
                    open_.add(ref.number)
                    known.until[ref.number] = (at + 1, at)
        else:
            open_ -= used  # the operation may make an alias, through which the tensor is changed later
        for number in open_:
            known.until[number] = (known.until[number][0], at + 1)
    return known


def _is_constant(work: Numbers, rewriter: _ConstantRewriter, op: Op) -> bool:
    """Whether all arguments of the operation other than tensors are the same in each call."""
    merged = rewriter.operation(op, 0)
    found = list(expressions_in((merged.args, merged.kwargs)))
    if any(varies(work, expr) for expr in found):
        return False
    for expr in found:
        need(work, expr)
    return True


def _ends(ops: list[Op]) -> Iterator[tuple[int, set[int]]]:
    """Yield (operation, tensors that are no longer known before it). Where a loop begins: those that it uses, since the
    kept iterations do not show how often it changes them. Where an iteration begins: those that iterations make."""
    begins: list[int] = []
    ends: dict[int, set[int]] = {}
    for at, op in enumerate(ops):
        if op.func is begin_iterations:
            begins.append(at)
        elif op.func is end_iterations:
            begin = begins.pop()
            within = ops[begin + 1 : at]
            ends.setdefault(begin, set()).update(ref.number for op in within for ref in op.inputs)
            length, left = divmod(len(within), ops[begin].args[1])
            made = {ref.number for op in within for ref in op.outs}
            for boundary in range(begin + 1, at + 1, 1 if left else length):
                ends.setdefault(boundary, set()).update(made)
    yield from ends.items()


class _ConstantRewriter(TraceRewriter):
    """Rewrites a run: constants replace the fetches from known tensors."""

    def __init__(self, old: Trace, known: _Known) -> None:
        super().__init__(old)
        self.known = known

    def expr(self, expr: Any) -> Any:
        if not isinstance(expr, Apply):
            return self.known.number(expr)
        args = tuple(map(self.expr, expr.args))
        if all(new is old for new, old in zip(args, expr.args, strict=True)):
            return expr
        if not any(isinstance(arg, Expr) for arg in args):
            return expr.func(*args)
        return self.applied(expr, args)

    def trace(self) -> Trace:
        """Return the rewritten run. What leaves the call is unchanged."""

        def step(at: int, event: Any, after: int) -> Iterator[Any]:
            if isinstance(event, Op):
                yield self.operation(event, after)
            elif not isinstance(event, NumberPredicate | Specialization | HostComputation):
                yield event
            elif isinstance((made := self.event(event, after)).expr, Expr):
                yield made  # else it holds in each call

        events, _, begins = self.walk(step)
        return replace(self.old, events=events, alive=[*self.old.alive, self.old], **self.moved(begins))

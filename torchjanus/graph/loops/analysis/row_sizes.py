"""Represents sizes of the rows of a tensor as sizes of that tensor, since all rows have the same.

The trip count of a loop over the elements of a row is then the same in each iteration of the loop over the rows. A
rewriting of traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchjanus.core.access_path import Step
from torchjanus.graph.ir.dimensions import geometries
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, NumberPredicate, Specialization
from torchjanus.trace.operations import ops_of
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr, Read, Size, leaves

__all__ = ["with_sizes_of_whole"]

_UNBINDING = frozenset({"Tensor.unbind", "torch.unbind"})


def with_sizes_of_whole(trace: Trace, counts: Iterable[Any]) -> Trace:
    """Return the trace with such sizes, if one of these expressions has a size of a tensor of the run; else the trace
    itself."""
    asked = {
        leaf.ref for count in counts if isinstance(count, Expr) for leaf in leaves(count) if isinstance(leaf, Size)
    }
    if not asked:
        return trace
    rows = _rows(trace)
    whole = {rows.get(number, (number, 0))[0] for number in asked}
    made = _RowSizeRewriter(trace, {number: known for number, known in rows.items() if known[0] in whole})
    return made.written() if made.asked else trace


def _rows(trace: Trace) -> dict[int, tuple[int, int]]:
    """Return, for each tensor, the tensor that it is a row of, and how many leading dimensions it lacks."""
    found: dict[int, tuple[int, int]] = {number: (number, 0) for number in trace.access_paths}
    for event in trace.events:
        if not isinstance(event, Op):
            continue
        known = found.get(event.args[0].number) if event.args and isinstance(event.args[0], TensorRef) else None
        lacking = _lacking(event)
        for ref in event.outs:
            if known is not None and lacking:
                found.setdefault(ref.number, (known[0], known[1] + lacking))
            else:
                found.setdefault(ref.number, (ref.number, 0))
    return found


def _lacking(op: Op) -> int:
    """Return how many leading dimensions the output lacks; 0 for operations that do not select rows."""
    key = op.args[1] if len(op.args) > 1 else 0
    if op.kwargs or len(op.args) > 2:
        return 0
    if op.name in _UNBINDING:
        return int(key == 0)
    if op.name != "Tensor.__getitem__":
        return 0
    keys = key if type(key) is tuple else (key,)
    return len(keys) if all(type(part) is int for part in keys) else 0


class _RowSizeRewriter(TraceRewriter):
    """Writes the new trace. Equal conditions on sizes of several rows are kept once."""

    def __init__(self, old: Trace, rows: dict[int, tuple[int, int]]) -> None:
        super().__init__(old)
        self.rows = rows
        self.made_after: dict[int, int] = {}  # tensor -> number of operations when it was made
        for number, event in enumerate(e for e in ops_of(old.events)):
            for ref in event.outs:
                self.made_after.setdefault(ref.number, number + 1)
        self.emitted = {e.access_path.token for e in old.events if isinstance(e, HeapRead)}
        self.geometries = geometries(old)
        sizes = [leaf for loop in old.loop_instances if isinstance(loop.count, Expr) for leaf in leaves(loop.count)]
        sizes += [
            leaf
            for event in old.events
            if isinstance(event, NumberPredicate | Specialization)
            for leaf in leaves(event.expr)
        ]
        self.asked = {leaf.token: (leaf, self.expr(leaf)) for leaf in sizes if self._is_merged(leaf)}
        self.reads = {new.token for _, new in self.asked.values() if isinstance(new, Read)}

    def _is_merged(self, expr: Any) -> bool:
        return isinstance(expr, Size) and expr.ref in self.rows and expr.dim >= 0

    def expr(self, expr: Any) -> Any:
        if not self._is_merged(expr):
            return super().expr(expr)
        whole, lacking = self.rows[expr.ref]
        access_path = self.old.access_paths.get(whole)
        if access_path is not None:
            return Read(access_path.then(Step.SIZE, expr.dim + lacking))
        return Size(whole, expr.dim + lacking, self.made_after[whole])

    def written(self) -> Trace:
        """Return the new trace."""
        old = self.old
        facts: set[Any] = set()

        def step(at: int, event: Any, after: int) -> Iterator[Any]:
            made = self.event(event, after)
            if isinstance(event, NumberPredicate | Specialization):
                if made.expr is not event.expr and made.token in facts:
                    return
                facts.add(made.token)
            yield made
            if isinstance(event, HeapRead) and event.kind == "tensor":
                yield from self._found(event)

        events, _, begins = self.walk(step)
        facts_ = (event.expr for event in old.events if isinstance(event, NumberPredicate | Specialization))
        tokens = {expr.token: self.expr(expr).token for expr in facts_}
        pins: dict[Any, int] = {}
        for token, times in old.pins.items():
            new = tokens.get(token, token)
            pins[new] = pins.get(new, 0) + times
        trace = self.made(events, pins=pins, **self.moved(begins))
        sizes = ((leaf, new) for leaf, new in self.asked.values() if isinstance(new, Size))
        trace.fetched |= {new.token: old.fetched[leaf.token] for leaf, new in sizes if leaf.token in old.fetched}
        return trace

    def _found(self, tensor: HeapRead) -> Iterator[HeapRead]:
        """Yield reads of those sizes of this tensor that replace sizes of its rows and that the trace has not read."""
        known = self.geometries.get(tensor.access_path.token)
        for dim, size in enumerate(() if known is None else known[0]):
            access_path = tensor.access_path.then(Step.SIZE, dim)
            if Read(access_path).token in self.reads and access_path.token not in self.emitted:
                self.emitted.add(access_path.token)
                yield HeapRead(access_path, size, "number", place=tensor.place)

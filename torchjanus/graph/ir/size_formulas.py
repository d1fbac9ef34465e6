"""Formulas of sizes in the graph: in terms of the changing sizes of inputs and of the sizes of intermediate tensors.

Knows nothing of nodes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from torchjanus.graph.ir.dimensions import is_size
from torchjanus.graph.ir.number_sizes import carrier_of, number_of
from torchjanus.graph.ir.numbers import Numbers, value_of, varies
from torchjanus.graph.ir.program import Formula, Measured, Symbol
from torchjanus.trace.actions import BatchedExtern, HostLoop, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HostComputation, KeyLookup, NumberPredicate, Specialization
from torchjanus.trace.operands import expressions_in, refs_in
from torchjanus.trace.values import Apply, Read, Size, Traced, leaves

__all__ = ["Formulas"]

# Arithmetic that torch's symbolic numbers support.
_OF_SIZES: frozenset[Any] = frozenset(
    (
        *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, operator.pos),
        *(operator.truediv, min, max, int, math.ceil, math.floor),
    )
)


class Formulas:
    """The sizes of one path. ``measures``: the sizes of intermediate tensors, with their numbers."""

    def __init__(self, work: Numbers, trace: Trace, ops: Sequence[Op]) -> None:
        self._work = work
        self._trace = trace
        self._ops = ops
        self.measures: dict[Size, int] = {}

    def formula(self, expr: Any) -> Any:
        """Return a number computed from sizes as the graph computes it; None where the host computes it."""
        work = self._work
        if isinstance(expr, Read):
            base = expr.access_path.base
            if (count := work.dimensions.counted(expr)) is not None:
                return Symbol(count)
            number = work.dimensions.number(base, expr.access_path.key) if base is not None else None
            if is_size(expr.access_path) and number is not None:
                return Symbol(number)
            if (number := work.dimensions.number(carrier_of(expr.access_path), 0)) is not None:
                return number_of(number)
            return value_of(work, expr) if not varies(work, expr) else None
        if isinstance(expr, Size):
            return Measured(self.measures.setdefault(expr, len(self.measures)))
        if not isinstance(expr, Apply):
            return expr if type(expr) in (int, float) else None
        if expr.func not in _OF_SIZES:
            return None
        parts = tuple(map(self.formula, expr.args))
        return None if any(part is None for part in parts) else Formula(expr.func, parts)

    @classmethod
    def numbers_in(cls, expr: Any) -> Iterator[Read]:
        """Yield the reads in ``expr`` that are no sizes; none where symbolic numbers do not support its arithmetic."""
        if isinstance(expr, Read) and not is_size(expr.access_path):
            yield expr
        elif isinstance(expr, Apply) and expr.func in _OF_SIZES:
            for arg in expr.args:
                yield from cls.numbers_in(arg)

    def inputs(self) -> Iterator[int]:
        """Yield the inputs whose changing sizes the graph computes with."""
        by_access_path = {access_path: number for number, access_path in self._trace.access_paths.items()}
        for op in self._ops:
            for expr in expressions_in((op.args, op.kwargs)):
                for leaf in leaves(expr):
                    if isinstance(leaf, Read) and is_size(leaf.access_path) and leaf.access_path in self._work.varying:
                        yield by_access_path[leaf.access_path.base]  # type: ignore[index]

    def measured(self) -> Iterator[Size]:
        """Yield the sizes of intermediate tensors that may change and that something depends on."""
        made = None if self._work.dimensions else self._made_of_changing_numbers()
        if made is not None and not made:
            return
        trace = self._trace
        expressions = [expr for recipe in trace.all_recipes() for expr in expressions_in(recipe)]
        for event in trace.events:
            if isinstance(event, Op):
                expressions += expressions_in((event.args, event.kwargs))
            elif isinstance(event, NumberPredicate | Specialization | HostComputation):
                expressions.append(event.expr)
            elif isinstance(event, HostLoop | BatchedExtern) and event.count is not None:
                expressions.append(event.count)
            elif isinstance(event, KeyLookup) and isinstance(event.key, Traced):
                expressions.append(event.key.expr)
        for expr in expressions:
            sizes = (leaf for leaf in leaves(expr) if isinstance(leaf, Size))
            yield from (size for size in sizes if made is None or size.ref in made)

    def _made_of_changing_numbers(self) -> set[int]:
        """Return the tensors that depend on changing integers: their sizes may change though those of the inputs do
        not. Lowering shows whether such a number decides a size."""
        made: set[int] = set()
        for op in self._ops:
            given = (op.args, op.kwargs)
            counted = any(varies(self._work, e) and type(value_of(self._work, e)) is int for e in expressions_in(given))
            if counted or any(ref.number in made for ref in refs_in(given)):
                made.update(out.number for out in op.outs)
        return made

    def measure_all(self) -> None:
        """Give each measured size a number."""
        for size in self.measured():
            self.measures.setdefault(size, len(self.measures))

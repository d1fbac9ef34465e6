"""Finds the predicates of iterations that depend on the iteration index: ``t == 0``, ``t % 2``, ``t < n - 1``.

Their outcome may differ between iterations and, where they compare with a number of the host (such as the trip count),
between runs. A predicate with the same operands in all iterations of a run is none of them. Reads one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchjanus.core.errors import Place
from torchjanus.trace.events import Decision, Trace
from torchjanus.trace.expressions import parts_of_expr
from torchjanus.trace.facts import HeapRead, NumberPredicate
from torchjanus.trace.loops.records import LoopSnapshots, UntracedComputation
from torchjanus.trace.operations import made_by, op_count
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Read, Size, leaves

__all__ = ["ITERATION", "NUMBER", "IndexPredicate", "IndexPredicates"]

ITERATION = ("index",)  # source of a tensor that holds the iteration index
NUMBER = "number"  # source of a tensor that holds a number of the host: (NUMBER, token)

_COMPARISONS = frozenset(("==", "!=", "<", "<=", ">", ">="))


@dataclass(frozen=True, slots=True)
class IndexPredicate:
    """A predicate of the iteration index.

    ``form``: the comparison (see ``numbers``); ``ref``: a tensor that holds the iteration index; ``numbers``: tensors
    that hold numbers of the host, each with its token."""

    form: Any
    ref: TensorRef
    outcome: bool
    place: Place
    numbers: tuple[tuple[Any, TensorRef], ...] = ()


class IndexPredicates:
    """Distinguishes index predicates from other comparisons in one loop's iterations."""

    def __init__(self, trace: Trace, frames: LoopSnapshots) -> None:
        events = trace.events[frames.starts[0] : frames.end]
        self._file = frames.place
        self._reads = {e.access_path: e.value for e in trace.events if isinstance(e, HeapRead) and e.kind == "number"}
        self._made = made_by(events)
        self._decided = {(e.place.line, e.place.column): e.place for e in events if isinstance(e, Decision)}
        computations = trace.plain[frames.untraced_counts[0] : frames.untraced_counts[-1]]
        self._differ = _differing((plain.where, plain.operands) for plain in computations)
        self._before = op_count(trace.events[: frames.starts[0]])
        held = [event for event in events if isinstance(event, NumberPredicate)]
        self._differ |= _differing((_subject(event), tuple(_constants(event.expr))) for event in held)
        self._asked = {(event.place.line, event.place.column) for event in held if self.asks(event)}

    def place(self, plain: UntracedComputation) -> Place | None:
        """Return the place of a comparison of plain numbers if it is an index predicate; otherwise None."""
        found = self._decided.get(plain.where)
        if found is None and plain.where in self._differ:
            return replace(self._file, line=plain.where[0], column=plain.where[1])
        return found

    def is_of_host(self, plain: UntracedComputation) -> bool:
        """Whether this comparison is already recorded as a condition that ``asks`` accepts."""
        match plain.structure:
            case ("tuple", ("str", str(op)), ("tuple", *operands)) if op in _COMPARISONS:
                return plain.where in self._asked and any(one[0] in ("traced", "of sizes") for one in operands)
        return False

    def asks(self, held: NumberPredicate) -> bool:
        """Whether a condition compares integers from before the loop with one that may be the iteration index."""
        return _subject(held) in self._differ and all(map(self._is_before, leaves(held.expr)))

    def compared(self, expr: Any) -> Any:
        """Return the expression as if its sizes were read before the loop."""
        if isinstance(expr, Apply):
            return Apply(expr.func, tuple(map(self.compared, expr.args)))
        return replace(expr, after=self._before) if isinstance(expr, Size) else expr

    def _is_before(self, leaf: Expr) -> bool:
        if isinstance(leaf, Size):
            return leaf.ref not in self._made
        return isinstance(leaf, Read) and type(self._reads.get(leaf.access_path)) is int


def _differing(pairs: Iterable[tuple[Any, Any]]) -> set[Any]:
    """Return the first components that occur with more than one second component."""
    first: dict[Any, Any] = {}
    return {place for place, value in pairs if first.setdefault(place, value) != value}


def _subject(held: NumberPredicate) -> Any:
    """Return the place and shape of a comparison without its constants."""

    def shape(expr: Any) -> Any:
        if isinstance(expr, Apply):
            return (id(expr.func), *map(shape, expr.args))
        if isinstance(expr, Size):
            return ("size", expr.ref, expr.dim)
        return expr.token if isinstance(expr, Expr) else type(expr)

    return (held.place, shape(held.expr))


def _constants(expr: Any) -> Iterator[Any]:
    return (part for part in parts_of_expr(expr) if not isinstance(part, Expr))

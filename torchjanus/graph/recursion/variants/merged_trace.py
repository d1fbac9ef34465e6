"""One of the traces that if-conversion merges: its recipes and expressions, rewritten for the merged trace.

In: the trace of a call on one path, and the conversion, which numbers tensors and masks those of other paths.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from torchjanus.graph.recursion.variants.predicates import Path
from torchjanus.trace.events import Trace
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.values import Fetch, Size

__all__ = ["MergedTrace"]


class Conversion(Protocol):
    """What writes the merged trace (see ``if_conversion``)."""

    fetched: dict[Any, Any]

    def masked(self, leaf: MergedTrace, number: int) -> int: ...
    def number_of(self, leaf: MergedTrace, number: int) -> int: ...


class MergedTrace(TraceRewriter):
    """One of the merged traces. ``numbers``: its tensors' numbers in the new trace; ``after``: for each number of its
    operations the number in the new trace; ``places``: the new positions of its events."""

    def __init__(self, old: Trace, conversion: Conversion) -> None:
        super().__init__(old)
        self.conversion = conversion
        self.numbers: dict[int, int] = {}
        self.path: Path = ()  # decisions taken
        self.begun: tuple[int, ...] = ()  # number of tensors before each of these decisions
        self.own: set[int] = set()  # its events in the new trace, perhaps shared with other leaves
        self.after = [0]
        self.places: list[int] = []
        self.given: frozenset[int] = frozenset()  # memory of tensors that others see

    def tensor(self, number: int, after: int) -> int:
        return self.conversion.masked(self, self.conversion.number_of(self, number))

    def final(self, number: int) -> int:
        return self.conversion.number_of(self, number)

    def position(self, after: int) -> int:
        return self.after[after]

    def expr(self, expr: Any) -> Any:
        if not isinstance(expr, Fetch | Size):
            return super().expr(expr)
        made = replace(expr, ref=self.final(expr.ref), after=self.position(expr.after))
        if expr.token in self.old.fetched:
            self.conversion.fetched[made.token] = self.old.fetched[expr.token]
        return made

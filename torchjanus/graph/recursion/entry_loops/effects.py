"""What iterations over trees do beside their calls: fetches, loop-carried numbers, writes and extern calls.

Merged as in any other loop (see ``loops.analysis.effects``): what an iteration fetches, passes out or reads of its tree
is a row of a column. Independent of how calls are followed.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.loops.analysis.effects import EffectMerger
from torchjanus.graph.loops.analysis.host_recurrences import MOST, Column, ExpressionMerger, pick
from torchjanus.graph.loops.analysis.merged_effects import MergedTrace
from torchjanus.graph.recursion.entry_loops.columns import column_along
from torchjanus.graph.recursion.entry_loops.finding import EntryCallLoop
from torchjanus.trace.actions import BatchedExtern, Op
from torchjanus.trace.events import Effectful, Trace
from torchjanus.trace.facts import HeapRead, NumberPredicate
from torchjanus.trace.operations import op_counts
from torchjanus.trace.recipes import TensorOf
from torchjanus.trace.values import Apply, Fetch, InductionVariable, Read

__all__ = ["LoopEffects", "merged_beside"]


@dataclass(slots=True)
class _IterationExpressions(ExpressionMerger):
    """Expressions of iterations that may take different paths: tensors are identified by where they are computed."""

    trace: Trace = field(default_factory=Trace)
    over: Sequence[AccessPath] = ()
    numbers: Iterator[int] = field(default_factory=itertools.count)  # unused tensor numbers
    changed: frozenset[int] = frozenset()  # memory changed in place
    gathered: dict[AccessPath, int] = field(default_factory=dict)  # number read of all trees -> its tensor
    read: dict[Fetch, list[Any]] = field(default_factory=dict)  # the recorded numbers

    def taken(self, number: int, after: int) -> int:
        """Return 0: nothing that iterations fetch is changed later, so the time of a fetch does not matter."""
        return 0

    def column(self, refs: Sequence[int], taken: int) -> int:
        """See ExpressionMerger. Raises NotMergeable for memory changed in place."""
        column = Column(self.made[refs[0]][1], taken)
        if column not in self.columns:
            memory = self.trace.memory
            if len(self.columns) == MOST or not self.changed.isdisjoint(memory[ref] for ref in refs):
                raise NotMergeable("recursion-entry-loop", "an iteration writes a tensor that is changed elsewhere")
            self.columns[column] = next(self.numbers)
        return self.columns[column]

    def is_own(self, stack: int) -> bool:
        """Whether the rows of this column leave the call as tensors of their own."""
        return any(column.taken < 0 for column, known in self.columns.items() if known == stack)

    def merged(self, row: Sequence[Any]) -> Any:
        """See ExpressionMerger. What each iteration reads of its own tree is fetched from a tensor that the host
        makes."""
        if not all(isinstance(expr, Read) for expr in row) or len({expr.token for expr in row}) == 1:
            return ExpressionMerger.merged(self, row)
        for base in self.over:
            along = column_along(self.trace, base.token, row)
            if along is not None and along.kind is int:  # floats might be rounded
                access_path = base.then(Step.OF, along)
                if access_path not in self.gathered:
                    self.gathered[access_path] = next(self.numbers)
                fetch = Fetch(self.gathered[access_path], self.positions[-1], int, None, True)
                found = {e.access_path.token: e.value for e in self.trace.events if isinstance(e, HeapRead)}
                self.listed[fetch], self.read[fetch] = [], [found[one.access_path.token] for one in row]
                return Apply(pick, (fetch, InductionVariable(0, 1)))
        raise NotMergeable("recursion-entry-loop", "an iteration writes a number that is none of its tree's")

    def values(self, fetch: Fetch, fetched: Mapping[Any, Any]) -> list[Any]:
        """See ExpressionMerger."""
        return self.read[fetch] if fetch in self.read else ExpressionMerger.values(self, fetch, fetched)


class LoopEffects:
    """One loop in the form that ``MergedTrace`` takes: ``events`` by iteration; ``made``: tensor -> (iteration, index
    among the tensors that iterations compute); ``columns``: stacked tensor -> the tensors of all iterations."""

    trains = False

    def __init__(self, trace: Trace, loop: EntryCallLoop, numbers: Iterator[int], changed: frozenset[int]) -> None:
        self.end, self.count = loop.end, len(loop.starts)
        self.events = [trace.events[a:b] for a, b in loop.spans]
        first = trace.events[loop.ops[0][0]]
        assert isinstance(first, Op)
        self.modes = first.modes
        orders: dict[Any, int] = {}
        self.made: dict[int, tuple[int, int]] = {}
        for number, keyed in enumerate(loop.keyed):
            for key, position in keyed.items():
                for which, ref in enumerate(trace.events[position].outs):  # type: ignore[union-attr]
                    self.made.setdefault(ref.number, (number, orders.setdefault((key, which), len(orders))))
        past = op_counts(trace.events)
        lengths = [e.access_path for e in trace.events if isinstance(e, HeapRead) and e.access_path.step is Step.LEN]
        alike = [o for o in lengths if o.base in loop.over]
        counted = [o for o in lengths if _value(trace, o) == self.count and o.base is not None]
        self._lengths = list(dict.fromkeys(alike))
        self.exprs = _IterationExpressions(
            self.made, [past[limit] for limit in loop.limits], (), Read(self._lengths[0]), -1, 0,
            trace=trace, over=list(dict.fromkeys((*loop.over, *(o.base for o in counted if o.base is not None)))),
            numbers=numbers, changed=changed,
        )  # fmt: skip
        effects = [[e for e in events if isinstance(e, Effectful)] for events in self.events]
        if any(isinstance(event, BatchedExtern) for events in effects for event in events):
            raise NotMergeable("recursion-entry-loop", "an iteration calls native code several times")
        self.effect_merger = EffectMerger(trace, self.exprs, effects)

    @property
    def columns(self) -> dict[int, list[int]]:
        by_place = {place: tensor for tensor, place in self.made.items()}
        return {
            stack: [by_place[number, column.order] for number in range(self.count)]
            for column, stack in self.exprs.columns.items()
        }

    @property
    def lists(self) -> list[AccessPath]:
        """The lists from whose elements the host gathers numbers."""
        return list(
            dict.fromkeys(access_path.base for access_path in self.exprs.gathered if access_path.base is not None)
        )

    def conditions(self, place: Place) -> Iterator[NumberPredicate]:
        """Yield the conditions for the trip count to be the length of each list, and at least one."""
        count = self.exprs.count
        yield NumberPredicate(Apply(operator.ge, (count, 1)), True, place)
        for length in dict.fromkeys((*self._lengths[1:], *(access_path.then(Step.LEN) for access_path in self.lists))):
            if Read(length).token != count.token:
                yield NumberPredicate(Apply(operator.eq, (count, Read(length))), True, place)

    @property
    def merged(self) -> bool:
        """Whether the iterations do anything beside their calls."""
        return bool(self.exprs.listed or self.exprs.columns or self.effect_merger.each)


class _MergedIterations(MergedTrace):
    """Leaves lists of tensors of iterations alone: they are rows already (see ``output_lists``)."""

    def _items(self, items: Sequence[Any]) -> Sequence[Any]:
        return items if all(isinstance(item, TensorOf) for item in items) else super()._items(items)


def merged_beside(
    trace: Trace, loops: Sequence[EntryCallLoop], numbers: Iterator[int]
) -> tuple[Trace, list[LoopEffects]]:
    """Return the trace with what iterations do beside their calls merged into host operations, and its loops. The
    iterations' own writes and extern calls stay in place. Raises NotMergeable."""
    inside = [event for loop in loops for event in trace.events[loop.starts[0] : loop.end]]
    changed = frozenset(_changed(trace))
    beside = [LoopEffects(trace, loop, numbers, changed) for loop in loops]
    merged = _MergedIterations(trace, beside)
    if not any(one.merged for one in beside):
        return trace, beside
    events = [merged.computed.get(id(event), event) for event in trace.events]
    made = {number for one in beside for number in one.made}
    fetched = {token: value for token, value in trace.fetched.items() if token[1] not in made}
    fetched.update((fetch.token, values) for fetch, values in merged.fetched())
    return replace(
        trace,
        events=events,
        result=merged.result,
        recipes=merged.recipes,
        fetched=fetched,
        alive=[*trace.alive, trace, inside],
    ), beside


def _changed(trace: Trace) -> Iterator[int]:
    """Yield the memory of tensors changed in place."""
    met = set(trace.access_paths)
    for event in trace.events:
        if isinstance(event, Op):
            yield from (trace.memory[ref.number] for ref in event.outs if ref.number in met)
            met.update(ref.number for ref in event.outs)


def _value(trace: Trace, access_path: AccessPath) -> Any:
    """Return the recorded value at the path."""
    return next(
        event.value for event in trace.events if isinstance(event, HeapRead) and event.access_path == access_path
    )

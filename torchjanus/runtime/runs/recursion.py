"""When the recursive calls of a function are watched each for itself, and what was learnt of them.

As long as a recursion takes the same short path in each run, it is unrolled like any other calls. Knows nothing of
entries.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

from torchjanus.core.errors import Refusal, Refused
from torchjanus.graph.recursion.entry_loops.loops import RootLoops
from torchjanus.graph.recursion.entry_loops.output_lists import grown
from torchjanus.graph.recursion.grouping.variants import VariantTable
from torchjanus.graph.recursion.traversal.recognition import Recogniser
from torchjanus.semantics.calls.recursions import Recursions
from torchjanus.trace.actions import Invoked, InvokedEach
from torchjanus.trace.events import Trace
from torchjanus.trace.recipes import TensorOf, parts_of

__all__ = ["Recursion"]

MANY = 2000  # events of a run: making one graph of it would take longer than anybody waits


class Recursion:
    """Of one speculated function. ``functions``: what watching knows; ``variant_table``: the variants that were
    seen."""

    def __init__(self) -> None:
        self.functions = Recursions()
        self.variant_table = VariantTable()
        self.functions.take = self.variant_table.take
        self.functions.recogniser = self._recogniser
        self.functions.as_rows = functools.partial(grown, inner=True)
        self._recognisers: dict[frozenset[int], Recogniser] = {}
        self._matchers: dict[int, Any] = {}  # the code by which calls are recognised, by the numbers of ways
        self._unrolled: dict[types.CodeType, Any] = {}  # paths seen of runs in which functions called themselves
        self._learnt = 0
        self._loops = RootLoops()
        self._reported: set[types.CodeType] = set()

    def unsuited(self) -> list[Refusal]:
        """Why functions that call themselves are unrolled all the same: those not yet told."""
        new = [refusal for code, refusal in self.functions.unsuited.items() if code not in self._reported]
        self._reported.update(self.functions.unsuited)
        return new

    def counted(self) -> list[str]:
        """Which numbers calls were seen to count in the last run, for the first time."""
        new, self.functions.counted = self.functions.counted, []
        return new

    def discover(self, trace: Trace) -> list[str]:
        """Take in a run in which recursive calls were unrolled. Returns the functions that are watched call by call
        from now on: another run of them took another path, or the run is too long to be a graph of its own."""
        fresh, self.functions.fresh = self.functions.fresh, []
        if fresh:
            return fresh
        settled = self.functions.refused | self.functions.known.keys()
        new = {code: fixed for code, fixed in trace.recursive.items() if code not in settled}
        if not new:
            return []
        path = trace.tokens()
        known = [self._unrolled.setdefault(code, path) for code in new]
        alike = all(before == path for before in known) and len(trace.events) < MANY
        return [] if alike else self.functions.add(new)

    def _recogniser(self, world: Mapping[Any, Any]) -> Recogniser | None:
        variants = self.variant_table.holding(world)
        numbers = frozenset(variant.number for own in variants.values() for variant in own)
        if numbers and numbers not in self._recognisers:
            self._recognisers = {numbers: Recogniser(variants, self._matchers)}  # the variants are learnt one by one
        return self._recognisers.get(numbers)

    def learn(self, trace: Trace) -> bool:
        """Take in the recursive calls of a run. Returns whether ways have been seen since this was last asked. Raises
        Refused."""
        self.variant_table.learn(trace)
        before, self._learnt = self._learnt, self.variant_table.version
        return self._learnt != before

    def merged(self, trace: Trace) -> Trace:
        """The run with what its calls give as rows, of any number, as far as it can be told so. Raises Refused."""
        made = self.functions.made
        rooted = self._loops.merged(trace, made)
        if rooted is not trace:
            try:
                merged = grown(rooted, made)
                self.variant_table.learn(rooted)
            except Refused:
                pass  # it is told with as many calls as there were
            else:
                if not self._shows_shared(rooted):
                    return merged
        return grown(trace, made)

    def _shows_shared(self, trace: Trace) -> bool:
        """Whether elements of lists leave the run that may be views of what all calls share: rows are copies."""
        parts = [part for recipe in trace.all_recipes() for part in parts_of(recipe)]
        left = {part.ref.number for part in parts if isinstance(part, TensorOf)}
        calls = [event for event in trace.events if isinstance(event, InvokedEach)]
        shown = (event for event in calls if any(ref.number in left for _, refs in event.grown for ref in refs))
        return any(map(self.variant_table.shows, shown))

    def unroll(self) -> list[str]:
        """Watch fewer calls for themselves, or none any more. Returns the functions whose calls those are."""
        return [code.co_qualname for code in self.functions.unroll()]

    @staticmethod
    def refusal(trace: Trace) -> Refusal | None:
        """Why the recursive calls of a run cannot be run many at a time, if they cannot."""
        waiting = [event for event in trace.events if isinstance(event, Invoked)]
        while waiting:
            call = waiting.pop().call
            if call.refusals:
                first: Refusal = call.refusals[0]
                return first
            waiting.extend(event for event in call.events if isinstance(event, Invoked))
        return None

"""Decides which recursive functions are watched call by call, and keeps what is known of their calls.

A recursion that takes the same short path in each run is unrolled like other calls. This module does not know entries.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

from torchjanus.core.errors import Place, Refusal, Refused
from torchjanus.core.kinds import isinstance
from torchjanus.graph.recursion.entry_loops.loops import MERGE_ENTRY_CALLS, RECURSION, EntryCallLoops
from torchjanus.graph.recursion.entry_loops.output_lists import STACK_OUTPUT_LISTS, output_lists_as_rows
from torchjanus.graph.recursion.grouping.variants import VariantTable
from torchjanus.graph.recursion.traversal.matching import VariantMatcher
from torchjanus.semantics.calls.recursions import Recursions
from torchjanus.trace.actions import InvokeEachOp, InvokeOp
from torchjanus.trace.events import Trace

__all__ = ["Recursion"]

MANY = 2000  # events of a run: making one graph of a longer one takes too long


class Recursion:
    """The recursive calls of one speculated function. ``functions``: what watching uses; ``variant_table``: the
    variants seen."""

    def __init__(self) -> None:
        self.functions = Recursions()
        self.variant_table = VariantTable()
        self.functions.take = self.variant_table.take
        self.functions.variant_matcher = self._variant_matcher
        self.functions.as_rows = functools.partial(output_lists_as_rows, inner=True)
        self._recognisers: dict[frozenset[int], VariantMatcher] = {}
        self._matchers: dict[int, Any] = {}  # the code that matches calls, by the numbers of variants
        self._unrolled: dict[types.CodeType, Any] = {}  # paths of runs in which a function called itself
        self._learnt = 0
        self._loops = EntryCallLoops()
        self._reported: set[types.CodeType] = set()

    def unsuited(self) -> list[Refusal]:
        """Return the reasons, not yet reported, for unrolling functions that call themselves."""
        new = [refusal for code, refusal in self.functions.unsuited.items() if code not in self._reported]
        self._reported.update(self.functions.unsuited)
        return new

    def counted(self) -> list[str]:
        """Return the numbers that calls were first seen to count in the last run."""
        new, self.functions.counted = self.functions.counted, []
        return new

    def discover(self, trace: Trace) -> list[str]:
        """Record a run in which recursive calls were unrolled. Returns the functions that are watched call by call from
        now on: those of which another run took another path, or the run is too long for a graph of its own."""
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

    def _variant_matcher(self, world: Mapping[Any, Any]) -> VariantMatcher | None:
        """Return the matcher of the variants that apply in this ``world``; None if there are none."""
        variants = self.variant_table.holding(world)
        numbers = frozenset(variant.number for own in variants.values() for variant in own)
        if numbers and numbers not in self._recognisers:
            self._recognisers = {numbers: VariantMatcher(variants, self._matchers)}  # variants become known one by one
        return self._recognisers.get(numbers)

    def learn(self, trace: Trace) -> bool:
        """Record the recursive calls of a run. Returns whether there are new variants since the last time. Raises
        Refused."""
        self.variant_table.learn(trace)
        before, self._learnt = self._learnt, self.variant_table.version
        return self._learnt != before

    def merged(self, trace: Trace) -> Trace:
        """Return the run with the results of its calls as rows, of any number, if that is possible. Raises Refused."""
        made = self.functions.made
        RECURSION.begin(trace)
        rooted = MERGE_ENTRY_CALLS.gave(self._loops.merged(trace, made))
        if rooted is not trace:
            try:
                merged: Trace = STACK_OUTPUT_LISTS(rooted, made)
                self.variant_table.learn(rooted)
            except Refused:
                pass  # then the trace keeps the number of calls of this run
            else:
                if not self._shows_shared(rooted):
                    return merged
        stacked: Trace = STACK_OUTPUT_LISTS(trace, made)
        return stacked

    def _shows_shared(self, trace: Trace) -> bool:
        """Whether list elements that leave the run may be views of something that all calls share: rows are copies."""
        left = trace.leaving()
        calls = [event for event in trace.events if isinstance(event, InvokeEachOp)]
        shown = (event for event in calls if any(ref.number in left for _, refs in event.grown for ref in refs))
        return any(map(self.variant_table.shows, shown))

    def batches(self, place: Place) -> bool:
        """Whether the place lies in a function whose calls are run many at a time."""
        codes = (code for code in self.functions.known if code.co_filename == place.file)
        return any(place.line in (line for _, _, line in code.co_lines()) for code in codes)

    def unroll(self) -> list[str]:
        """Watch fewer functions call by call. Returns those that are unrolled from now on."""
        return [code.co_qualname for code in self.functions.unroll()]

    @staticmethod
    def refusal(trace: Trace) -> Refusal | None:
        """Return why the recursive calls of a run cannot be batched; None if they can."""
        waiting = [event for event in trace.events if isinstance(event, InvokeOp)]
        while waiting:
            call = waiting.pop().call
            if call.refusals:
                first: Refusal = call.refusals[0]
                return first
            waiting.extend(event for event in call.events if isinstance(event, InvokeOp))
        return None

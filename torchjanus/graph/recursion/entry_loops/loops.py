"""Merges loops of a step over its trees into one call for each tree, since mini-batches differ in the number of trees.

A rewriting of traces. Each iteration appends its outputs to lists, which the step uses as a whole: sums over the
iterations are sums of such a list. The number of elements is a dynamic size (see ``output_lists``). Independent of how
calls are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.core.errors import Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.ir.passes import Part, Pass, PassList, Stage
from torchjanus.graph.loops.rewrites.accumulators import functional_accumulators
from torchjanus.graph.recursion.entry_loops.carried import carries_nothing
from torchjanus.graph.recursion.entry_loops.emit import EntryLoopRewriter
from torchjanus.graph.recursion.entry_loops.finding import EntryCallLoop, loop_of
from torchjanus.graph.recursion.entry_loops.index import picked_from, picks_at
from torchjanus.graph.recursion.entry_loops.output_lists import STACK_OUTPUT_LISTS
from torchjanus.trace.actions import HostLoop, InvokeEachOp, InvokeOp
from torchjanus.trace.events import Trace

__all__ = ["MERGE_ENTRY_CALLS", "RECURSION", "EntryCallLoops"]

LEAST = 3  # minimum trip count of the first run that merges a loop


class EntryCallLoops:
    """What all runs have shown of such loops: by place, the lists it iterates over and its sums."""

    def __init__(self) -> None:
        self._known: dict[Place, tuple[Any, tuple[tuple[Place, int], ...]]] = {}
        self._more: set[Any] = set()  # writes and results of iterations that do more than make calls
        self._variants: dict[Place, Any] = {}  # path that all iterations take, if values may be loop-carried
        # Sizes of the program's own containers where it read them, by trip count.
        self._held: dict[Any, dict[int, int]] = {}

    def merged(self, trace: Trace, made: Any) -> Trace:
        """Return the trace with loops over trees as calls; itself without any. ``made``: see ``unseen``."""
        first = next((event for event in trace.events if isinstance(event, InvokeOp)), None)
        if first is None or trace.failures:
            return trace
        ranges = [
            (loop_record.starts[0], loop_record.end)
            for loop_record in trace.loop_records
            if loop_record.starts and loop_record.end is not None
        ]
        own = functional_accumulators(trace, ranges)
        try:
            loops = list(self._loops(own))
            if not loops:
                return trace
            free = [self._is_free(own, loop) for loop in loops]  # no short circuit: each records what it sees
            if not all(free):
                return trace
            rooted = EntryLoopRewriter(own, loops, made)
            result = rooted.trace()
            self._check_variants(loops, result)
            if rooted.does_more:
                self._check_more(loops, result)
        except NotMergeable as error:
            trace.remarks.note(first.place, error.reason, error.detail)
            return trace
        trace.remarks.merged(first.place)
        for loop in loops:
            if len(loop.starts) >= LEAST:
                self._known.setdefault(loop.place, ([o.token for o in loop.over], loop.sums))
        return result

    def _check_variants(self, loops: Sequence[EntryCallLoop], merged: Trace) -> None:
        """Raise NotMergeable if iterations take different paths and values may be loop-carried."""
        calls = (event for event in merged.events if isinstance(event, InvokeEachOp))
        for loop, event in zip(loops, calls, strict=True):
            if not carries_nothing(loop.place):
                variants = {self._variants.setdefault(loop.place, one.call.tokens()) for one in event.iterations[:1]}
                if variants != {one.call.tokens() for one in event.iterations}:
                    raise NotMergeable("recursion-entry-loop", "calls of the trees take different paths")

    def _check_more(self, loops: Sequence[EntryCallLoop], merged: Trace) -> None:
        """Raise NotMergeable if iterations do more than make calls and no run of enough iterations has shown it."""
        each = (event.token for event in merged.events if isinstance(event, HostLoop))
        recipes = (recipe.token for some in merged.recipes.values() for recipe in some)
        what = (*each, *recipes, None if merged.result is None else merged.result.token)
        if all(len(loop.starts) >= LEAST for loop in loops):
            self._more.add(what)
        elif what not in self._more:
            raise NotMergeable("recursion-entry-loop", "only one length of the list has been seen")

    def _is_free(self, trace: Trace, loop: EntryCallLoop) -> bool:
        """Whether the sizes of the program's own containers do not depend on the trip count."""
        free = True
        sizes_read = [one for one in trace.counted if one[0] > loop.starts[0]]
        sizes_read += [
            (loop_record.end, trace.events[loop_record.end].place, len(loop_record.starts))
            for loop_record in trace.loop_records
            if loop_record.own
            and loop_record.starts
            and loop_record.end is not None
            and loop_record.starts[0] > loop.end
        ]
        for number, (_, place, held) in enumerate(sizes_read):
            known = self._held.setdefault((loop.place, place, number), {})
            known[len(loop.starts)] = held if known.get(len(loop.starts), held) == held else -1
            free &= len(known) > 1 and len(set(known.values())) == 1 and held >= 0
        return free

    def _loops(self, trace: Trace) -> Iterator[EntryCallLoop]:
        """Yield the outermost loops over lists whose iterations make recursive calls."""
        ended = 0
        loop_record = [one for one in trace.loop_records if one.starts and one.end is not None]
        for one in sorted(loop_record, key=lambda one: (one.starts[0], -(one.end or 0))):
            assert one.end is not None
            if one.starts[0] < ended:
                continue
            inside = trace.events[one.starts[0] : one.end]
            if not any(isinstance(event, InvokeOp) for event in inside):
                continue
            place = trace.events[one.end].place
            picked: list[AccessPath] = []
            picks = picks_at(place) if one.given == [(token_of(n),) for n in range(len(one.starts))] else None
            if picks is not None:
                found = picked_from(trace, picks, one.starts, one.end)
                if found is None:
                    continue
                picked = found
            elif one.over is not None or len(set(one.given)) > 1:
                continue  # the iteration depends on its index
            known = self._known.get(place)
            if known is None and len(one.starts) < LEAST:
                continue
            sums = None if known is None else known[1]
            loop = loop_of(trace, place, tuple(one.starts), one.end, sums, picked)
            if loop is None or (known is not None and [o.token for o in loop.over] != known[0]):
                continue
            ended = one.end
            loop.picks = frozenset(place for some in picks or () for place in some)
            yield loop


MERGE_ENTRY_CALLS = Pass(
    "merge_entry_calls",
    Stage.TRACE,
    EntryCallLoops.merged,
    "Makes a loop of a step over its trees one recursive call for each element of a list.",
    contextual=True,
)
RECURSION = PassList(Part.RECURSION, (MERGE_ENTRY_CALLS, STACK_OUTPUT_LISTS))

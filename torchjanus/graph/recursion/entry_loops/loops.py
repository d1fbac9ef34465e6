"""Loops of a step over its trees, told as one call for each tree: mini-batches differ in how many trees they have.

A rewriting of traces. What each iteration computes it appends to lists, of which the step goes on with all: sums over
the iterations are sums of such a list. How many elements there are is a size like any other (see ``grown``). Knows
nothing of how calls are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.core.errors import Place
from torchjanus.graph.ir.passes import Part, Pass, PassList, Stage
from torchjanus.graph.loops.rewrites.accumulators import apart
from torchjanus.graph.recursion.entry_loops.carried import carries_nothing
from torchjanus.graph.recursion.entry_loops.emit import Rooted
from torchjanus.graph.recursion.entry_loops.finding import LoopOfRoots, loop_of
from torchjanus.graph.recursion.entry_loops.index import picked_from, picks_at
from torchjanus.graph.recursion.entry_loops.iterations import UnlikeRoots
from torchjanus.graph.recursion.entry_loops.output_lists import STACK_OUTPUT_LISTS
from torchjanus.trace.actions import Each, Invoked, InvokedEach
from torchjanus.trace.events import Trace

__all__ = ["MERGE_ENTRY_CALLS", "RECURSION", "RootLoops"]

LEAST = 3  # iterations that must have been seen once, alike


class RootLoops:
    """What is known of such loops over all runs: by place, what each goes over and which of its operations are sums."""

    def __init__(self) -> None:
        self._known: dict[Place, tuple[Any, tuple[tuple[Place, int], ...]]] = {}
        self._more: set[Any] = (
            set()
        )  # what iterations that do more than to call write, and give to what comes after them
        self._variants: dict[Place, Any] = {}  # what iterations do that can know of each other: all the same
        # How much containers of the program's own held where it asked them, by how many iterations there were.
        self._held: dict[Any, dict[int, int]] = {}

    def merged(self, trace: Trace, made: Any) -> Trace:
        """The run with its loops over trees as calls; itself where there are none. ``made``: see ``unseen``."""
        if not any(isinstance(event, Invoked) for event in trace.events) or trace.failures:
            return trace
        ranges = [
            (loop_record.starts[0], loop_record.end)
            for loop_record in trace.loop_records
            if loop_record.starts and loop_record.end is not None
        ]
        own = apart(trace, ranges)
        try:
            loops = list(self._loops(own))
            if not loops:
                return trace
            free = [self._is_free(own, loop) for loop in loops]  # each is to be asked
            if not all(free):
                return trace
            rooted = Rooted(own, loops, made)
            result = rooted.trace()
            self._check_variants(loops, result)
            if rooted.does_more:
                self._check_more(loops, result)
        except UnlikeRoots:
            return trace
        for loop in loops:
            if len(loop.starts) >= LEAST:
                self._known.setdefault(loop.place, ([o.token for o in loop.over], loop.sums))
        return result

    def _check_variants(self, loops: Sequence[LoopOfRoots], merged: Trace) -> None:
        """Raises UnlikeRoots where iterations do different things, and may know of each other."""
        calls = (event for event in merged.events if isinstance(event, InvokedEach))
        for loop, event in zip(loops, calls, strict=True):
            if not carries_nothing(loop.place):
                variants = {self._variants.setdefault(loop.place, one.call.tokens()) for one in event.iterations[:1]}
                if variants != {one.call.tokens() for one in event.iterations}:
                    raise UnlikeRoots

    def _check_more(self, loops: Sequence[LoopOfRoots], merged: Trace) -> None:
        """Raises UnlikeRoots where iterations do more than to call, and too few of them say what that is."""
        each = (event.token for event in merged.events if isinstance(event, Each))
        recipes = (recipe.token for some in merged.recipes.values() for recipe in some)
        what = (*each, *recipes, None if merged.result is None else merged.result.token)
        if all(len(loop.starts) >= LEAST for loop in loops):
            self._more.add(what)
        elif what not in self._more:
            raise UnlikeRoots

    def _is_free(self, trace: Trace, loop: LoopOfRoots) -> bool:
        """Whether what the program's own containers hold has nothing to do with how many iterations there are."""
        free = True
        asked = [one for one in trace.counted if one[0] > loop.starts[0]]
        asked += [
            (loop_record.end, trace.events[loop_record.end].place, len(loop_record.starts))
            for loop_record in trace.loop_records
            if loop_record.own
            and loop_record.starts
            and loop_record.end is not None
            and loop_record.starts[0] > loop.end
        ]
        for number, (_, place, held) in enumerate(asked):
            known = self._held.setdefault((loop.place, place, number), {})
            known[len(loop.starts)] = held if known.get(len(loop.starts), held) == held else -1
            free &= len(known) > 1 and len(set(known.values())) == 1 and held >= 0
        return free

    def _loops(self, trace: Trace) -> Iterator[LoopOfRoots]:
        """The outermost loops over lists in whose iterations calls are made."""
        ended = 0
        loop_record = [one for one in trace.loop_records if one.starts and one.end is not None]
        for one in sorted(loop_record, key=lambda one: (one.starts[0], -(one.end or 0))):
            assert one.end is not None
            if one.starts[0] < ended:
                continue
            inside = trace.events[one.starts[0] : one.end]
            if not any(isinstance(event, Invoked) for event in inside):
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
                continue  # an iteration knows which it is
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
    RootLoops.merged,
    "Makes a loop of a step over its trees one recursive call for each element of a list.",
    contextual=True,
)
RECURSION = PassList(Part.RECURSION, (MERGE_ENTRY_CALLS, STACK_OUTPUT_LISTS))

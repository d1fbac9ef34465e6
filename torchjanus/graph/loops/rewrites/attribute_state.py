"""Moves writes of a tensor to an attribute in each iteration (``self.h = self.cell(x, self.h)``) behind the loop.

A commit makes all writes at once, so only that of the last iteration matters; behind the loop it is one write of a
loop-carried value. (Numbers are merged as recurrences.) A rewriting of traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchjanus.graph.generalize.dead_stores import overwritten
from torchjanus.graph.loops.analysis.tensor_termination import terminated_loops
from torchjanus.trace.actions import HeapWrite, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.records import LoopInstance, TensorTermination
from torchjanus.trace.operations import op_count
from torchjanus.trace.recipes import ExistingObject, TensorOf
from torchjanus.trace.rewriting import TraceRewriter

__all__ = ["sink_attribute_writes"]


def sink_attribute_writes(trace: Trace) -> Trace:
    """Return the trace with such writes behind its loops; the trace itself if there are none."""
    loops = [*_outermost(trace), *terminated_loops(trace)]
    if not any(isinstance(event, HeapWrite) for one in loops for event in trace.events[one.starts[0] : one.end]):
        return trace
    dead = overwritten(trace)
    gone: set[int] = set()
    behind: dict[int, list[int]] = {}
    for instance in loops:
        for positions in _rows(trace, instance):
            *earlier, last = positions
            if gone.isdisjoint(positions) and all(id(trace.events[position]) in dead for position in earlier):
                gone.update(positions)
                if id(trace.events[last]) not in dead:
                    behind.setdefault(instance.end, []).append(last)
    return _SinkingRewriter(trace).trace(gone, behind) if gone else trace


def _outermost(trace: Trace) -> Iterator[LoopInstance]:
    """Yield the outermost loops within which no tensor decides anything, since a write of an iteration may depend on
    that. (The predicate that ends a loop is the same in all iterations.)"""
    end = -1
    for instance in sorted(trace.loop_instances, key=lambda one: one.starts[:1]):
        if len(instance.starts) < 2 or isinstance(instance.count, TensorTermination) or instance.starts[0] < end:
            continue
        end = instance.end
        if not any(instance.starts[0] <= position < end for position in trace.changed):
            yield instance


def _rows(trace: Trace, instance: LoopInstance) -> Iterator[list[int]]:
    """Yield the positions of writes of tensors to one location, one in each iteration."""
    places: dict[Any, list[int]] = {}
    for position in range(instance.starts[0], instance.end):
        event = trace.events[position]
        if isinstance(event, HeapWrite) and _may_wait(trace.recipes.get(id(event), ())):
            places.setdefault(event.token, []).append(position)
    for positions in places.values():
        counts = [sum(a <= position < b for position in positions) for a, b in instance.spans]
        given = [recipe for at in positions for recipe in trace.recipes[id(trace.events[at])]]
        found = {recipe.token for recipe in given if isinstance(recipe, ExistingObject)}  # the same in all iterations
        if set(counts) == {1} and (
            not found or (len(found) == 1 and all(isinstance(r, ExistingObject) for r in given))
        ):
            yield positions


def _may_wait(recipes: tuple[Any, ...]) -> bool:
    """Whether a tensor is written: one of the run, or one from before it (a buffer of an optimizer)."""
    return bool(recipes) and all(isinstance(recipe, TensorOf | ExistingObject) for recipe in recipes)


class _SinkingRewriter(TraceRewriter):
    def trace(self, gone: set[int], behind: dict[int, list[int]]) -> Trace:
        """Return the new trace. ``gone``: positions of removed writes. ``behind``: end of a loop -> the writes that
        follow it."""
        old = self.old

        def step(position: int, event: Any, after: int) -> Iterator[Any]:
            if position not in gone:
                yield self.event(event, after)
            after += isinstance(event, Op)
            yield from (self.event(old.events[one], after) for one in behind.get(position, ()))

        events, _, begins = self.walk(step)
        operations = op_count(old.events)
        events += (self.event(old.events[one], operations) for one in behind.get(len(old.events), ()))
        return self.made(events, **self.moved(begins))

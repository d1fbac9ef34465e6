"""Watch ``for`` loops whose trip count is a traced number or a size: record iterations and their untraced computations.

A loop can run for another trip count only if its untraced numbers are induction variables or recurrences: others are
unknown for iterations that were not seen.
"""

from __future__ import annotations

import builtins
import collections
import itertools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.core.errors import Place
from torchjanus.core.kinds import getattr, is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.protocols.falling_back import attempt
from torchjanus.semantics.record.rebinding import is_settled
from torchjanus.semantics.record.variables import OURS
from torchjanus.semantics.watch.loops.iteration_values import cut_by, is_added, is_back, is_statement
from torchjanus.semantics.watch.loops.loop_record import ActiveLoop
from torchjanus.semantics.watch.loops.trip_counts import TripCounts, count_of_range
from torchjanus.semantics.watch.loops.untraced import UntracedValues
from torchjanus.semantics.watch.loops.untraced_values import structure_of_call, structure_of_lookup
from torchjanus.semantics.watch.objects.container_reads import ContainerReads
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.events import LoopEnd
from torchjanus.trace.facts import NumberPredicate
from torchjanus.trace.loops.records import LoopInstance, LoopRecord
from torchjanus.trace.loops.recurrences import find_recurrences
from torchjanus.trace.loops.untraced_computations import counted, sums
from torchjanus.trace.values import Apply, Expr, Traced

__all__ = ["ForLoops"]

_PLAIN = (int, float, complex, str, bytes)
_HOLDERS = (list, dict, set, collections.deque)
_KEPT = frozenset({"append", "appendleft", "print"})  # their arguments are recorded as effects of the iteration
_CLASSES = (builtins.isinstance, callable, id, type)  # their result does not depend on a container's length
_PASSING = frozenset({"_combined_iterations", "_taken", "<genexpr>"})  # our generators that pass iterations on


def _without_reversed(counters: Sequence[tuple[int, int]], span: range | None) -> list[tuple[int, int]]:
    """Return the counters without those that decrease with a reversed induction variable: their last value does not
    depend on the trip count."""
    if span is None or not is_back(span):
        return list(counters)
    return [(first, step) for first, step in counters if step != -1 or abs(first - span.start) > 1]


def _is_program_iterating() -> bool:
    """Whether the program iterates, and no native code, which may hold loop-carried values in no variable."""
    frame: Any = sys._getframe(1)  # ``iterations`` at its first iteration
    names = []
    while (frame := frame.f_back) is not None and str(frame.f_globals.get("__name__", "")).startswith(OURS):
        names.append(frame.f_code.co_name)
    others = [name for name in names if name not in _PASSING]
    # ``_combined_iterations`` delegates to ``iterations``.
    return not others or (others == ["iterations"] and "_combined_iterations" in names[names.index("iterations") :])


class ForLoops(Part):
    """``for`` loops, and what native calls reveal of the lengths that they iterate over."""

    def __init__(self, state: WatchState, untraced: UntracedValues, reads: ContainerReads) -> None:
        super().__init__(state)
        self.untraced = untraced
        self.reads = reads
        self.over: Any = None  # the iterable of the loop that begins next
        self.trip_counts = TripCounts(state)
        self._combined: dict[
            int, tuple[Any, tuple[Any, ...]]
        ] = {}  # by id of an enumerate or zip: it, and its operands
        self._counts: dict[int, tuple[LoopRecord, Expr | None]] = {}  # by id of a loop's record: it, and its trip count

    def native_iter(self, at: Site, obj: Any) -> Any:
        self.at(at)
        over, self.over = self.over, None
        own = over is not None and self.recording.owner(over) is None and not self.untraced.in_library(at)
        iterator = iter(self.natives.iterable(obj))
        inner = is_one_of(type(over), (*_HOLDERS, tuple)) and self.untraced.in_library(at)
        if is_one_of(type(over), (enumerate, zip)) and id(over) in self._combined:
            return self._combined_iterations(at, self.recording.place, iterator, over)
        span = self.trip_counts.span(over)
        return self.iterations(
            self.recording.place,
            iterator,
            self.trip_counts.pinned(over, self.trip_counts.count(at, over)),
            span,
            own and span is None,
            self.recording.owner(over),
            inner=inner,
            unpinned=isinstance(over, torch.Tensor),
            at=at,
        )

    def iterations(
        self,
        place: Place,
        iterator: Iterator[Any],
        count: Expr | None = None,
        span: range | None = None,
        free: bool = False,
        access_path: AccessPath | None = None,
        alone: bool = True,
        inner: bool = False,
        unpinned: bool = False,
        at: Site | None = None,
    ) -> Iterator[Any]:
        """Yield the items of a loop and record its iterations. ``alone``: no other loop record covers them; ``at``: the
        loop, if the outline is to tell its iterations."""
        active_loop = self._attempt(
            self._begun, place, count, span, free, access_path, inner, unpinned, _is_program_iterating()
        )
        for item in iterator:
            if active_loop is not None and not self.framework.released:
                self._attempt(self._begin_iteration, active_loop, item, span)
            self.recording.turn(at)
            yield item
        if active_loop is not None:
            self._attempt(self.record_end, active_loop, count, alone)

    def _attempt(self, note: Callable[..., Any], *args: Any) -> Any:
        """Return what a note of a loop returns, None if torchjanus fails in it. The loop continues."""
        return attempt(self.recording, "in a loop", note, *args)

    def _begin_iteration(self, active_loop: ActiveLoop, item: Any, span: range | None) -> None:
        active_loop.begin(item if span is not None else None, tuple(self._unread_parts(item)))

    def _begun(
        self,
        place: Place,
        count: Expr | None,
        span: range | None,
        free: bool,
        access_path: AccessPath | None,
        inner: bool,
        unpinned: bool, has_full_state: bool,
    ) -> ActiveLoop:  # fmt: skip
        loop_record = LoopRecord(
            [],
            span,
            len(self.recording.trace.plain),
            own=free,
            access_path=access_path,
            count=count,
            inner=inner,
            unpinned=unpinned,
        )
        self.recording.trace.loop_records.append(loop_record)
        self._counts[id(loop_record)] = (loop_record, count)
        return ActiveLoop(
            self.recording, self.untraced.counters, place, loop_record, count is not None, span, has_full_state
        )

    def record_end(self, active_loop: ActiveLoop, count: Expr | None, alone: bool = True) -> None:
        """Record a loop that has run to its end. ``alone``: see ``iterations``."""
        trace, span = self.recording.trace, active_loop.loop_record.over
        active_loop.end(count)
        if count is None:
            trace.remarks.note(active_loop.place, "loop-sources", "it goes over something whose length is not followed")
        elif active_loop.starts and not is_settled(active_loop.changes[1:]):
            trace.remarks.note(
                active_loop.place, "loop-carried", "variables have not settled after the first iterations"
            )
        elif active_loop.starts:
            trace.loop_instances += self._counted(active_loop, count)
        if count is not None and not is_back(span) and alone:
            first = 0 if span is None else span.start
            whole = count.args[0] if first and isinstance(count, Apply) and count.func is operator.sub else count
            self.untraced.note_lengths(whole, first + len(active_loop.starts), active_loop.place)
        self.recording.note_behind_loops()

    def _unread_parts(self, item: Any, within: tuple[int, ...] = ()) -> Iterator[Any]:
        """Yield what an iteration is given and was not read from the heap: it may depend on the iteration index."""
        if isinstance(item, Traced | torch.Tensor) or self.recording.owner(item) is not None:
            return
        if is_one_of(type(item), (tuple, list)):
            if id(item) in within:  # a list may hold itself
                yield id(item)
                return
            for part in item:
                yield from self._unread_parts(part, (*within, id(item)))
        elif type(item) is not str or not self.recording.has_found_text(item):
            yield token_of(item) if is_one_of(type(item), _PLAIN) or item is None or type(item) is bool else id(item)

    def _counted(self, active_loop: ActiveLoop, count: Expr) -> Iterator[LoopInstance]:
        """Yield the loop instance of a loop that has ended, if its untraced numbers are induction variables or
        recurrences."""
        computed, starts, span = active_loop.computed(), active_loop.starts, active_loop.loop_record.over
        found, back = counted(computed[1:]), is_back(span)
        recurrences = find_recurrences(computed, back, active_loop.untraced_counts[0]) if found is None else None
        if found is None and recurrences is None:
            detail = "Python computes numbers in it that follow no formula of the index"
            self.recording.trace.remarks.note(active_loop.place, "loop-numbers", detail)
            return
        counters = () if span is None else ((span.start, span.step),)
        begins = 0 if span is None or back or span.step != 1 else span.start
        instance = LoopInstance(
            tuple(starts), len(self.recording.trace.events) - 1, count, counters,
            begins=begins, back=back, unpinned=active_loop.loop_record.unpinned,
        )  # fmt: skip
        if recurrences is not None:
            own = _without_reversed(sums(computed), span)
            yield replace(instance, counters=(*instance.counters, *own), recurrences=recurrences)
            return
        # The first iteration may differ in its untraced computations: it is peeled then.
        instance = instance if counted(computed) is not None else instance.without_first()
        if not instance.starts:
            return  # it was the only one
        own = _without_reversed(counted(computed[instance.skipped :]) or (), span)
        yield replace(instance, counters=(*instance.counters, *own))

    def _combined_iterations(self, at: Site, place: Place, iterator: Iterator[Any], over: Any) -> Iterator[Any]:
        """Yield the items of a loop over ``enumerate()`` or ``zip()``. Its trip count is known if all operands' are."""
        loop_record = LoopRecord([], None, 0)
        combined = self._attempt(self._combined_begun, at, place, iterator, over, loop_record)
        iterator, listed, watched = (iterator, [], False) if combined is None else combined
        first: list[Any] = []
        for item in iterator:
            self._attempt(self._begin_combined, loop_record, over, item, first)
            self.recording.turn(at)
            yield item
        if combined is not None:
            self._attempt(self._combined_ended, at, place, over, loop_record, listed, watched, first)

    def _combined_begun(
        self, at: Site, place: Place, iterator: Iterator[Any], over: Any, loop_record: LoopRecord
    ) -> tuple[Iterator[Any], list[Expr | None], bool]:
        """Return the iterator, the trip counts of the operands, and whether the first operand is watched as a loop."""
        trace = self.recording.trace
        listed = [
            self.trip_counts.count(at, part) if is_one_of(type(part), (list, tuple)) else None
            for part in self._gone_over(over)
        ]
        watched = bool(listed) and listed[0] is not None
        if watched:  # it ends the loop, and nothing else gives the trip count
            iterator = self.iterations(
                place, iterator, self.trip_counts.pinned(next(self._gone_over(over)), listed[0]), alone=False
            )
        loop_record.plain = len(trace.plain)
        trace.loop_records.append(loop_record)
        return iterator, listed, watched

    def _begin_combined(self, loop_record: LoopRecord, over: Any, item: Any, first: list[Any]) -> None:
        loop_record.starts.append(len(self.recording.trace.events))
        if type(over) is enumerate and type(item) is tuple:
            if not first:
                first.append(item[0])
            self.untraced.counters[id(loop_record)] = item[0]
        loop_record.given.append(tuple(self._unread_parts(item)))

    def _combined_ended(
        self, at: Site, place: Place, over: Any, loop_record: LoopRecord, listed: list[Expr | None], watched: bool,
        numbers: list[Any],
    ) -> None:  # fmt: skip
        trace, first = self.recording.trace, numbers[0] if numbers else None
        self.untraced.counters.pop(id(loop_record), None)
        self.recording.note(LoopEnd(len(loop_record.starts), place))
        loop_record.end = len(trace.events) - 1
        frames = trace.frames[-1] if trace.frames else None
        if (
            frames is not None
            and type(first) is int
            and list(frames.starts) == loop_record.starts
            and not frames.counters
        ):
            frames.counters = ((first, 1),)
        instance = trace.loop_instances[-1] if trace.loop_instances else None
        if instance is None or list(instance.starts) != loop_record.starts[instance.skipped :] or not instance.starts:
            return
        # With ``strict`` all operands are exhausted, and each has a loop instance.
        same = [known for known in trace.loop_instances if known.starts == instance.starts]
        instance = replace(same[-1], end=same[0].end) if watched else same[0]
        others = (known for known in trace.loop_instances if known.starts != instance.starts)
        trace.loop_instances[:] = [*others, instance]
        counts = self._counts_within(at, over, loop_record, watched)
        if counts is None:
            trace.loop_instances.pop()  # an unknown operand may end the loop
            return
        for count in counts[1:]:
            if count.token != counts[0].token:
                self.recording.note(NumberPredicate(Apply(operator.eq, (counts[0], count)), True, place))
        if listed and listed[0] is not None:
            self.untraced.note_lengths(listed[0], len(loop_record.starts), place)
        if type(first) is int:
            trace.loop_instances[-1] = replace(instance, counters=(*instance.counters, (first + instance.skipped, 1)))

    def _counts_within(self, at: Site, over: Any, loop_record: LoopRecord, watched: bool) -> list[Expr] | None:
        """Return the trip counts of all operands, None if one is unknown. ``watched``: the first operand has a loop
        record of its own."""
        parts = list(self._gone_over(over))
        within = [self.trip_counts.count(at, part) for part in parts if is_one_of(type(part), (list, tuple))]
        if len(within) < len(parts):
            known = [count for one, count in self._counts.values() if one.starts == loop_record.starts]
            within += known[int(watched) :]
        if len(within) != len(parts):
            return None
        return None if any(count is None for count in within) else [count for count in within if count is not None]

    def _gone_over(self, over: Any) -> Iterator[Any]:
        for part in self._combined[id(over)][1]:
            if is_one_of(type(part), (enumerate, zip)) and id(part) in self._combined:
                yield from self._gone_over(part)
            else:
                yield part

    def note_call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Record what a native call reveals of lengths, ranges and untraced numbers."""
        self.reads.note_call(fn, args, tuple(kwargs.values()))
        if fn is reversed or fn is itertools.pairwise:
            self.trip_counts.note_passing(args[0], result, less=int(fn is itertools.pairwise))
        elif fn is range and not kwargs and (known := count_of_range(args)) is not None:
            self.trip_counts.note_range(result, known)
        elif fn is enumerate or fn is zip:
            self._combined[id(result)] = (result, args if fn is zip else args[:1])
        elif isinstance(result, _PLAIN) and not isinstance(result, Traced) and not is_statement(at):
            structure = structure_of_lookup(fn, args, kwargs, self.untraced.kept) or structure_of_call(
                fn, args, kwargs, result, self.untraced.kept
            )
            self.untraced.note_untraced(at, *args, made=True, structure=structure)
            self.untraced.note_result(at, args, result)
            if fn not in _CLASSES:
                self.untraced.note_counted(at, args)
        elif fn is next or (isinstance(getattr(fn, "__self__", None), _HOLDERS) and not is_added(fn, args)):
            # Its result depends on the number of calls before it.
            self.untraced.note_untraced(
                at, *args, made=True, structure=structure_of_lookup(fn, args, kwargs, self.untraced.kept)
            )
        elif not isinstance(result, torch.Tensor) and not (is_statement(at) and getattr(fn, "__name__", "") in _KEPT):
            self.untraced.note_given(at, (*args, *kwargs.values()))
        if fn is len and args and not isinstance(args[0], torch.Tensor) and not isinstance(result, Traced):
            self.untraced.note_length(at, args[0])
        for holder in cut_by(fn, args, kwargs):
            self.untraced.note_length(at, holder)

"""Finds runs of one function that differ only in the trip counts of their loops. This module does not know entries."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.core.remarks import Remark
from torchjanus.graph.ir.passes import unobserved
from torchjanus.graph.loops.rewrites.fold import FoldDecision, FoldedTrace, fold_loops, one_iteration_form
from torchjanus.graph.switches.rewrites.fold import LoopMerger
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.records import KEPT

__all__ = ["TripCounts"]

MAX_PATHS = 16
MAX_VARIANTS = 256


@dataclass(slots=True)
class _Run:
    """A run, its trip counts, and for each loop a key of what precedes it."""

    trace: Trace
    cut: FoldedTrace
    loop_keys: list[int]


@dataclass(slots=True)
class _Within:
    """Trip counts of the loops within one iteration of a loop, over runs that are otherwise alike (``inner``), and of
    the loop itself (``counts``)."""

    inner: list[set[int]]
    counts: set[int] = field(default_factory=set)

    def take(self, count: int, inner: tuple[int, ...]) -> None:
        """Add one run."""
        self.counts.add(count)
        for known, number in zip(self.inner, inner, strict=True):
            known.add(number)

    def chosen(self, changing: bool) -> FoldDecision:
        """Return how the loop is folded. ``changing``: whether its trip count is known to vary. Inner loops of constant
        trip count are unrolled, since what follows a loop may depend on its trip count."""
        changes = [len(known) > 1 for known in self.inner]
        if not any(changes):
            return FoldDecision(changing, flat=bool(changes))
        held = frozenset(number for number, one in enumerate(changes) if not one)
        return FoldDecision(True, not changing and len(self.counts) < 2, within=held)


class TripCounts:
    """Keeps runs by what they are apart from trip counts."""

    def __init__(self) -> None:
        self._met: OrderedDict[Any, list[_Run]] = OrderedDict()
        self._within: OrderedDict[Any, list[_Within]] = OrderedDict()  # by the same keys
        self._counts: OrderedDict[int, set[int]] = OrderedDict()  # trip counts of each loop, by what precedes it
        # smallest trip counts of runs that are equal in the one-iteration form
        self._least: OrderedDict[Any, tuple[int, ...]] = OrderedDict()
        self._paths: dict[Any, Any] = {}  # keys of such runs after folding
        self._merger = LoopMerger()
        self._before: list[Trace] = []  # the latest runs in whose iterations tensors decided
        # such runs with the arms of their iterations merged
        self._merged: OrderedDict[Any, list[Trace]] = OrderedDict()

    def take(self, trace: Trace) -> list[Trace]:
        """Return the runs of the path of ``trace``, for all trip counts and for all decisions by tensors in iterations;
        empty if it is like no other run yet. See ``_cut``."""
        self._merger.learn(trace)
        merged = self._merger.merge(trace)
        if merged is trace:
            if self._merger.decides(trace):
                self._before = [*self._before[-3:], trace]
            return self._cut(trace)
        if (key := merged.tokens()) not in self._merged:
            with unobserved():
                self._take_earlier()
        self._before = [*self._before[-3:], trace]
        _keep(self._merged, key, [*self._merged.get(key, [])[-2:], merged], MAX_PATHS)
        return self._cut(merged) or self._merged[key]

    def _take_earlier(self) -> None:
        """Take in the runs before this one, whose loops may now be folded like those of this one."""
        for before in self._before:
            again = self._merger.merge(before)
            if again is not before:
                _keep(self._merged, again.tokens(), [*self._merged.get(again.tokens(), [])[-2:], again], MAX_PATHS)
                self._cut(again)

    def concerns(self, remark: Remark) -> bool:
        """Whether to report a remark: not if a loop was unrolled that has always had as many iterations."""
        return not remark.reason.startswith("loop-") or self._merger.changes(remark.place)

    def _cut(self, trace: Trace) -> list[Trace]:
        """Return the run and earlier ones of its path, folded for all trip counts; empty as long as the counts have not
        been seen to vary. For a run too short to be folded, the other runs of its path."""
        short, cut = one_iteration_form(trace), fold_loops(trace)
        key: Any = None
        if short is not None:
            known = self._least.get(short.tokens, short.counts)
            _keep(self._least, short.tokens, tuple(map(min, known, short.counts)), MAX_VARIANTS)
        if cut is not None:
            key = cut.trace.tokens()
            self._learn(key, _Run(trace, cut, cut.loop_keys()))
            if short is not None:
                self._paths[short.tokens] = key
                self._paths = {token: path for token, path in self._paths.items() if path in self._met}
        elif short is not None:
            key = self._paths.get(short.tokens)
        least = () if short is None else tuple(min(KEPT, count) for count in self._least[short.tokens])
        return list(self._runs(self._met.get(key, []), least, self._within.get(key, [])))

    def _learn(self, key: Any, run: _Run) -> None:
        _keep(self._met, key, [*self._met.get(key, [])[-2:], run], MAX_PATHS)
        known = self._within.get(key) or [_Within([set() for _ in inner]) for inner in run.cut.inner]
        for one, count, inner in zip(known, run.cut.counts, run.cut.inner, strict=True):
            one.take(count, inner)
        _keep(self._within, key, known, MAX_PATHS)
        for loop_key, count in zip(run.loop_keys, run.cut.counts, strict=True):
            _keep(self._counts, loop_key, self._counts.get(loop_key, set()) | {count}, MAX_VARIANTS)

    def _runs(self, met: list[_Run], least: tuple[int, ...], within: list[_Within]) -> list[Trace]:
        """Return the runs with those loops folded whose trip counts vary: what follows the other loops may depend on
        theirs."""
        if not met:
            return []
        last = met[-1]
        which = []
        for number, (loop_key, inner) in enumerate(zip(last.loop_keys, within, strict=True)):
            changes = len({run.cut.counts[number] for run in met}) > 1
            ended = last.cut.full[number] and len(self._counts.get(loop_key, ())) > 1
            chosen = inner.chosen(changes or ended)
            # What follows a loop that has always reached the same limit may depend on that limit.
            which.append(chosen if changes or not last.cut.open[number] else replace(chosen, held=chosen.cut))
        if not any(one.cut for one in which) and len({run.cut.lists for run in met}) < 2:
            return []
        found = []
        for run in met:
            same = all(
                one == other or chosen.cut
                for one, other, chosen in zip(run.cut.counts, last.cut.counts, which, strict=True)
            )
            whole = all(one == FoldDecision(True) for one in which)
            cut = run.cut if whole else fold_loops(run.trace, which) if same else None
            if cut is not None:
                cut.trace.leasts = tuple(cut.leasts(least))
                found.append(cut.trace)
        if any(one.flat or one.within for one in which):  # then runs may differ in what is unrolled
            found = [one for one in found if one.tokens() == found[-1].tokens()]
        return found


def _keep(known: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > most:
        known.popitem(last=False)

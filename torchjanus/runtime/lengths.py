"""Runs of one function that differ only in how often its loops went round. Knows nothing of entries."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from torchjanus.graph.choice_tell import Teller
from torchjanus.graph.loop_shorten import KEPT, Shortened, brief, shorten
from torchjanus.trace.events import Trace

__all__ = ["Lengths"]

MAX_PATHS = 16
MAX_WAYS = 256


@dataclass(slots=True)
class _Run:
    """A run, how many rounds its loops had, and what led to each."""

    trace: Trace
    cut: Shortened
    ways: list[int]


class Lengths:
    """Remembers runs by what they are apart from trip counts."""

    def __init__(self) -> None:
        self._met: OrderedDict[Any, list[_Run]] = OrderedDict()
        self._inner: OrderedDict[Any, tuple[frozenset[int], ...]] = OrderedDict()  # of the same, see ``_runs``
        self._counts: OrderedDict[int, set[int]] = OrderedDict()  # of each loop, by what led to it
        self._least: OrderedDict[Any, tuple[int, ...]] = OrderedDict()  # of runs that are the same in brief
        self._paths: dict[Any, Any] = {}  # what such runs are when they are cut down
        self._teller = Teller()
        self._before: list[Trace] = []  # the latest runs in whose rounds tensors decided
        self._told: OrderedDict[Any, list[Trace]] = OrderedDict()  # such runs with their rounds told alike

    def take(self, trace: Trace) -> list[Trace]:
        """The run, after earlier ones, as a path for all trip counts and for all that tensors decide in rounds of its
        loops; empty where it is like no other yet. See ``_cut``."""
        self._teller.learn(trace)
        told = self._teller.tell(trace)
        if told is trace:
            if self._teller.decides(trace):
                self._before = [*self._before[-3:], trace]
            return self._cut(trace)
        if (key := told.tokens()) not in self._told:
            for before in self._before:
                again = self._teller.tell(before)
                if again is not before:
                    _keep(self._told, again.tokens(), [*self._told.get(again.tokens(), [])[-2:], again], MAX_PATHS)
                    self._cut(again)
        self._before = [*self._before[-3:], trace]
        _keep(self._told, key, [*self._told.get(key, [])[-2:], told], MAX_PATHS)
        return self._cut(told) or self._told[key]

    def _cut(self, trace: Trace) -> list[Trace]:
        """The run cut down to a path for all trip counts, after earlier ones; empty as long as the counts have not been
        seen to change. Of a run too short to be cut down the others of its path."""
        short, cut = brief(trace), shorten(trace)
        key: Any = None
        if short is not None:
            known = self._least.get(short.tokens, short.counts)
            _keep(self._least, short.tokens, tuple(map(min, known, short.counts)), MAX_WAYS)
        if cut is not None:
            key = cut.trace.tokens()
            self._learn(key, _Run(trace, cut, cut.ways()))
            if short is not None:
                self._paths[short.tokens] = key
                self._paths = {token: path for token, path in self._paths.items() if path in self._met}
        elif short is not None:
            key = self._paths.get(short.tokens)
        least = () if short is None else tuple(min(KEPT, count) for count in self._least[short.tokens])
        return list(self._runs(self._met.get(key, []), least, self._inner.get(key, ())))

    def _learn(self, key: Any, run: _Run) -> None:
        _keep(self._met, key, [*self._met.get(key, [])[-2:], run], MAX_PATHS)
        known = self._inner.get(key, run.cut.inner)
        _keep(self._inner, key, tuple(a | b for a, b in zip(known, run.cut.inner, strict=True)), MAX_PATHS)
        for way, count in zip(run.ways, run.cut.counts, strict=True):
            _keep(self._counts, way, self._counts.get(way, set()) | {count}, MAX_WAYS)

    def _runs(self, met: list[_Run], least: tuple[int, ...], inner: tuple[frozenset[int], ...]) -> list[Trace]:
        """The runs with those loops cut down whose counts change: what comes after the others may depend on theirs.
        ``inner``: how many rounds the loops within theirs have had; if always as many, those are unrolled."""
        if not met:
            return []
        last = met[-1]
        changing = [
            len({run.cut.counts[number] for run in met}) > 1 or (full and len(self._counts.get(way, ())) > 1)
            for number, (way, full) in enumerate(zip(last.ways, last.cut.full, strict=True))
        ]
        flat = [len(some) == 1 for some in inner]
        changing = [one or len(some) > 1 for one, some in zip(changing, inner, strict=True)]
        if not any(changing) and len({run.cut.lists for run in met}) < 2:
            return []
        found = []
        for run in met:
            same = all(
                one == other or changes
                for one, other, changes in zip(run.cut.counts, last.cut.counts, changing, strict=True)
            )
            whole = all(changing) and not any(flat)
            cut = run.cut if whole else shorten(run.trace, changing, flat) if same else None
            if cut is not None:
                cut.trace.leasts = tuple(cut.leasts(least))
                found.append(cut.trace)
        return found


def _keep(known: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > most:
        known.popitem(last=False)

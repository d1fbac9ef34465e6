"""Runs of one function that differ only in how often its loops went round. Knows nothing of entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torchjanus.graph.loop_shorten import Brief, Shortened, brief, shorten
from torchjanus.trace.events import Trace

__all__ = ["Lengths"]

MAX_PATHS = 16
MAX_WAYS = 256


class Lengths:
    """Remembers runs by what they are apart from trip counts."""

    def __init__(self) -> None:
        self._met: OrderedDict[Any, list[Trace]] = OrderedDict()
        self._counts: OrderedDict[int, set[int]] = OrderedDict()  # of each loop, by what led to it
        self._least: OrderedDict[Any, tuple[int, ...]] = OrderedDict()  # of runs that are the same in brief
        self._paths: dict[Any, Any] = {}  # what such runs are when they are cut down

    def take(self, trace: Trace) -> list[Trace]:
        """The run cut down to a path for all trip counts, after earlier ones; empty as long as the counts have not been
        seen to change. Of a run too short to be cut down the others of its path."""
        short, cut = brief(trace), shorten(trace)
        if short is not None:
            self._learn_least(short)
        if cut is None:
            key = None if short is None else self._paths.get(short.tokens)
        else:
            key = cut.trace.tokens()
            self._learn(key, cut, short)
        runs = self._met.get(key, []) if self._changes(key) else []
        for run in runs:
            if short is not None:
                run.leasts = self._least[short.tokens]
        return list(runs)

    def _learn(self, key: Any, cut: Shortened, short: Brief | None) -> None:
        met = self._met.setdefault(key, [])
        self._met.move_to_end(key)
        met.append(cut.trace)
        del met[:-3]
        _bound(self._met, MAX_PATHS)
        if short is not None:
            self._paths[short.tokens] = key
            self._paths = {token: path for token, path in self._paths.items() if path in self._met}
        for way, count in zip(cut.ways(), cut.counts, strict=True):
            self._counts.setdefault(way, set()).add(count)
            self._counts.move_to_end(way)
            _bound(self._counts, MAX_WAYS)

    def _learn_least(self, short: Brief) -> None:
        known = self._least.get(short.tokens, short.counts)
        self._least[short.tokens] = tuple(map(min, known, short.counts))
        self._least.move_to_end(short.tokens)
        _bound(self._least, MAX_WAYS)

    def _changes(self, key: Any) -> bool:
        """Whether a loop of the path was met with different counts."""
        met = self._met.get(key)
        return bool(met) and any(len(self._counts.get(way, ())) > 1 for way in Shortened(met[-1], ()).ways())


def _bound(known: OrderedDict[Any, Any], most: int) -> None:
    while len(known) > most:
        known.popitem(last=False)

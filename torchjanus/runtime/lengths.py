"""Runs of one function that differ only in how often its loops went round. Knows nothing of entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torchjanus.graph.loop_shorten import shorten
from torchjanus.trace.events import Trace

__all__ = ["Lengths"]

MAX_PATHS = 16


class Lengths:
    """Remembers runs by what they are apart from trip counts."""

    def __init__(self) -> None:
        self._met: OrderedDict[Any, list[tuple[tuple[int, ...], Trace]]] = OrderedDict()

    def take(self, trace: Trace) -> list[Trace]:
        """The run cut down to a path for all trip counts, after earlier ones; empty as long as the counts have not been
        seen to change."""
        cut = shorten(trace)
        if cut is None:
            return []
        key = cut.trace.tokens()
        met = self._met.setdefault(key, [])
        self._met.move_to_end(key)
        if len(self._met) > MAX_PATHS:
            self._met.popitem(last=False)
        met.append((cut.counts, cut.trace))
        del met[:-3]
        return [one for _, one in met] if len({counts for counts, _ in met}) > 1 else []

"""Watching comprehensions: what is in a list in the making, which no variable holds, while the loops in it iterate.

Knows hooks, not what becomes of loops.
"""

from __future__ import annotations

from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.known.trusted import is_installed
from torchjanus.semantics.watch.objects.base import WatchBase

__all__ = ["MakingWatch"]

_NUMBERS = (int, float)


class MakingWatch(WatchBase):
    """The leaves, as far as comprehensions are concerned."""

    def making(self, at: Site) -> int:
        if is_installed(at.file):
            return -1
        self.recording.rebinding.making.append((_place(at), [], len(self.recording.trace.events)))
        return len(self.recording.rebinding.making) - 1

    def gathered(self, at: Site, value: Any) -> Any:
        here = _place(at)
        for place, held, _ in reversed(self.recording.rebinding.making):
            # Those above it have come to an end by an exception.
            if place == here:
                held.append(value)
                break
        return value

    def made(self, at: Site, level: int, container: Any) -> Any:
        making = self.recording.rebinding.making
        if not 0 <= level < len(making):
            return container
        _, held, start = making[level]
        del making[level:]
        trace = self.recording.trace
        if type(container) is list and len(held) != len(container):
            # One that an exception has ended at the same place has taken the elements: nothing is known of the
            # iterations.
            trace.frames[:] = [frames for frames in trace.frames if frames.end <= start]
        elif type(container) is list and any(position >= start for position in reversed(trace.changed)):
            if all(isinstance(value, _NUMBERS) for value in held):
                self.recording.keep(container)
                self.recording.rebinding.known_as(held, container)
        return container


def _place(at: Site) -> tuple[Any, ...]:
    return (at.file, at.line, at.column, at.end_line, at.end_column)

"""Tells runs in whose loops tensors decide as if all rounds of such a loop were alike, as soon as that can be known.

Remembers what earlier runs have shown of each loop. Knows traces, not programs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torchjanus.errors import Place, Refused
from torchjanus.graph.choice_before import Before
from torchjanus.graph.choice_rounds import is_decided, without_elements
from torchjanus.graph.choice_writing import with_choices
from torchjanus.graph.choices import Choices
from torchjanus.graph.loop_lists import listed
from torchjanus.graph.loop_scan import UnlikeRounds
from torchjanus.graph.loop_sums import begun
from torchjanus.graph.loop_versions import apart
from torchjanus.trace.events import Frames, Trace

__all__ = ["Teller"]

MOST = 32  # loops


class Teller:
    """What is known of the loops of one function."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, list[Choices]] = OrderedDict()
        self._begun: set[Place] = set()  # where sums were seen to begin with a number

    def decides(self, trace: Trace) -> bool:
        """Whether tensors decide in rounds of a loop of the run."""
        return not trace.failures and any(is_decided(frames, trace) for frames in trace.frames)

    def tell(self, trace: Trace) -> Trace:
        """The run with such loops told alike; itself where none can be."""
        if not self.decides(trace):
            return trace
        told, passed = listed(trace), 0
        ranges = [(one.starts[0], one.end) for one in told.rounds if one.starts]
        told = apart(told, [*ranges, *((one.starts[0], one.end) for one in told.frames if one.starts)])
        done = False
        while (loop := _next(told, passed)) is not None:
            summed, loop = begun(told, loop, self._begun)
            try:
                told = with_choices(summed, without_elements(loop), self._choices(summed, loop))
            except (UnlikeRounds, Refused):
                passed += 1
            else:
                passed, done = 0, True
        return told if done else trace

    def _choices(self, trace: Trace, loop: Frames) -> list[Choices]:
        """What is known of the loop, where what led to it was the same."""
        way = (loop.place, Before(trace, loop).token)
        found = self._known.setdefault(way, [])
        self._known.move_to_end(way)
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return found


def _next(trace: Trace, passed: int) -> Frames | None:
    """The first loop in which tensors decide, and no other goes round, after those that were passed by."""
    deciding = [frames for frames in trace.frames if is_decided(frames, trace)]
    inner = [
        one
        for one in deciding
        if not any(other is not one and one.starts[0] <= other.starts[0] and other.end <= one.end for other in deciding)
    ]
    inner.sort(key=lambda frames: frames.starts[0])
    return inner[passed] if passed < len(inner) else None

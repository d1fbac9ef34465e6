"""Drops loops whose iterations do nothing any more (``[x for x in xs]`` with elements that are rows of one tensor), and
the conditions on their trip counts."""

from __future__ import annotations

from collections import Counter

from torchjanus.graph.loops.analysis.alignment import token_of_count
from torchjanus.graph.loops.analysis.recurrences import passes_on
from torchjanus.trace.events import LoopEnd, Trace
from torchjanus.trace.loops.records import LoopInstance
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.values import Expr

__all__ = ["without_idle"]


def without_idle(trace: Trace) -> Trace:
    """Return the trace without such loops; the trace itself if there are none."""
    idle = [number for number, instance in enumerate(trace.loop_instances) if _is_idle(trace, instance)]
    return _IdleLoopRewriter(trace, idle).trace() if idle else trace


def _is_idle(trace: Trace, instance: LoopInstance) -> bool:
    """Whether nothing in the trace depends on the loop or its trip count."""
    if not isinstance(instance.count, Expr) or not instance.starts:
        return False
    if (
        instance.end != instance.starts[0]
        or instance.asked
        or trace.measured > instance.starts[0]
        or passes_on(trace, instance)
    ):
        return False
    last = frozenset(instance.counted())
    computed = (one for one in trace.plain if one.position >= instance.end)
    return not any(last.intersection(one.operands) for one in computed) and _end_of(trace, instance) is not None


def _end_of(trace: Trace, instance: LoopInstance) -> int | None:
    """Return the position of the event that records the trip count; None if there is none."""
    end = trace.events[instance.end] if instance.end < len(trace.events) else None
    return instance.end if isinstance(end, LoopEnd) and end.count == len(instance.starts) + instance.skipped else None


class _IdleLoopRewriter(TraceRewriter):
    def __init__(self, old: Trace, idle: list[int]) -> None:
        super().__init__(old)
        self.idle = idle

    def trace(self) -> Trace:
        old = self.old
        gone = {_end_of(old, old.loop_instances[number]) for number in self.idle}
        events, _, begins = self.walk(lambda at, event, after: () if at in gone else (self.event(event, after),))
        moved = self.moved(begins)
        moved["loop_instances"] = [one for number, one in enumerate(moved["loop_instances"]) if number not in self.idle]
        moved["loop_records"] = [
            new for new, one in zip(moved["loop_records"], old.loop_records, strict=True) if one.end not in gone
        ]
        said = Counter(token_of_count(old.loop_instances[number]) for number in self.idle)  # each loop specialised once
        pins = {token: times - said[token] for token, times in old.pins.items()}
        return self.made(events, pins=pins, **moved)

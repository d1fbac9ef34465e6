"""Loops whose rounds leave nothing to tell: ``[x for x in xs]``, where the elements are rows of one tensor by now. They
are left out of the run, and with them how many rounds they had.

Knows nothing of lists.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torchjanus.graph.ir.rewriting import Rewriting
from torchjanus.graph.loops.analysis.alignment import token_of_count
from torchjanus.graph.loops.analysis.recurrences import passes_on
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace, Trips
from torchjanus.trace.rounds import Rounds
from torchjanus.trace.values import Expr

__all__ = ["without_idle"]


def without_idle(trace: Trace) -> Trace:
    """The run without such loops; itself where there are none."""
    idle = [number for number, rounds in enumerate(trace.rounds) if _is_idle(trace, rounds)]
    return _Without(trace, idle).trace() if idle else trace


def _is_idle(trace: Trace, rounds: Rounds) -> bool:
    """Whether nothing tells that it went round, nor how often."""
    if not isinstance(rounds.count, Expr) or not rounds.starts:
        return False
    if rounds.end != rounds.starts[0] or rounds.asked or trace.measured > rounds.starts[0] or passes_on(trace, rounds):
        return False
    last = frozenset(rounds.counted())
    computed = (one for one in trace.plain if one.position >= rounds.end)
    return not any(last.intersection(one.operands) for one in computed) and _end_of(trace, rounds) is not None


def _end_of(trace: Trace, rounds: Rounds) -> int | None:
    """The event that says how many rounds there were."""
    end = trace.events[rounds.end] if rounds.end < len(trace.events) else None
    return rounds.end if isinstance(end, Trips) and end.count == len(rounds.starts) + rounds.skipped else None


class _Without(Rewriting):
    def __init__(self, old: Trace, idle: list[int]) -> None:
        super().__init__(old)
        self.idle = idle

    def trace(self) -> Trace:
        old = self.old
        gone = {_end_of(old, old.rounds[number]) for number in self.idle}
        places, events, operations = list[int](), list[Any](), 0
        for position, event in enumerate(old.events):
            places.append(len(events))
            if position not in gone:
                events.append(self.event(event, operations))
                operations += isinstance(event, Op)
        places.append(len(events))
        moved = self.moved(lambda at, _: places[at], places.__getitem__)
        moved["rounds"] = [one for number, one in enumerate(moved["rounds"]) if number not in self.idle]
        moved["turns"] = [new for new, one in zip(moved["turns"], old.turns, strict=True) if one.end not in gone]
        said = Counter(token_of_count(old.rounds[number]) for number in self.idle)  # once by each loop
        pins = {token: times - said[token] for token, times in old.pins.items()}
        return self.made(events, pins=pins, **moved)

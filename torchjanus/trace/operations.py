"""The operations among the events of a trace: how many there are, and which tensors they make and use."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.trace.actions import Op

__all__ = ["made_by", "op_count", "op_counts", "op_positions", "ops_of", "used_by"]


def ops_of(events: Iterable[Any]) -> list[Op]:
    """Return the operations among the events, in order."""
    return [event for event in events if isinstance(event, Op)]


def op_count(events: Iterable[Any]) -> int:
    """Return the number of operations among the events."""
    return sum(isinstance(event, Op) for event in events)


def op_counts(events: Iterable[Any]) -> list[int]:
    """Return the number of operations before each event, and before the end."""
    return [0, *itertools.accumulate(isinstance(event, Op) for event in events)]


def op_positions(events: Sequence[Any], spans: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the positions of the operations among the events, for each span (begin, end)."""
    return [[at for at in range(begin, end) if isinstance(events[at], Op)] for begin, end in spans]


def made_by(events: Iterable[Any]) -> set[int]:
    """Return the numbers of the tensors that the operations among the events return."""
    return {ref.number for op in ops_of(events) for ref in op.outs}


def used_by(events: Iterable[Any]) -> set[int]:
    """Return the numbers of the tensors that the operations among the events take."""
    return {ref.number for op in ops_of(events) for ref in op.inputs}

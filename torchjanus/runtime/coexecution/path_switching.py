"""Switches a co-executed call to another path: one that begins with the events that have matched so far.

Does not know how a graph runs.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import islice
from typing import Any

from torchjanus.runtime.coexecution.graphs.served import Served
from torchjanus.runtime.coexecution.recording.events import Event, Kind, Provenance
from torchjanus.runtime.coexecution.recording.placeholders import placeholder

__all__ = ["begins_alike", "cuts_before", "events_of", "make_missing", "moved_to"]


def begins_alike(mine: Served, other: Served, k: int) -> bool:
    """Whether the other path begins with the first ``k`` events of this one."""
    count = mine.known[k]
    return (
        other is not mine
        and other.known[k] == count
        and other.tokens[:k] == mine.tokens[:k]
        and all(
            (mine.externals[n].token == other.externals[n].token) if n in mine.externals else n not in other.externals
            for n in range(count)
            if n in mine.externals or n in other.externals
        )
    )


def moved_to(
    mine: Served, other: Served, k: int, values: Sequence[Any], numbers: Sequence[Any], private: Container[int]
) -> tuple[list[Any], list[Any]] | None:
    """Return the tensors and numbers of a call, of which ``k`` events have matched, in the other path's order; None if
    that path does not accept what the call has taken from outside. ``private``: the numbers of copied inputs."""
    theirs = other.begin()
    if theirs is None:
        return None
    for n in range(other.known[k]):
        if theirs[n] is not None:
            if theirs[n] is not values[n]:
                return None
        elif n in other.externals and other.externals[n].provenance is not Provenance.GRADIENT:
            if not other.accepts(n, values[n], theirs) or (n in other.changed and n in private):
                return None
        else:
            theirs[n] = values[n]
    slots: list[Any] = [None] * len(other.plan.program.slots)
    for event, row in enumerate(islice(_numbers(mine, numbers), k)):
        if other.events[event].kind is not Kind.OPERATOR:
            continue
        for place, (value, constant) in enumerate(zip(row, other.events[event].numbers, strict=True)):
            slot = other.plan.slots.get((event, place))
            if slot is not None:
                slots[slot] = value
            elif repr(value) != repr(constant):
                return None
    return (theirs, slots) if other.separate(theirs) else None


def cuts_before(other: Served, k: int) -> int:
    """Return how many cuts of a path's graph come before event ``k``."""
    return sum(event in other.plan.cuts for event in range(k))


def events_of(served: Served, k: int, numbers: Sequence[Any]) -> list[Event]:
    """Return the first ``k`` events of a call. ``numbers``: those of its slots."""
    rows = islice(_numbers(served, numbers), k)
    return [
        event.with_numbers(row) if event.kind is Kind.OPERATOR else event
        for event, row in zip(served.events, rows, strict=False)
    ]


def _numbers(served: Served, numbers: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the numbers of each event of a call with these slots."""
    slots = served.plan.slots
    for k, event in enumerate(served.events):
        yield [numbers[slots[k, place]] if (k, place) in slots else value for place, value in enumerate(event.numbers)]


def make_missing(served: Served, k: int, values: list[Any]) -> None:
    """Make placeholders for results of the events before ``k`` that have none, since a composite event made them."""
    for event in served.events[:k]:
        for n, meta in event.made.items():
            if values[n] is None:
                values[n] = placeholder(meta)

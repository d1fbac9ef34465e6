"""The calls of speculated functions as a trace that Perfetto and chrome://tracing show."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["chrome_trace"]


def chrome_trace(functions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the trace as JSON's object. ``functions``: as ``as_data`` gives them; each is a thread. Calls that were
    not kept one by one are in one slice for each part of the time."""
    zero = min((one["timeline"]["wall"] for one in functions if one["timeline"]["wall"]), default=0.0)
    events: list[dict[str, Any]] = []
    for number, one in enumerate(functions, 1):
        name = {"name": "thread_name", "ph": "M", "pid": os.getpid(), "tid": number, "args": {"name": one["name"]}}
        begin = (one["timeline"]["wall"] - zero) * 1e6
        events += [name, *({"pid": os.getpid(), "tid": number, **event} for event in _slices(one, begin))]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slices(one: dict[str, Any], begin: float) -> Iterator[dict[str, Any]]:
    timeline, when = one["timeline"], dict[int, float]()
    for number, kind, begun, seconds in timeline["calls"]:
        when[number] = at = begin + begun * 1e6
        yield {"name": kind, "cat": "call", "ph": "X", "ts": at, "dur": seconds * 1e6, "args": {"call": number}}
    kept, gap = [call[2] for call in timeline["calls"]], timeline["gap"]
    for position, counts in enumerate(timeline["bins"]):
        at, width = position * timeline["width"], timeline["width"]
        if kept and gap is not None and gap[0] <= at and at + width <= gap[1]:
            for kind, (calls, seconds) in counts.items():
                yield {
                    "name": f"{round(calls)} calls: {kind}", "cat": "calls", "ph": "X", "ts": begin + at * 1e6,
                    "dur": min(seconds, width) * 1e6, "args": {"seconds": seconds},
                }  # fmt: skip
    for event in one["events"]:
        if event["call"] in when:
            place = event["place"]
            args = {"text": event["text"], "line": f"{place['file']}:{place['line']}" if place["line"] else ""}
            yield {"name": event["kind"], "cat": "event", "ph": "i", "s": "t", "ts": when[event["call"]], "args": args}

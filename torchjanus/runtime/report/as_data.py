"""The explanation of a speculated function as plain data: for JSON, and for the page."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchjanus.core.errors import Place, Refusal
from torchjanus.core.reasons import reasons
from torchjanus.runtime.report.costs import costs_of
from torchjanus.runtime.report.data import EntryExplanation, Explained
from torchjanus.runtime.report.facts import Fact, sentence
from torchjanus.runtime.report.places import is_library, outer, source
from torchjanus.runtime.report.screen import speed
from torchjanus.runtime.runs.call_times import COMPILED, EAGER, GRAPH, PARTS, CallTimes

__all__ = ["as_data"]


def as_data(explained: Explained) -> dict[str, Any]:
    """Return everything that is known, as dictionaries, lists, texts and numbers; times in seconds."""
    times = explained.times
    return {
        "name": explained.name,
        "place": _place(explained.place),
        "statistics": dataclasses.asdict(explained.statistics),
        "speed": {
            "text": speed(explained),
            "eager": explained.eager,
            "compiled": times.typical(COMPILED),
            "graph": times.typical(GRAPH),
            "parts": times.typical(PARTS),
            "share": explained.share,
        },
        "coexecution": None if explained.coexecution is None else explained.coexecution.data(),
        "contest": None if explained.contest is None else explained.contest.data(),
        "given_up": explained.given_up,
        "being_made": explained.being_made,
        "overhead": dataclasses.asdict(explained.overhead),
        "graphs": [_graph(one) for one in explained.entries],
        "lines": _lines(explained),
        "costs": [
            {**dataclasses.asdict(one), "place": _place(one.place), "price": one.price} for one in costs_of(explained)
        ],
        "parts": [
            {
                "label": one.label,
                "place": _place(one.place),
                "share": one.share,
                "calls": one.calls,
                "served": one.served,
                "graphs": one.graphs,
                "why": one.why,
            }
            for one in explained.parts
        ],
        "refusals": [_refusal(one) for one in explained.refusals],
        "remarks": [
            {
                "place": _place(one.place),
                "what": one.detail or reasons()[one.reason].title.rstrip("."),
                "reason": one.reason,
                "remedy": reasons()[one.reason].remedy,
            }
            for one in explained.remarks
            if not is_library(one.place)
        ],
        "events": [
            {"call": one.call, "kind": one.kind, "text": one.text, "place": _place(one.place), "reason": one.reason}
            for one in explained.events
        ],
        "timeline": _timeline(times),
    }


def _place(place: Place) -> dict[str, Any]:
    return {"file": place.file if place.line else "", "line": place.line, "source": source(place)}


def _refusal(one: Refusal) -> dict[str, Any]:
    return {
        "place": _place(outer(one)),
        "what": one.what,
        "why": one.why,
        "remedy": one.remedy,
        "reason": one.reason,
    }


def _graph(one: EntryExplanation) -> dict[str, Any]:
    return {
        "number": one.number,
        "operations": one.nodes,
        "inputs": one.inputs,
        "updates": one.updates,
        "executor": one.executor,
        "runs": one.runs,
        "violations": one.violations,
        "notes": [*one.notes],
        "reasons": [*one.reasons],
        "varying": [*one.varying],
        "asserts": [*one.asserts],
        "decided": [*one.decided],
        "constant": [*one.pinned],
        "externs": [{"when": when, "calls": [*calls]} for when, calls in one.externs],
        "assumptions": [{"text": str(each), "place": _place(each.place)} for each in one.assumptions],
    }


def _lines(explained: Explained) -> list[dict[str, Any]]:
    """Return what each line of the program relies on, in a sentence and with the assumptions as they are checked."""
    by_line: dict[Place, list[Fact]] = {}
    for fact in (fact for one in explained.entries for fact in one.facts):
        by_line.setdefault(Place(fact.place.file, fact.place.line), []).append(fact)
    return [
        {
            "place": _place(place),
            "sentence": sentence(facts),
            "evidence": list(dict.fromkeys(fact.evidence for fact in facts)),
        }
        for place, facts in sorted(by_line.items(), key=lambda item: (item[0].line != 0, item[0].file, item[0].line))
    ]


def _timeline(times: CallTimes) -> dict[str, Any]:
    return {
        "width": times.width,
        "bins": [{kind: [*counts] for kind, counts in one.items()} for one in times.bins],
        "total": {kind: [*counts] for kind, counts in times.total.items()},
        "before": [*times.before],
        "served_from": None if times.served is None else times.served.begun - times.zero,
        "eager": times.typical(EAGER),
        "wall": times.wall,
        "calls": [[one.number, one.kind, one.begun - times.zero, one.seconds] for one in times.calls],
        # From when to when calls are only counted.
        "gap": [times.first[-1].ended - times.zero, times.latest[0].begun - times.zero] if times.latest else None,
    }

"""The explanation of a speculated function on one screen: speed, share served, what is assumed, what cost most."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterator

from torchjanus.core.errors import OWN_FOLDER, Place
from torchjanus.runtime.report.costs import Cost, costs_of
from torchjanus.runtime.report.data import Explained
from torchjanus.runtime.report.facts import Fact, sentence
from torchjanus.runtime.report.places import count, where
from torchjanus.runtime.runs.call_times import COMPILED, EAGER, GRAPH, PARTS, SERVED, WATCHED

__all__ = ["HEIGHT", "WIDTH", "headline", "in_words", "screen_lines", "speed"]

WIDTH = 80
_WHY = ("budget", "imperative", "closed", "executor")  # events that say why calls are Python's
FEW = 0.05  # of the calls that graphs made: up to this share of calls by Python needs no explanation
HEIGHT = 24
_LATELY = 9  # calls, of which most say who makes the calls now
_EACH = 2  # lines of one sentence, at most
_BY = {COMPILED: "by compiled code", GRAPH: "by replay", PARTS: "with parts by graphs", EAGER: "by Python"}


def screen_lines(explained: Explained, width: int = WIDTH) -> list[str]:
    """Return at most HEIGHT lines of at most ``width`` characters; a long path may be longer."""
    top = [headline(explained)]  # not cut: a path is copied
    for label, text in _summary(explained):
        top += _hanging(label, text, width)
    end = ["  more     explain(step, detail=True) has everything; torchjanus explain CODE"]
    costs, assumed = costs_of(explained), [*_assumed(explained, width)]
    # The halves of the rest: what cost most gets what the assumptions leave over, and the other way round.
    rest = HEIGHT - len(top) - len(end) - bool(costs) - bool(assumed)
    priced = [line for cost in costs for line in _cost_lines(cost, width)]
    for_costs = min(len(priced), max(rest // 2, rest - len(assumed)))
    shown = assumed if len(assumed) <= rest - for_costs else [*assumed[: rest - for_costs - 1], "    ..."]
    lines = [*top, *(["  assumes"] if shown else []), *shown]
    if priced:
        lines += ["  cost most", *_whole(costs, for_costs, width)]
    return [*lines, *end]


def headline(explained: Explained) -> str:
    """Return the name and the place."""
    return f"{explained.name}  ({where(explained.place)})"


def _summary(explained: Explained) -> Iterator[tuple[str, str]]:
    yield "speed", speed(explained)
    counts = explained.statistics
    if counts.calls:
        yield "served", _served(explained)
    if explained.entries:
        graphs = ", ".join(f"{count(one.nodes, 'operation')} ({one.executor})" for one in explained.entries[:3])
        more = ", ..." if len(explained.entries) > 3 else ""
        yield "graphs", f"{len(explained.entries)} in use, {counts.compiles} made: {graphs}{more}"
    if (cut := next((event for event in reversed(explained.events) if event.kind == "cut"), None)) is not None:
        yield "cut", f"{_short(cut.place)}  {cut.text}"
    if by_graph := [part for part in explained.parts if part.served and not part.why]:
        parts = ", ".join(f"{_short(part.place)} {part.label} ({part.share:.0%})" for part in by_graph[:4])
        yield "parts", f"by graphs: {parts}{', ...' if len(by_graph) > 4 else ''}"
    if explained.coexecution is not None:
        yield "graphs", str(explained.coexecution)
    if explained.contest is not None:
        yield "chosen", str(explained.contest)
    if explained.being_made:
        yield "waiting", f"{explained.being_made}; until then calls that need it are Python's"
    why = next((event for event in reversed(explained.events) if event.kind in _WHY), None)
    if why is not None and not explained.refusals and counts.imperative > max(1, FEW * counts.speculated):
        yield "Python's", why.text
    if counts.watched:
        one = explained.overhead
        yield "learning", f"{one.seconds + one.first:.1f} s beyond eager's time"


def speed(explained: Explained) -> str:
    """Return how fast calls are now, against eager."""
    times, eager = explained.times, explained.times.typical(EAGER)
    if not explained.statistics.calls:
        return "it has not been called yet"
    by_eager = f", {in_words(eager)} by Python" if eager else ""
    unmeasured = "; eager was not measured"
    served = next((kind for kind in (COMPILED, GRAPH) if times.typical(kind)), "")
    kinds = Counter(one.kind for one in times.calls[-_LATELY:])
    now = kinds.most_common(1)[0][0] if kinds else EAGER
    if explained.python:
        return f"eager's: by measure Python is faster{f', {in_words(eager)} a call' if eager else ''}"
    if now == EAGER and served:
        by_graph = f"{in_words(times.typical(served))} {_BY[served]}"
        return f"eager's: {in_words(eager)} a call by Python, as it is now; {by_graph}"
    if now in SERVED or (served and now == WATCHED):
        kind = now if now in SERVED else served
        took = f"{in_words(times.typical(kind))} a call {_BY[kind]}"
        if explained.share:  # of calls made in turn: those of one kind alone are as fast as the machine is just then
            return f"{1 / explained.share:.2f} times eager's, timed in turn; now {took}"
        return f"{eager / times.typical(kind):.2f} times eager's: {took}{by_eager}" if eager else f"{took}{unmeasured}"
    if times.typical(PARTS) and explained.statistics.partly:
        took = f"{in_words(times.typical(PARTS))} a call with parts by graphs"
        return f"{eager / times.typical(PARTS):.2f} times eager's: {took}{by_eager}" if eager else f"{took}{unmeasured}"
    if explained.given_up:
        why = "" if explained.refusals else f": {explained.given_up}"
        return f"eager's: Python makes the calls{why}"
    return "eager's so far: a graph is made of runs that are alike" if now in (WATCHED, EAGER) else "eager's"


def _served(explained: Explained) -> str:
    counts, times = explained.statistics, explained.times
    total = times.total
    seconds = sum(one[1] for one in total.values())
    by_graph = sum(total[kind][1] for kind in SERVED if kind in total)
    others = [
        f"{number} {what}" for number, what in ((counts.watched, "watched"), (counts.imperative, "by Python")) if number
    ]
    left = f"; {' and '.join(others)}" if others else ""
    if not counts.speculated:
        part = f", parts of {counts.partly}" if counts.partly else ""
        return f"none of {count(counts.calls, 'call')}{part}{left}"
    share = f", {by_graph / seconds:.0%} of their time" if seconds else ""
    first = times.served
    since = f"; the first was call {first.number}, after {first.begun - times.zero:.1f} s" if first else ""
    return f"{counts.speculated} of {count(counts.calls, 'call')}{share}{since}{left}"


def in_words(seconds: float) -> str:
    """Return a time with a unit that suits it."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


# ---- what is assumed ----


def _assumed(explained: Explained, width: int) -> Iterator[str]:
    """Yield the lines of what is assumed: the program's own lines, then a count of the rest."""
    by_place: dict[Place, list[Fact]] = {}
    for entry in explained.entries:
        for fact in entry.facts:
            by_place.setdefault(Place(fact.place.file, fact.place.line), []).append(fact)
    places = sorted(by_place, key=lambda place: (place.line != 0, place.file != explained.place.file, place.line))
    for place in places:
        if said := sentence(by_place[place]):
            yield from _hanging(_short(place), said, width, indent=4, column=max(15, len(_short(place)) + 1))
    if explained.entries:
        latest = explained.entries[0]
        rest = len(latest.assumptions) - len({fact.evidence for fact in latest.facts})
        if rest > 0:
            yield f"    and {rest} facts of Python's classes and of libraries"


def _short(place: Place) -> str:
    return f"{os.path.basename(place.file)}:{place.line}" if place.line else "arguments"


# ---- what cost most ----


def _cost_lines(cost: Cost, width: int) -> list[str]:
    where_, times = _short(cost.place), f" ({cost.calls} times)" if cost.calls > 1 and not cost.each else ""
    code = f" [{cost.reason}]" if cost.reason else ""
    place = f"{where_}  " if cost.place.line and not cost.place.file.startswith(OWN_FOLDER) else ""
    lines = _hanging(cost.price, f"{place}{cost.what.rstrip('. ')}{times}{code}", width, indent=4, column=15)
    if cost.remedy:
        lines += _hanging("", f"instead: {cost.remedy}", width, indent=4, column=15)
    return lines


def _whole(costs: list[Cost], room: int, width: int) -> list[str]:
    """Return the lines of as many costs as have room; of the first in any case."""
    lines: list[str] = []
    for number, cost in enumerate(costs):
        made = _cost_lines(cost, width)
        if lines and len(lines) + len(made) + (number < len(costs) - 1) > room:
            return [*lines, f"    and {len(costs) - number} more"][: max(room, len(lines))]
        lines += made
    return lines


# ---- lines ----


def _hanging(label: str, text: str, width: int, *, indent: int = 2, column: int = 9) -> list[str]:
    """Return the text behind a label, wrapped into a column of its own, on at most _EACH lines."""
    space = " " * indent
    wrapped = textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=f"{space}{label:<{column}}",
        subsequent_indent=space + " " * column,
        max_lines=_EACH,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    return wrapped or [f"{space}{label}"]

"""The report of a script as one page of HTML: no server, no scripts, nothing that is fetched."""

from __future__ import annotations

import inspect
import linecache
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2

from torchjanus.runtime.report.screen import in_words
from torchjanus.runtime.runs.call_times import COMPILED, EAGER, GRAPH, KINDS, PARTS, WATCHED

__all__ = ["html_page"]

_NAMES = {
    EAGER: "Python",
    WATCHED: "Python, watched",
    PARTS: "Python, with parts by graphs",
    GRAPH: "graph, replayed",
    COMPILED: "graph, compiled",
}
_BARS = 160  # of a timeline, at most
_LEAST = 1e-9


def html_page(title: str, seconds: float, functions: Sequence[dict[str, Any]], left: Sequence[str] = ()) -> str:
    """Return the page. ``functions``: as ``as_data`` gives them; ``left``: what was left to Python, a line each."""
    made = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    made.filters.update(time=in_words, place=_place)
    text = Path(__file__).with_name("page.html.j2").read_text(encoding="utf-8")
    shown = [{**one, **_pictures(one)} for one in functions]
    return made.from_string(text).render(title=title, seconds=seconds, functions=shown, left=left, names=_NAMES)


def _place(place: dict[str, Any]) -> str:
    return f"{os.path.basename(place['file'])}:{place['line']}" if place["line"] else "arguments"


def _pictures(one: dict[str, Any]) -> dict[str, Any]:
    timeline = one["timeline"]
    bars = [*_bars(timeline)]
    width = timeline["width"] * (-(-len(timeline["bins"]) // _BARS) or 1)
    return {
        "bars": bars,
        "length": width * len(bars),
        "contest": [*_contest(one["speed"])],
        "listing": [*_listing(one)],
    }


def _bars(timeline: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the bars of a timeline: for each the parts of its height, in percent of its time, by who made the calls. A
    call that is longer than a bar goes on in the next ones."""
    bins = timeline["bins"]
    step = -(-len(bins) // _BARS) or 1
    left: dict[str, float] = {}
    first = 0
    while first < len(bins) or any(left.values()):
        calls: dict[str, int] = {}
        for some in bins[first : first + step]:
            for kind, (count, seconds) in some.items():
                left[kind] = left.get(kind, 0.0) + seconds
                calls[kind] = calls.get(kind, 0) + round(count)
        width = step * timeline["width"]
        share = min(1.0, width / max(sum(left.values()), _LEAST))
        shown = {kind: seconds * share for kind, seconds in left.items()}
        left = {kind: seconds - shown[kind] for kind, seconds in left.items() if share < 1.0}
        begin = first * timeline["width"]
        said = ", ".join(f"{calls[kind]} by {_NAMES[kind]}" for kind in KINDS if kind in calls)
        yield {
            "title": f"{in_words(begin)} to {in_words(begin + width)}: {said or 'no call began'}",
            "parts": [(kind, 100 * shown[kind] / width) for kind in KINDS if shown.get(kind)],
        }
        first += step


def _contest(speed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the executors with their times of a call, and the length of a bar, in percent."""
    times = {EAGER: speed["eager"], PARTS: speed["parts"], GRAPH: speed["graph"], COMPILED: speed["compiled"]}
    longest = max(times.values())
    for kind, seconds in times.items():
        if seconds:
            yield {"kind": kind, "seconds": seconds, "length": 100 * seconds / longest}


def _listing(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the function's source, each line with what it relies on and what it costs; then such lines of other
    functions."""
    home = one["place"]
    margins = {(row["place"]["file"], row["place"]["line"]): row for row in one["lines"] if row["place"]["line"]}
    costs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cost in one["costs"]:
        if cost["place"]["line"]:
            costs.setdefault((cost["place"]["file"], cost["place"]["line"]), []).append(cost)
    own = _source(home["file"], home["line"])
    wanted = [(home["file"], home["line"] + offset) for offset in range(len(own))]
    others = sorted({*margins, *costs} - {*wanted})
    for group in ((home["file"], wanted), *_by_file(others)):
        name, places = group
        if places:
            yield {
                "file": name,
                "rows": [
                    {
                        "number": line,
                        "text": linecache.getline(file, line).rstrip(),
                        "says": margins.get((file, line)),
                        "costs": costs.get((file, line), []),
                    }
                    for file, line in places
                ],
            }


def _by_file(places: Sequence[tuple[str, int]]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    for file in dict.fromkeys(file for file, _ in places):
        yield file, [place for place in places if place[0] == file]


def _source(file: str, line: int) -> list[str]:
    """Return the lines of the function that begins at ``line``."""
    lines = linecache.getlines(file)[max(line - 1, 0) :] if line else []
    try:
        return inspect.getblock(lines) if lines else []
    except (SyntaxError, IndentationError):
        return lines[:1]

"""``explain()``: what the runtime knows of a speculated function, collected."""

from __future__ import annotations

import functools
import shutil
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchjanus.core.errors import NOWHERE, Place, Unsupported
from torchjanus.graph.ir.program import Assertion
from torchjanus.graph.operators.data_sizes import found
from torchjanus.runtime import Entry, Region, Speculated
from torchjanus.runtime.report.as_data import as_data
from torchjanus.runtime.report.data import EntryExplanation, Explained, PartExplanation
from torchjanus.runtime.report.details import detail_lines
from torchjanus.runtime.report.facts import facts_of
from torchjanus.runtime.report.places import source, where
from torchjanus.runtime.report.screen import WIDTH, screen_lines
from torchjanus.semantics.protocols.virtualize import home_of

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, slots=True)
class Explanation(Explained):
    """All that is known of a speculated function; ``str()`` returns one screen, or everything if ``detail`` was asked
    for."""

    detail: bool = False

    def __str__(self) -> str:
        return self.detailed() if self.detail else self.screen(_width())

    def detailed(self) -> str:
        """Return everything: all assumptions, refusals and events."""
        return "\n".join(detail_lines(self))

    def data(self) -> dict[str, Any]:
        """Return everything as plain data, which ``json`` can write."""
        return as_data(self)

    def screen(self, width: int = WIDTH) -> str:
        """Return at most 24 lines of at most ``width`` characters."""
        return "\n".join(screen_lines(self, width))


def _width() -> int:
    """Return how wide the terminal is; where the output is none, a fixed number."""
    if any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
        return max(WIDTH, shutil.get_terminal_size().columns)
    return WIDTH


def explain(step: Any, *, detail: bool = False) -> Explanation:
    """Return what is known of a speculated function: entries, assumptions with their lines, extern calls, refusals.

    ``str()`` of it fits a screen; with ``detail``, or ``explain(step).detailed()``, it has everything.
    Raises Unsupported if ``step`` is not the result of ``torchjanus.speculate``.
    """
    if isinstance(step, types.MethodType):
        step = step.__func__  # of an instance, whose class has the speculated function
    if not isinstance(step, Speculated):
        raise Unsupported(
            f"explain() takes a speculated function, not {type(step).__name__}: "
            "pass what torchjanus.speculate returned."
        )
    home = home_of(step.fn)
    place = Place(repr(step.fn), 0) if home == NOWHERE else home
    return Explanation(
        getattr(step, "__name__", None) or _name_of(step.fn),
        place,
        step.statistics(),
        step.given_up,
        step.being_made,
        step.overhead,
        tuple(_entry_explanation(number, entry, step.path_to(entry)) for number, entry in enumerate(step.entries, 1)),
        tuple(map(_part, step.regions)),
        tuple(step.refusals),
        tuple(step.remarks),
        tuple(step.events),
        step.share,
        step.is_pythons,
        step.times,
        step.coexecution,
        step.contest,
        detail,
    )


def _asserted(one: Assertion) -> str:
    if one.place == NOWHERE:
        return "what Python computes with numbers from tensors raises nothing"
    return f"{where(one.place)}  stays {one.expected}"


def _name_of(fn: Any) -> str:
    while type(fn) is functools.partial:
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def _entry_explanation(number: int, entry: Entry, decisions: list[Assertion]) -> EntryExplanation:
    plan, lowered = entry.plan, entry.lowered
    return EntryExplanation(
        number,
        lowered.nodes,
        len(plan.access_paths),
        len(lowered.mutated),
        entry.engine.current,
        entry.runs,
        entry.violations,
        entry.assumptions,
        tuple(str(access_path) for access_path in plan.varying),
        tuple(str(plan.access_paths[index]) for batch in plan.batches for index in batch.inputs),
        tuple(_externs(entry)),
        tuple(f"{where(a.place)}  is {a.expected}  ({source(a.place)})" for a in decisions),
        tuple(dict.fromkeys(map(_asserted, lowered.assertions))),
        tuple(
            f"{plan.slots[slot]} == {value!r}: {lowered.pin_reasons[slot]}" for slot, value in lowered.pinned.items()
        ),
        tuple(map(str, plan.call_groups)),
        tuple(dict.fromkeys(where(node.place) for node in plan.program.nodes if node.func is found)),
        tuple(entry.engine.notes),
        tuple(entry.engine.reasons),
        facts_of(entry.assumptions, lowered.assertions),
    )


def _part(region: Region) -> PartExplanation:
    return PartExplanation(
        region.label,
        region.place,
        region.share,
        region.seconds,
        region.calls,
        region.served,
        region.graphs,
        region.why,
        tuple(region.refusals),
    )


def _externs(entry: Entry) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the extern calls by when they are made."""
    schedule = entry.plan.schedule
    made = [event for effect in entry.plan.effects for event in effect.externs()]
    late = [event for event in made if event.number not in schedule.early]
    for number, events in enumerate((*schedule.stages, late)):
        when = f"made between part {number} and {number + 1} of the graph" if number else "made before the graph"
        when = "made at commit" if number == len(schedule.stages) else when
        if events:
            yield when, tuple(f"{where(event.place)}  {event}" for event in events)

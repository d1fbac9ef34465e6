"""The explanation of a speculated function, as data and as text. It uses the runtime; only the command line uses it."""

from __future__ import annotations

import linecache
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeGuard

from torchjanus.core.errors import NOWHERE, Place, Refusal, Unsupported
from torchjanus.core.reasons import reasons
from torchjanus.core.remarks import Remark
from torchjanus.graph.ir.program import Assertion
from torchjanus.graph.operators.data_sizes import found
from torchjanus.host.assumption import (
    AmbientState,
    Arguments,
    Assumption,
    Distinct,
    Identity,
    Kept,
    TensorKind,
)
from torchjanus.runtime import Entry, Event, Overhead, Region, Speculated, Statistics
from torchjanus.semantics.known.trusted import is_trusted_module
from torchjanus.semantics.protocols.virtualize import home_of

__all__ = ["EntryExplanation", "Explanation", "PartExplanation", "explain"]

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class EntryExplanation:
    """One graph: its size, its executor, its assumptions, its inputs."""

    number: int
    nodes: int
    inputs: int
    updates: int
    executor: str
    runs: int
    violations: int
    assumptions: tuple[Assumption, ...]
    varying: tuple[str, ...]
    fetched: tuple[str, ...]
    externs: tuple[tuple[str, tuple[str, ...]], ...]  # when, and which
    decided: tuple[str, ...]
    asserts: tuple[str, ...]
    pinned: tuple[str, ...]
    recursions: tuple[str, ...]
    selected: tuple[str, ...]  # where the graph itself determines the number of elements
    notes: tuple[str, ...]
    reasons: tuple[str, ...]  # the codes of the notes


@dataclass(frozen=True, slots=True)
class PartExplanation:
    """One part of a step that Python makes: where it is, the share of the step's time that it took by Python when it
    was measured, its calls, those of them by a graph, and why it is Python's (or "")."""

    label: str
    place: Place
    share: float
    calls: int
    served: int
    graphs: int
    why: str
    refusals: tuple[Refusal, ...]

    def __str__(self) -> str:
        by_graph = f"{self.served} of {self.calls} calls by {_count(self.graphs, 'graph')}"
        left = f"Python's: {self.why}" if self.why else by_graph
        return f"{_where(self.place)}  {self.label}: {self.share:.0%} of the time; {left}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known of a speculated function; ``str()`` returns the report."""

    name: str
    place: Place
    statistics: Statistics
    given_up: str
    being_made: str
    overhead: Overhead
    entries: tuple[EntryExplanation, ...]
    parts: tuple[PartExplanation, ...]
    refusals: tuple[Refusal, ...]
    remarks: tuple[Remark, ...]
    events: tuple[Event, ...]

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of all reasons in the report, each once: see docs/reasons.md."""
        of_parts = (refusal for part in self.parts for refusal in part.refusals)
        shown_events: Iterator[Refusal | Remark | Event] = chain(self.refusals, of_parts, self.remarks, self.events)
        noted = (code for entry in self.entries for code in entry.reasons)
        return tuple(dict.fromkeys((*(one.reason for one in shown_events if one.reason), *noted)))

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain(step: Any) -> Explanation:
    """Return what is known of a speculated function: entries, assumptions with their lines, extern calls, refusals.

    Raises Unsupported if ``step`` is not the result of ``torchjanus.speculate``.
    """
    if not isinstance(step, Speculated):
        raise Unsupported(
            f"explain() takes a speculated function, not {type(step).__name__}: "
            "pass what torchjanus.speculate returned."
        )
    home = home_of(step.fn)
    place = Place(repr(step.fn), 0) if home == NOWHERE else home
    return Explanation(
        getattr(step, "__name__", None) or type(step.fn).__name__,
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
    )


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
        tuple(f"{_where(a.place)}  is {a.expected}  ({_source(a.place)})" for a in decisions),
        tuple(f"{_where(a.place)}  stays {a.expected}" for a in lowered.assertions),
        tuple(
            f"{plan.slots[slot]} == {value!r}: {lowered.pin_reasons[slot]}" for slot, value in lowered.pinned.items()
        ),
        tuple(map(str, plan.call_groups)),
        tuple(dict.fromkeys(_where(node.place) for node in plan.program.nodes if node.func is found)),
        tuple(entry.engine.notes),
        tuple(entry.engine.reasons),
    )


def _part(region: Region) -> PartExplanation:
    return PartExplanation(
        region.label,
        region.place,
        region.share,
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
            yield when, tuple(f"{_where(event.place)}  {event}" for event in events)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _where(place: Place) -> str:
    if not place.line:
        return "(call)"
    try:
        name = os.path.relpath(place.file)
    except ValueError:  # another drive
        name = place.file
    return f"{name if not name.startswith('..') else place.file}:{place.line}"


def _is_of_code(assumption: Assumption) -> TypeGuard[Identity]:
    """Whether it is about a function of the user's itself: each called function has such assumptions."""
    return isinstance(assumption, Identity) and assumption.access_path.key in (
        "__code__",
        "__defaults__",
        "__kwdefaults__",
    )


def _is_library(place: Place) -> bool:
    return place.is_library or is_trusted_module(place.file.replace(os.sep, "/"))


def _source(place: Place) -> str:
    return linecache.getline(place.file, place.line).strip()


def _lines(explanation: Explanation) -> list[str]:
    s = explanation.statistics
    lines = [
        f"{explanation.name}  ({_where(explanation.place)})",
        f"  {s.calls} calls: {s.speculated} speculated, {s.watched} watched, {s.imperative} imperative; "
        f"{s.missed} missed, {s.violated} violated, {s.refused} refused; {s.compiles} compiles, {s.entries} entries",
    ]
    if explanation.given_up:
        lines.append(f"  runs imperatively: {explanation.given_up}")
    if explanation.being_made:
        lines.append(f"  {explanation.being_made}; until then calls are Python's (step.wait() waits for it)")
    for entry in explanation.entries:
        lines += _entry_lines(entry)
    if explanation.parts:
        lines.append(f"  parts, in {s.partly} calls made with graphs of some; the rest is Python's:")
    for part in explanation.parts:
        lines.append(f"    {part}")
        lines += [f"        {_refused(refusal)}" for refusal in part.refusals]
    if s.watched:
        lines.append(f"  overhead: {explanation.overhead}")
    if explanation.refusals:
        lines.append("  refused:")
        for refusal in explanation.refusals:
            lines.append(f"    {_refused(refusal)}")
            if text := _source(_outer(refusal)):
                lines.append(f"        {text}")
            if refusal.remedy:
                lines.append(f"        instead: {refusal.remedy}")
    own = [remark for remark in explanation.remarks if not _is_library(remark.place)]
    if own:
        lines.append("  not optimised:")
    for remark in own[:_SHOWN]:
        reason = reasons()[remark.reason]
        lines.append(f"    {_where(remark.place)}  {remark.detail or reason.title.rstrip('.')} [{remark.reason}]")
        if text := _source(remark.place):
            lines.append(f"        {text}")
        lines.append(f"        instead: {reason.remedy}")
    shown_events = [event for event in explanation.events if event.kind != "refused"]
    if shown_events:
        lines.append("  what happened:")
        seen: Counter[tuple[str, str]] = Counter((e.kind, e.text) for e in shown_events)
        shown: set[tuple[str, str]] = set()
        for event in shown_events:
            if (event.kind, event.text) not in shown:
                shown.add((event.kind, event.text))
                times = seen[event.kind, event.text]
                more = f" ({times} times)" if times > 1 else ""
                code = f" [{event.reason}]" if event.reason and not event.text.endswith("]") else ""
                lines.append(f"    call {event.call}: {_where(event.place)}  {event.kind}: {event.text}{code}{more}")
    if explanation.codes:
        lines.append("  what a [code] means and what to do: torchjanus explain CODE")
    return lines


def _outer(refusal: Refusal) -> Place:
    """Return the program's line at which something was refused."""
    return refusal.place if refusal.caller == NOWHERE else refusal.caller


def _refused(refusal: Refusal) -> str:
    place = _outer(refusal)
    inner = "" if place is refusal.place else f" (in {_where(refusal.place)})"
    return f"{_where(place)}{inner}  {refusal.what}: {refusal.why} [{refusal.reason}]"


def _entry_lines(entry: EntryExplanation) -> list[str]:
    lines = [
        f"  entry {entry.number}: {entry.nodes} operations, {entry.inputs} tensors in, "
        f"{entry.updates} updated in place; "
        f"run by {entry.executor} {entry.runs} times"
    ]
    lines += [f"    {note}" for note in entry.notes]
    general = [a for a in entry.assumptions if isinstance(a, Arguments | AmbientState | Distinct)]
    special = {id(a) for a in general}
    trusted = [a for a in entry.assumptions if isinstance(a, Kept)]
    code = [a for a in entry.assumptions if _is_of_code(a)]
    special.update(id(a) for a in (*trusted, *code))
    own = [a for a in entry.assumptions if id(a) not in special and not _is_library(a.place)]
    library = [a for a in entry.assumptions if id(a) not in special and _is_library(a.place)]
    if entry.varying:
        lines.append(f"    numbers taken anew at each call: {', '.join(entry.varying)}")
    if entry.fetched:
        names = list(dict.fromkeys(entry.fetched))
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        lines.append(f"    numbers read from tensors before the graph: {len(entry.fetched)} ({shown})")
    for recursion in entry.recursions:
        lines.append(f"    many calls at a time: {recursion}")
    lines.append(f"    assumes ({len(entry.assumptions) - len(trusted)}):")
    lines += [f"      {assumption}" for assumption in general]
    by_line: dict[str, list[str]] = {}
    for assumption in own:
        by_line.setdefault(_where(assumption.place), []).append(str(assumption))
    for where, texts in by_line.items():
        lines.append(f"      {where}")
        lines += [f"        {text}" for text in texts[:_SHOWN]]
        if len(texts) > _SHOWN:
            lines.append(f"        and {len(texts) - _SHOWN} more")
    if code:
        lines.append(f"      the code and defaults of {len({a.access_path.base for a in code})} functions are the same")
    if library:
        kinds = Counter(type(a).__name__ for a in library)
        tensors = sum(isinstance(a, TensorKind) for a in library)
        parts = ", ".join(f"{count} {name}" for name, count in kinds.most_common())
        lines.append(f"      in library code: {len(library)} ({parts}{'; ' if tensors else ''}"
                     f"{f'{tensors} tensors' if tensors else ''})")  # fmt: skip
    for title, listed in (
        ("a tensor decided, in what it shares with other entries", entry.decided),
        ("asserted inside the graph", entry.asserts),
        ("selected inside the graph, which finds out how many there are", entry.selected),
        ("held constant", entry.pinned),
        *entry.externs,
    ):
        if listed:
            lines.append(f"    {title}:")
            lines += [f"      {text}" for text in listed]
    return lines

"""The explanation of a speculated function as its full text: all assumptions, refusals and events."""

from __future__ import annotations

from collections import Counter
from typing import TypeGuard

from torchjanus.core.reasons import reasons
from torchjanus.host.assumption import AmbientState, Arguments, Assumption, Identity
from torchjanus.host.tensor_assumptions import Distinct, TensorKind
from torchjanus.runtime.report.data import EntryExplanation, Explained
from torchjanus.runtime.report.places import is_library, outer, refusal_text, source, where

__all__ = ["detail_lines"]

_SHOWN = 40


def _is_of_code(assumption: Assumption) -> TypeGuard[Identity]:
    """Whether it is about a function of the user's itself: each called function has such assumptions."""
    return isinstance(assumption, Identity) and assumption.access_path.key in (
        "__code__",
        "__defaults__",
        "__kwdefaults__",
    )


def detail_lines(explanation: Explained) -> list[str]:
    """Return the text, a line each."""
    s = explanation.statistics
    lines = [
        f"{explanation.name}  ({where(explanation.place)})",
        f"  {s.calls} calls: {s.speculated} speculated, {s.watched} watched, {s.imperative} imperative; "
        f"{s.missed} missed, {s.violated} violated, {s.refused} refused; {s.compiles} compiles, {s.entries} entries",
    ]
    if explanation.given_up:
        lines.append(f"  runs imperatively: {explanation.given_up}")
    if explanation.being_made:
        until = "until then calls that need it are Python's (step.wait() waits for it)"
        lines.append(f"  {explanation.being_made}; {until}")
    for entry in explanation.entries:
        lines += _entry_lines(entry)
    if explanation.coexecution is not None:
        lines.append(f"  {explanation.coexecution}")
        points = explanation.coexecution.points
        lines += (
            f"    {where(place)}  {what} ({times} times, {seconds * 1e6:.0f} us each)"
            for place, what, times, seconds in points[:_SHOWN]
        )
    if explanation.contest is not None:
        lines.append(f"  {explanation.contest}")
    if explanation.parts:
        lines.append(f"  parts, in {s.partly} calls made with graphs of some; the rest is Python's:")
    for part in explanation.parts:
        lines.append(f"    {part}")
        lines += [f"        {refusal_text(refusal)}" for refusal in part.refusals]
    if s.watched:
        lines.append(f"  overhead: {explanation.overhead}")
    if explanation.refusals:
        lines.append("  refused:")
        for refusal in explanation.refusals:
            lines.append(f"    {refusal_text(refusal)}")
            if text := source(outer(refusal)):
                lines.append(f"        {text}")
            if refusal.remedy:
                lines.append(f"        instead: {refusal.remedy}")
    own = [remark for remark in explanation.remarks if not is_library(remark.place)]
    if own:
        lines.append("  not optimised:")
    for remark in own[:_SHOWN]:
        reason = reasons()[remark.reason]
        lines.append(f"    {where(remark.place)}  {remark.detail or reason.title.rstrip('.')} [{remark.reason}]")
        if text := source(remark.place):
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
                lines.append(f"    call {event.call}: {where(event.place)}  {event.kind}: {event.text}{code}{more}")
    if explanation.codes:
        lines.append("  what a [code] means and what to do: torchjanus explain CODE")
    return lines


def _entry_lines(entry: EntryExplanation) -> list[str]:
    lines = [
        f"  entry {entry.number}: {entry.nodes} operations, {entry.inputs} tensors in, "
        f"{entry.updates} updated in place; "
        f"run by {entry.executor} {entry.runs} times"
    ]
    lines += [f"    {note}" for note in entry.notes]
    general = [a for a in entry.assumptions if isinstance(a, Arguments | AmbientState | Distinct)]
    special = {id(a) for a in general}
    code = [a for a in entry.assumptions if _is_of_code(a)]
    special.update(id(a) for a in code)
    own = [a for a in entry.assumptions if id(a) not in special and not is_library(a.place)]
    library = [a for a in entry.assumptions if id(a) not in special and is_library(a.place)]
    if entry.varying:
        lines.append(f"    numbers read at each call: {', '.join(entry.varying)}")
    if entry.fetched:
        names = list(dict.fromkeys(entry.fetched))
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        lines.append(f"    numbers read from tensors before the graph: {len(entry.fetched)} ({shown})")
    for recursion in entry.recursions:
        lines.append(f"    many calls at a time: {recursion}")
    lines.append(f"    assumes ({len(entry.assumptions)}):")
    lines += [f"      {assumption}" for assumption in general]
    by_line: dict[str, list[str]] = {}
    for assumption in own:
        by_line.setdefault(where(assumption.place), []).append(str(assumption))
    for place, texts in by_line.items():
        lines.append(f"      {place}")
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

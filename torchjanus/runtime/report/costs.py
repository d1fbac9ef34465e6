"""What costs a speculated function most: refusals, parts that are Python's, misses, violations. Each with its price and
the way out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchjanus.core.errors import Place
from torchjanus.core.reasons import reasons
from torchjanus.runtime import Event
from torchjanus.runtime.report.data import Explained
from torchjanus.runtime.report.places import outer
from torchjanus.runtime.runs.call_times import COMPILED, GRAPH

__all__ = ["Cost", "costs_of"]

_KINDS = ("miss", "violation", "raised", "fault", "verify")
# What to do, by what the text of a miss contains.
_REMEDIES = (
    ("is the same", "Make the object once, outside of the step."),
    ("keys of", "Use the same keys in each call, with None where there is nothing."),
    (" is of type ", "Nothing: each class gets a graph of its own."),
    (" is True, but", "Nothing, if both happen often: each gets a graph of its own."),
    (" is False, but", "Nothing, if both happen often: each gets a graph of its own."),
    (" == ", "Each value gets a graph of its own: keep it constant, or compute with it as a number or a tensor."),
    (".shape[", "Pad to a few sizes."),
)
_BRANCH = "Both ways get a graph if they are taken often. If not: torch.where(), or decide outside of the step."


@dataclass(frozen=True, slots=True)
class Cost:
    """``seconds``: what ``calls`` calls took longer for it, together; with ``each``, what each call takes for it. 0.0
    where it was not measured."""

    what: str
    place: Place
    reason: str
    remedy: str
    calls: int = 1
    seconds: float = 0.0
    each: bool = False

    @property
    def price(self) -> str:
        """The price, in milliseconds or seconds."""
        if not self.seconds:
            return "each call" if self.each else "-"
        shown = f"{self.seconds * 1e3:.{0 if self.seconds >= 0.1 else 2 if self.seconds < 1e-3 else 1}f} ms"
        return f"{shown if self.seconds < 1 else f'{self.seconds:.1f} s'}{' a call' if self.each else ''}"


def costs_of(explained: Explained) -> list[Cost]:
    """Return what cost most, the dearest first."""
    eager = explained.eager
    lasting = [*_refused(explained, eager), *_parts(explained, eager)]
    lasting.sort(key=lambda cost: -cost.seconds)
    return [*lasting, *sorted(_events(explained), key=lambda cost: -cost.seconds)]


def _refused(explained: Explained, eager: float) -> Iterator[Cost]:
    """Yield what keeps the whole step from having a graph; where there is one, nothing does. What several lines of a
    library meet for one line of the program is one cost."""
    if not explained.entries:
        found = {(f"{one.what}: {one.why}", outer(one), one.reason, one.remedy): None for one in explained.refusals}
        for what, place, reason, remedy in found:
            yield Cost(what, place, reason, remedy, seconds=eager, each=True)


def _parts(explained: Explained, eager: float) -> Iterator[Cost]:
    for part in explained.parts:
        if part.why and part.share:
            first = part.refusals[0] if part.refusals else None
            code, remedy = (first.reason, first.remedy) if first else ("", "")
            why = f"{first.what}: {first.why}" if first else part.why
            what = f"Python makes {part.label}: {why}"
            yield Cost(what, part.place, code, remedy, part.calls, part.share * eager, each=True)


def _events(explained: Explained) -> Iterator[Cost]:
    times = explained.times
    served = times.typical(COMPILED) or times.typical(GRAPH)
    longer = {one.number: max(0.0, one.seconds - served) for one in times.unserved}
    relaxed = {event.text.partition(": relaxed")[0] for event in explained.events if event.kind == "relax"}
    in_call: dict[int, int] = {}
    groups: dict[tuple[str, Place, str], list[Event]] = {}
    for event in explained.events:
        if event.kind in _KINDS:
            in_call[event.call] = in_call.get(event.call, 0) + 1
            groups.setdefault((event.kind, event.place, event.text.partition(", but now")[0]), []).append(event)
    for (kind, place, assumed), events in groups.items():
        calls = {event.call for event in events}
        seconds = sum(longer.get(event.call, 0.0) / in_call[event.call] for event in events)
        yield Cost(
            f"{kind}: {events[-1].text}", place, events[-1].reason, _remedy(kind, assumed, relaxed, events[-1]),
            len(calls), seconds,
        )  # fmt: skip


def _remedy(kind: str, assumed: str, relaxed: set[str], event: Event) -> str:
    if event.reason in reasons():
        return reasons()[event.reason].remedy
    if kind != "miss":
        return _BRANCH if kind == "violation" else ""
    name = assumed.split(" == ", maxsplit=1)[0].split(" is ", maxsplit=1)[0]
    names = (one for text in relaxed for one in text.split(" was ")[0].split(", "))
    sizes = next((one for one in names if one.startswith(f"{name}.shape[")), "")
    if sizes or assumed in relaxed:
        saved = f' torchjanus.vary("{sizes or name}") saves the miss.' if sizes or " == " in assumed else ""
        return f"Nothing: it is an input now.{saved}"
    return next((remedy for part, remedy in _REMEDIES if part in event.text), "")

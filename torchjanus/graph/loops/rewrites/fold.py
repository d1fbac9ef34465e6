"""Runs that differ only in how often a loop went round, told as one path: each loop is cut down to its first rounds.

What is cut must have done what the rounds before it did, and no more may be known of it than of them: see
``trace.events.Rounds``. Marks among the operations say where a loop's rounds begin and end and how many there really
are; ``loop_roll`` makes a loop node of them. Knows traces, not programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchjanus.core.access_path import Step
from torchjanus.graph.loops.analysis.alignment import LoopOfRun, UnlikeRounds
from torchjanus.graph.loops.analysis.candidates import loops_of
from torchjanus.graph.loops.analysis.cut import KEPT, Cut
from torchjanus.graph.loops.analysis.recurrences import reckoned_rounds
from torchjanus.graph.loops.analysis.tensor_termination import is_question
from torchjanus.graph.loops.rewrites.accumulators import apart
from torchjanus.graph.loops.rewrites.attribute_state import stored_behind
from torchjanus.graph.loops.rewrites.carried_distance import handed_on
from torchjanus.graph.loops.rewrites.collected_outputs import collected
from torchjanus.graph.loops.rewrites.filled_tensors import filled_rounds
from torchjanus.graph.loops.rewrites.foreach import one_by_one
from torchjanus.graph.loops.rewrites.growing_tensors import grown_rounds
from torchjanus.graph.loops.rewrites.idle_loops import without_idle
from torchjanus.graph.loops.rewrites.in_place_state import handed_apart
from torchjanus.graph.loops.rewrites.lists import lengths_of, listed, rows_of
from torchjanus.graph.loops.rewrites.nests import Nested, nested, prepared
from torchjanus.graph.loops.roll.reversal import turned
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace

__all__ = ["KEPT", "Brief", "Chosen", "Shortened", "brief", "is_told_in_brief", "shorten"]


@dataclass(frozen=True, slots=True)
class Shortened:
    """The run with its loops cut down, how many rounds they had, and which came to their limit before a tensor ended
    them. ``open``: which of these may have another limit at another call. ``order``: of the loops that tensors end, the
    how-manieth it is among all such of the run."""

    trace: Trace
    counts: tuple[int, ...]
    full: tuple[bool, ...]
    open: tuple[bool, ...]
    order: tuple[int, ...]
    ends: tuple[int, ...] = ()  # the events at which they end
    lists: tuple[int, ...] = ()  # how long lists of tensors were that are one tensor now
    ended: int = 0  # how many loops the run has that tensors end
    inner: tuple[tuple[int, ...], ...] = ()  # of each loop, how many rounds those within one of its rounds had

    def leasts(self, counts: Sequence[int]) -> Iterator[int]:
        """Of these counts, which are those of all loops that tensors end, those of the loops that were cut down. Where
        not all of them were found in brief nothing is known of fewer rounds than are kept."""
        return (counts[number] if len(counts) == self.ended else KEPT for number in self.order)

    def ways(self) -> list[int]:
        """What led to each loop, as a number: equal where two runs did the same up to the end of the loop's rounds,
        whatever became of the question that ended them."""
        found, past, before = [], 0, 0
        for position, event in enumerate(self.trace.events):
            if position in self.ends:
                found.append(before)
            before, past = past, hash((past, event.token))
        return found


@dataclass(frozen=True, slots=True)
class Chosen:
    """What becomes of a loop: whether it is cut down, whether its number of rounds has to be what it was then, and
    whether the rounds of those within its rounds stay one behind the other; if not, which of these have to have just
    as many as they had."""

    cut: bool
    held: bool = False
    flat: bool = False
    within: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Brief:
    """The run with one round of each loop that a tensor ends: equal tokens mean that any number of rounds leads to the
    same. How many there were."""

    tokens: tuple[Any, ...]
    counts: tuple[int, ...]


def shorten(trace: Trace, which: Sequence[Chosen] | None = None) -> Shortened | None:
    """The run with ``KEPT`` rounds of each loop of a changeable number of rounds; None if it has no such loop.
    ``which``: of those that are long enough, what becomes of them; without it all are cut down."""
    run, alone = stored_behind(one_by_one(trace)), set[int]()
    while True:
        trace, filling = filled_rounds(run, alone)
        trace, growing = grown_rounds(trace, alone)
        filling |= growing
        trace = turned(handed_on(collected(apart(handed_apart(reckoned_rounds(without_idle(listed(trace))))))))
        trace = prepared(trace)
        levels, found = _levels(trace, which)
        fit = [loop for loop in found if loop.count >= KEPT]
        if which is not None and len(fit) != len(which):
            return None
        trace = levels.trace
        ends = {loop.end for loop in fit}
        untold = {n for n, one in zip(levels.left, trace.rounds, strict=True) if one.end not in ends}
        if not filling & untold:
            break
        alone |= filling & untold  # rounds that are not told once fill it one after the other
    lists, spared = lengths_of(trace), set[Any]()
    if which is not None:
        full = {one.end for n, one in zip(levels.left, trace.rounds, strict=True) if n in filling}
        spared = {loop.token for loop, chosen in zip(fit, which, strict=True) if chosen.held}
        fit = [loop for loop, chosen in zip(fit, which, strict=True) if chosen.cut or loop.end in full]
    if not fit:
        return Shortened(Cut(trace, []).trace(), (), (), (), (), (), lists) if lists and _is_whole(trace) else None
    inner = tuple(levels.inner.get(loop.end, ()) for loop in fit)
    ended = [loop for loop in found if loop.until is not None]
    order = tuple(number for number, loop in enumerate(ended) if loop in fit)
    try:
        counts, to_the_end = tuple(loop.count for loop in fit), tuple(loop.full for loop in fit)
        limited = tuple(loop.full and loop.rounds.whole is not None for loop in fit)
        whole = tuple(loop for loop in found if loop not in fit)
        cut = Cut(trace, fit, spared=frozenset(spared), whole=whole)
        return Shortened(cut.trace(), counts, to_the_end, limited, order, tuple(cut.ended), lists, len(ended), inner)
    except UnlikeRounds:
        return None


def _levels(trace: Trace, which: Sequence[Chosen] | None) -> tuple[Nested, list[LoopOfRun]]:
    """The run with the loops within rounds cut down, and those of a changeable number of rounds that it has then."""
    left: set[int] = set()
    held: dict[int, frozenset[int]] = {}
    while True:
        levels = nested(trace, left, held)
        found = loops_of(levels.trace)
        fit = [loop for loop in found if loop.count >= KEPT]
        alone = set(levels.ends.values()) - {levels.ends.get(loop.end) for loop in fit}
        chosen = {loop.end: one for loop, one in zip(fit, which or (), strict=False) if loop.end in levels.ends}
        # What is within the loops in rounds cannot be held alone.
        flat = {end for end, one in chosen.items() if one.flat or any(n >= levels.widths[end] for n in one.within)}
        alone |= {levels.ends[end] for end in flat}
        holding = {levels.ends[end]: one.within for end, one in chosen.items() if one.within and end not in flat}
        if not alone and holding == held:
            return levels, found
        left |= alone
        held = holding


def brief(trace: Trace) -> Brief | None:
    """What the run has in common with those of fewer than ``KEPT`` rounds; None if no tensor ends a loop of it."""
    return _in_brief(apart(reckoned_rounds(without_idle(listed(trace)))))[0]


def is_told_in_brief(trace: Trace, end: int) -> bool:
    """Whether the run has a brief form in which a loop is cut down that a tensor ends, and whose last round ended
    before this event."""
    told = reckoned_rounds(trace)
    found, loops = _in_brief(told)
    asked = sum(map(is_question, trace.events[:end]))
    return found is not None and any(
        loop.until is not None and sum(map(is_question, told.events[: loop.end])) == asked for loop in loops
    )


def _in_brief(trace: Trace) -> tuple[Brief | None, list[LoopOfRun]]:
    fit = loops_of(trace)
    counts = tuple(loop.count for loop in fit if loop.until is not None)
    if not counts:
        return None, fit
    try:
        return Brief(Cut(trace, fit, 1).trace().tokens(), counts), fit
    except UnlikeRounds:
        return None, fit


def _is_whole(trace: Trace) -> bool:
    """Whether no list of tensors is taken apart: any number of elements leads to the same."""
    made = {number for number, origin in trace.origins.items() if origin.step is Step.OF and origin.key is rows_of}
    apart_ = (e for e in trace.events if isinstance(e, Op) and e.name == "Tensor.unbind" and e.args)
    return not any(getattr(event.args[0], "number", None) in made for event in apart_)

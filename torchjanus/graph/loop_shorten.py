"""Runs that differ only in how often a loop went round, told as one path: each loop is cut down to its first rounds.

What is cut must have done what the rounds before it did, and no more may be known of it than of them: see
``trace.events.Rounds``. Marks among the operations say where a loop's rounds begin and end and how many there really
are; ``loop_roll`` makes a loop node of them. Knows traces, not programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchjanus.graph.loop_alike import LoopOfRun, UnlikeRounds
from torchjanus.graph.loop_cut import KEPT, Cut
from torchjanus.graph.loop_filling import filled_rounds
from torchjanus.graph.loop_growing import grown_rounds
from torchjanus.graph.loop_handed import handed_on
from torchjanus.graph.loop_lists import lengths_of, listed, rows_of
from torchjanus.graph.loop_reckoned import passes_on, reckoned_rounds
from torchjanus.graph.loop_rounds import end_rounds
from torchjanus.graph.loop_turned import turned
from torchjanus.graph.loop_until import untils
from torchjanus.graph.loop_versions import apart
from torchjanus.origin import Step
from torchjanus.trace.events import Computed, Op, Rounds, TensorRef, Trace, Until
from torchjanus.trace.values import Fetch, leaves

__all__ = ["KEPT", "Brief", "Shortened", "brief", "shorten"]


@dataclass(frozen=True, slots=True)
class Shortened:
    """The run with its loops cut down, how many rounds they had, and which came to their limit before a tensor ended
    them. ``order``: of the loops that tensors end, the how-manieth it is among all such of the run."""

    trace: Trace
    counts: tuple[int, ...]
    full: tuple[bool, ...]
    order: tuple[int, ...]
    lists: tuple[int, ...] = ()  # how long lists of tensors were that are one tensor now

    def leasts(self, counts: Sequence[int]) -> Iterator[int]:
        """Of these counts, which are those of all loops that tensors end, those of the loops that were cut down."""
        return (counts[number] for number in self.order)

    def ways(self) -> list[int]:
        """What led to each loop, as a number: equal where two runs did the same up to the end of the loop's rounds,
        whatever became of the question that ended them."""
        found, past, before = [], 0, 0
        for event in self.trace.events:
            if isinstance(event, Op) and event.func is end_rounds:
                found.append(before)
            before, past = past, hash((past, event.token))
        return found


@dataclass(frozen=True, slots=True)
class Brief:
    """The run with one round of each loop that a tensor ends: equal tokens mean that any number of rounds leads to the
    same. How many there were."""

    tokens: tuple[Any, ...]
    counts: tuple[int, ...]


def shorten(trace: Trace, which: Sequence[bool] | None = None) -> Shortened | None:
    """The run with ``KEPT`` rounds of each loop of a changeable number of rounds; None if it has no such loop.
    ``which``: of those that are long enough, which to cut down; without it all."""
    run, alone = trace, set[int]()
    while True:
        trace, filling = filled_rounds(run, alone)
        trace, growing = grown_rounds(trace, alone)
        filling |= growing
        trace = turned(handed_on(apart(reckoned_rounds(listed(trace)))))
        found = _fit(trace)
        fit = [loop for loop in found if loop.count >= KEPT]
        told = {number for number, rounds in enumerate(trace.rounds) if any(rounds.end == loop.end for loop in fit)}
        if filling <= told:
            break
        alone |= filling - told  # rounds that are not told once fill it one after the other
    lists = lengths_of(trace)
    if which is not None:
        full = {trace.rounds[number].end for number in filling}
        fit = [loop for loop, chosen in zip(fit, which, strict=True) if chosen or loop.end in full]
    if not fit:
        return Shortened(Cut(trace, []).trace(), (), (), (), lists) if lists and _is_whole(trace) else None
    ended = [loop for loop in found if loop.until is not None]
    order = tuple(number for number, loop in enumerate(ended) if loop in fit)
    try:
        return Shortened(
            Cut(trace, fit).trace(), tuple(loop.count for loop in fit), tuple(loop.full for loop in fit), order, lists
        )
    except UnlikeRounds:
        return None


def brief(trace: Trace) -> Brief | None:
    """What the run has in common with those of fewer than ``KEPT`` rounds; None if no tensor ends a loop of it."""
    trace = apart(trace)
    fit = _fit(trace)
    counts = tuple(loop.count for loop in fit if loop.until is not None)
    if not counts:
        return None
    try:
        return Brief(Cut(trace, fit, 1).trace().tokens(), counts)
    except UnlikeRounds:
        return None


def _is_whole(trace: Trace) -> bool:
    """Whether no list of tensors is taken apart: any number of elements leads to the same."""
    made = {number for number, origin in trace.origins.items() if origin.step is Step.OF and origin.key is rows_of}
    apart_ = (e for e in trace.events if isinstance(e, Op) and e.name == "Tensor.unbind" and e.args)
    return not any(getattr(event.args[0], "number", None) in made for event in apart_)


def _fit(trace: Trace) -> list[LoopOfRun]:
    """The loops of a changeable number of rounds."""
    fit: list[LoopOfRun] = []
    if trace.failures:
        return fit
    known = [one for rounds in trace.rounds for one in (rounds, rounds.without_first())]
    for rounds in sorted((*known, *untils(trace)), key=lambda rounds: rounds.starts[:1]):
        least = 1 if isinstance(rounds.count, Until) else KEPT
        inside = fit and rounds.starts and rounds.starts[0] < fit[-1].rounds.end
        if len(rounds.starts) < least or inside or trace.measured > rounds.starts[0]:
            continue
        counted = set(rounds.counted())
        if any(plain.position >= rounds.end and counted.intersection(plain.operands) for plain in trace.plain):
            continue  # what is made of a count may decide anything
        if passes_on(trace, rounds) or _computes_on(trace, rounds):
            continue
        try:
            fit.append(LoopOfRun(trace, rounds))
        except UnlikeRounds:
            continue
    while (free := [loop for loop in fit if _is_free(trace, loop, fit)]) != fit:
        fit = free
    return fit


def _computes_on(trace: Trace, rounds: Rounds) -> bool:
    """Whether Python computes, when the rounds are over, with a number of a tensor that they have changed: a graph
    could not, and the host knows it beforehand only if it knows how many rounds there are."""
    later = [event.expr for event in trace.events[rounds.end :] if isinstance(event, Computed)]
    if not later or not rounds.starts:
        return False
    changed = {
        ref for event in trace.events[rounds.starts[0] : rounds.end] if isinstance(event, Op) for ref in event.outs
    }
    done = sum(isinstance(event, Op) for event in trace.events[: rounds.end])
    fetched = (leaf for expr in later for leaf in leaves(expr) if isinstance(leaf, Fetch))
    return any(leaf.after >= done and leaf.ref in trace.origins and TensorRef(leaf.ref) in changed for leaf in fetched)


def _is_free(trace: Trace, loop: LoopOfRun, loops: list[LoopOfRun]) -> bool:
    """Whether the number of rounds decides nothing but the number of rounds."""
    token = loop.token
    return token is None or trace.pins.get(token, 0) == sum(one.token == token and one.pinned for one in loops)

"""Which loops of a run may be told for any number of rounds.

Knows what rounds did, not how a run is cut down.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torchjanus.graph.loops.analysis.alignment import KEPT, LoopOfRun, UnlikeRounds, token_of_count
from torchjanus.graph.loops.analysis.recurrences import passes_on
from torchjanus.graph.loops.analysis.tensor_termination import untils
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Computed
from torchjanus.trace.plains import by_round
from torchjanus.trace.rounds import Plain, Rounds, Until
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, leaves

__all__ = ["as_loop", "loops_of", "token_of_count"]


def loops_of(trace: Trace) -> list[LoopOfRun]:
    """The loops of a changeable number of rounds, none of them within another."""
    if trace.failures:
        return []
    known = [one for rounds in trace.rounds for one in (rounds, rounds.without_first())]
    known = sorted((*known, *untils(trace)), key=lambda rounds: rounds.starts[:1])
    made: dict[int, LoopOfRun | None] = {}
    bound: set[Any] = set()  # numbers that decide more than how many rounds there are
    while True:
        fit: list[LoopOfRun] = []
        for number, rounds in enumerate(known):
            inside = fit and rounds.starts and rounds.starts[0] < fit[-1].rounds.end
            if inside or token_of_count(rounds) in bound:
                continue
            if number not in made:
                made[number] = as_loop(trace, rounds)
            if (loop := made[number]) is not None:
                fit.append(loop)
        if all(_is_free(trace, loop, fit) for loop in fit):
            return fit
        bound.update(loop.token for loop in fit if not _is_free(trace, loop, fit))


def as_loop(trace: Trace, rounds: Rounds, plain: Sequence[Plain] | None = None) -> LoopOfRun | None:
    """The loop, if nothing but the number of rounds tells one run of it from another. ``plain``: what the program may
    have computed of that number, or of the last round's; all, if it is not given."""
    least = 1 if isinstance(rounds.count, Until) else KEPT
    if len(rounds.starts) < least or trace.measured > rounds.starts[0]:
        return None
    counted = frozenset(rounds.counted())
    made = trace.plain if plain is None else plain
    after = (one for one in made if one.position >= rounds.end and counted.intersection(one.operands))
    if not all(_goes_by_rounds(trace, one, counted) for one in after):
        return None  # what is made of a count may decide anything
    if passes_on(trace, rounds) or _computes_on(trace, rounds):
        return None
    try:
        return LoopOfRun(trace, rounds)
    except UnlikeRounds:
        return None


def _goes_by_rounds(trace: Trace, plain: Plain, counted: frozenset[int]) -> bool:
    """Whether it is each round of a later loop that has computed this of its own number, or found a tensor in a list by
    it; what else it has computed of is none of these. All its rounds have, if that loop is told at all; or else the
    number of its rounds is a constant, and so is that of the loop before."""
    for rounds in trace.rounds:
        if len(rounds.starts) < KEPT or not rounds.starts[0] <= plain.position <= rounds.end:
            continue
        rows = by_round(trace.plain, (*rounds.starts, rounds.end + 1))
        place = next(((n, row.index(plain)) for n, row in enumerate(rows) if plain in row), None)
        if place is None or len({len(row) for row in rows}) > 1:
            continue
        column = [row[place[1]] for row in rows]
        if plain.lookup:
            return all(one.lookup and one.told.goes_with(plain.told) for one in column)
        firsts = [one.operands[0] for one in column if one.operands]
        steps = {later - earlier for earlier, later in itertools.pairwise(firsts)}
        if len(firsts) == len(column) and len(steps) == 1 and steps != {0}:
            return counted.isdisjoint(plain.operands[1:])
    return False


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

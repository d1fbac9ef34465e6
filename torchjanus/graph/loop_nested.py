"""Loops within rounds of other loops: the inner ones are cut down first, and are part of what rounds of the outer do.

The marks between which their rounds stand are operations of the outer round then, and the number of their rounds is an
argument of these. Knows traces, not programs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.graph.loop_alike import KEPT, LoopOfRun, UnlikeRounds
from torchjanus.graph.loop_cut import Cut
from torchjanus.graph.loop_found import as_loop, token_of_count
from torchjanus.graph.loop_hoisted import hoisted
from torchjanus.graph.loop_sums import begun_within
from torchjanus.graph.loop_until import untils
from torchjanus.trace.events import Effectful, Rounds, Trace, Until
from torchjanus.trace.plains import are_same
from torchjanus.trace.recipes import Repeat, parts_of

__all__ = ["Nested", "nested", "summed"]


@dataclass(slots=True)
class Nested:
    """A run with the loops in rounds of others cut down. ``ends``: of each loop whose rounds have such loops, by where
    it ends, where it did in the run as it was; ``inner``: how many rounds the loops in its rounds had."""

    trace: Trace
    ends: dict[int, int] = field(default_factory=dict)
    inner: dict[int, frozenset[int]] = field(default_factory=dict)


def nested(trace: Trace, flat: Collection[int] = ()) -> Nested:
    """The run with loops within rounds cut down, where the loop around is one for any number of rounds. ``flat``: where
    those end that are left as they are."""
    if trace.failures or not any(_innermost(trace)) or any(True for _ in untils(trace)):
        return Nested(trace)
    found = Nested(trace)
    left = set(flat)
    while True:
        outers = [one for one in _innermost(found.trace) if found.ends.get(one.end, one.end) not in left]
        if not outers:
            return found
        made = _Cutting(found, outers).made()
        if isinstance(made, Nested):
            found = made
        else:
            left |= made


def summed(trace: Trace) -> Trace:
    """The run in which sums over loops in rounds, and over the loops around, begin with tensors."""
    nests = [(outer, _within(trace, outer)) for outer in trace.rounds if outer.starts]
    return begun_within(trace, [one for outer, inner in nests if inner for one in (outer, *inner)])


def _within(trace: Trace, outer: Rounds) -> list[Rounds]:
    """The loops in its rounds."""
    return [one for one in trace.rounds if one.starts and outer.starts[0] <= one.starts[0] and one.end < outer.end]


def _innermost(trace: Trace) -> Iterator[Rounds]:
    """The loops in whose rounds there are loops, but in whose rounds there are none."""
    for outer in trace.rounds:
        if isinstance(outer.count, Until) or len(outer.starts) < KEPT or outer.reckoned is not None:
            continue
        inner = _within(trace, outer)
        if inner and not any(_within(trace, one) for one in inner):
            yield outer


class _Cutting:
    """One level of loops."""

    def __init__(self, known: Nested, outers: Sequence[Rounds]) -> None:
        self.known, self.outers = known, outers
        self.trace, self.ends = hoisted(known.trace, [(one, _within(known.trace, one)) for one in outers])
        rounds = {one.end: one for one in self.trace.rounds}
        self.outers = [rounds[self.ends[one.end]] for one in outers]

    def made(self) -> Nested | set[int]:
        """The run with the loops in the rounds of these cut down; or the ends, in the run as it was, of those with
        which that cannot be done."""
        loops: dict[int, list[LoopOfRun]] = {}
        for outer in self.outers:
            inner = _within(self.trace, outer)
            found = [self._loop(one, inner) for one in inner]
            if self._is_apart(outer, inner):
                loops[outer.end] = [loop for loop in found if loop is not None]
        while bound := {end for end, inner in loops.items() if not inner or not self._are_free(inner, loops)}:
            for end in bound:
                del loops[end]
        if not loops:
            return {self._origin(one) for one in self.outers}
        fit = sorted((loop for inner in loops.values() for loop in inner), key=lambda loop: loop.end)
        spared = {token_of_count(outer) for outer in self.outers}
        cut = Cut(self.trace, fit, spared=frozenset(spared))
        try:
            trace = cut.trace()
        except UnlikeRounds:
            return {self._origin(one) for one in self.outers}
        if cut.told.numbers() or (_has_rows(trace) and not _has_rows(self.trace)):
            return {self._origin(one) for one in self.outers}
        self._carry_over(cut, trace, fit)
        after = {cut.places[one.end]: one for one in self.outers}
        unfit = {
            self._origin(after[one.end])
            for one in trace.rounds
            if one.end in after
            and as_loop(trace, one) is None
            and as_loop(trace, one.without_first()) is None
        }
        unfit |= {self._origin(one) for one in self.outers if one.end not in loops}
        if unfit:
            return unfit
        made = Nested(trace)
        for end, one in after.items():
            known = self.known.inner.get(next(old for old, new in self.ends.items() if new == one.end), frozenset())
            made.ends[end] = self._origin(one)
            made.inner[end] = known | {loop.count for loop in loops[one.end]}
        return made

    def _origin(self, outer: Rounds) -> int:
        """Where it ended in the run as it was."""
        end = next(old for old, new in self.ends.items() if new == outer.end)
        return self.known.ends.get(end, end)

    def _loop(self, rounds: Rounds, others: Sequence[Rounds]) -> LoopOfRun | None:
        """One that is within rounds, if it can be cut down."""
        if isinstance(rounds.count, Until) or len(rounds.starts) < KEPT or rounds.reckoned is not None:
            return None
        if any(isinstance(event, Effectful) for event in self.trace.events[rounds.starts[0] : rounds.end]):
            return None
        return as_loop(self.trace, rounds, others)

    def _is_apart(self, outer: Rounds, inner: Sequence[Rounds]) -> bool:
        """Whether no loop in its rounds could tell by plain numbers in which of them it is."""
        limits = [*outer.starts, outer.end]
        rows: list[list[Any]] = []
        for begin, end in zip(limits, limits[1:], strict=False):
            own = [one for one in inner if begin <= one.starts[0] < end]
            rows.append(
                [p for p in self.trace.plain if any(one.starts[0] <= p.position < one.end for one in own)],
            )
        return len({len(row) for row in rows}) == 1 and are_same(rows)

    def _are_free(self, inner: Sequence[LoopOfRun], loops: dict[int, list[LoopOfRun]]) -> bool:
        """Whether the numbers of their rounds decide nothing else."""
        every = [loop for some in loops.values() for loop in some]
        for token in {loop.token for loop in inner} - {None}:
            pinned = sum(one.token == token and one.pinned for one in every)
            pinned += sum(token_of_count(outer) == token for outer in self.outers)
            if self.trace.pins.get(token, 0) not in (0, pinned):
                return False
        return True

    def _carry_over(self, cut: Cut, trace: Trace, fit: Sequence[LoopOfRun]) -> None:
        """What the run says of where among its events things are, and of its tensors, in the new run."""
        old, places = self.trace, cut.places
        done = {loop.end for loop in fit}
        trace.rounds = [
            replace(
                one,
                starts=tuple(places[at] for at in one.starts),
                end=places[one.end],
                count=one.count if isinstance(one.count, Until) else cut.outside(one.count),
                asked=tuple(map(cut.outside, one.asked)),
            )
            for one in old.rounds
            if one.end not in done
        ]
        trace.plain = [replace(one, position=places[one.position]) for one in old.plain]
        trace.measured = places.get(old.measured, old.measured)
        trace.kinds = {new: old.kinds[number] for number, new in cut.numbers.items() if number in old.kinds}
        memory = {new: old.memory[number] for number, new in cut.numbers.items()} if old.memory else {}
        trace.memory = [memory[number] for number in range(len(memory))]
        trace.pins = dict(old.pins)
        for loop in fit:
            if loop.token is not None and loop.pinned and trace.pins.get(loop.token):
                trace.pins[loop.token] -= 1
        trace.alive = [*old.alive, old]


def _has_rows(trace: Trace) -> bool:
    """Whether what leaves the call has a part for each round."""
    recipes = [trace.result, *(recipe for some in trace.recipes.values() for recipe in some)]
    return any(isinstance(part, Repeat) for one in recipes if one is not None for part in parts_of(one))

"""Watching loops that go on as long as a plain number of their own is below one from before the call:
``while i < n: ...; i += 1``. They are told as loops over ``range(i, n)`` are.

What was asked is noted when the loop has come to its end: that it made so many rounds, or, where it was left otherwise
or its number did not go up by the same in each round, all that was asked. Only loops that are in no other are watched
so: for the rounds of another one the number may say which of them they are. Knows nothing of what is made of a loop.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from torchjanus.errors import Place
from torchjanus.rewrite import Site
from torchjanus.semantics.going_round import GoingRound
from torchjanus.semantics.rebinding import is_suspended
from torchjanus.semantics.watch_rounds import RoundWatch
from torchjanus.trace.events import Entered, Left
from torchjanus.trace.rounds import Turns
from torchjanus.trace.values import Apply, Expr, Read, Size, Traced, leaves, plain, trace_value

__all__ = ["Asking", "WhileWatch", "is_limit"]

_MIRRORED = {">": "<", ">=": "<=", "!=": "!="}
_FUNCTIONS = {"<": operator.lt, "<=": operator.le, "!=": operator.ne}


@dataclass(slots=True, eq=False)
class Asking:
    """A ``while`` that is going on. ``op``: what is asked of its number and of the ``limit``, in this order;
    ``numbers``: those that were below it."""

    site: Site
    op: str
    limit: Expr
    going: GoingRound
    numbers: list[int] = field(default_factory=list)

    def facts(self) -> list[Expr]:
        """What was asked, where it cannot be told as a loop."""
        return [Apply(_FUNCTIONS[self.op], (number, self.limit)) for number in self.numbers]

    def decided(self) -> list[int]:
        """Which numbers have decided something, where it cannot."""
        return self.numbers

    def span(self, end: int) -> range | None:
        """The numbers of the rounds, where they go up by the same. ``end``: what was not below the limit."""
        first, steps = self.numbers[0], {b - a for a, b in zip(self.numbers, [*self.numbers[1:], end], strict=True)}
        step = steps.pop()
        even = not steps and step > 0 and first >= 0 and (step == 1 or (first == 0 and self.op != "!="))
        return range(first, end, step) if even else None

    def past(self) -> Expr:
        """The number that is the first one behind those below the limit."""
        return Apply(operator.add, (self.limit, 1)) if self.op == "<=" else self.limit


class WhileWatch(RoundWatch):
    """The leaves, as far as such loops are concerned."""

    _asking: Asking | None = None  # the loop that is going on

    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if at is None or at.kind != "turning":
            return super().native_compare(at, op, a, b)
        if isinstance(a, Traced) and type(b) is int:
            op, a, b = _MIRRORED.get(op, ""), b, a
        limited = type(a) is int and isinstance(b, Traced) and type(plain(b)) is int and is_limit(b.expr)
        if op not in _FUNCTIONS or not limited:
            return super().native_compare(at, op, a, b)
        self.at(at)
        outcome = _FUNCTIONS[op](a, plain(b))
        asking = self._asking
        if asking is not None and not (self._goes_on(asking, at) and asking.limit.token == b.expr.token):
            self._leave()
            asking = None
        if asking is None and outcome and self._may_begin(at):
            asking = self._asking = self._begun(at, op, b.expr)
        if asking is None or (outcome and not _goes_up(asking, a)):
            self._leave()
            return super().native_compare(at, op, a, b)
        if outcome:
            asking.numbers.append(a)
            asking.going.begin(a, ())
        else:
            self._asking = None
            self._come_to_end(asking, a, b)
        return outcome

    def _may_begin(self, at: Site) -> bool:
        if self._in_library(at) or is_suspended():
            return False
        return all(turns.end is not None for turns in self.recording.trace.turns)

    def _begun(self, at: Site, op: str, limit: Expr) -> Asking:
        asking = Asking(at, op, limit, self._going())
        self.recording.unfinished.append(lambda: self._leave(asking))
        return asking

    def _going(self) -> GoingRound:
        """A loop that begins."""
        place: Place = self.recording.place
        turns = Turns([], None, len(self.recording.trace.plain))
        return GoingRound(self.recording, self._known("_counters"), place, turns, True, None)

    def _goes_on(self, asking: Asking, at: Site) -> bool:
        """Whether it is the same loop that asks once more: the function that it is in has not been left."""
        if asking.site is not at:
            return False
        deep = 0
        for event in self.recording.trace.events[asking.going.starts[-1] :]:
            deep += isinstance(event, Entered) - isinstance(event, Left)
            if deep < 0:
                return False
        return deep == 0

    def _leave(self, asking: Asking | None = None) -> None:
        """The loop that was going on is left, or none of those that can be told: what it has asked is noted."""
        asking = asking or self._asking
        if asking is None or asking is not self._asking:
            return
        self._asking = None
        asking.going.leave()
        self._note_asked(asking)

    def _note_asked(self, asking: Asking) -> None:
        here, self.recording.place = self.recording.place, asking.going.place
        for number in asking.decided():
            self._note_values(asking.site, asking.op, number)
        for fact in asking.facts():
            self.recording.hold(fact, True)
        self.recording.place = here

    def _come_to_end(self, asking: Asking, end: int, limit: Traced) -> None:
        span, expr = asking.span(end), asking.past()
        if span is None:
            asking.going.leave()
            self._note_asked(asking)
            super().native_compare(asking.site, asking.op, end, limit)
            return
        going = asking.going
        going.turns.over = span
        self.recording.trace.turns.append(going.turns)
        self.ended(going, _count_of(span, expr))
        value = plain(limit) + (expr is not asking.limit)
        self.recording.pin(trace_value(value, expr), "the number decides how often a loop goes round")


def _count_of(span: range, end: Expr) -> Expr:
    """How many rounds there are, as of a loop over a range."""
    if span.step != 1:
        return Apply(operator.floordiv, (Apply(operator.add, (end, span.step - 1)), span.step))
    return Apply(operator.sub, (end, span.start)) if span.start else end


def _goes_up(asking: Asking, number: int) -> bool:
    return not asking.numbers or number > asking.numbers[-1]


def is_limit(expr: Expr) -> bool:
    """Whether the number is known when the call begins, or is a size."""
    return all(isinstance(leaf, Read | Size) for leaf in leaves(expr))

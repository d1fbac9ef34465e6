"""Watch ``while`` loops that count an untraced number up to a bound from before the call, and record them like ranges.

``while i < n: ...; i += 1`` is recorded as a loop over ``range(i, n)``. The predicates are recorded when the loop ends:
as one trip count, or one by one if the loop was left early or the number did not grow by a constant step.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torchjanus.core.errors import Place
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.watch.loops.counted import ForLoops
from torchjanus.semantics.watch.loops.loop_record import ActiveLoop
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.events import FunctionEntry, FunctionExit
from torchjanus.trace.loops.records import LoopRecord
from torchjanus.trace.values import Apply, Expr, Read, Size, Traced, leaves, plain, trace_value

__all__ = ["WHY", "WhileLoop", "WhileLoops", "is_limit"]

_MIRRORED = {">": "<", ">=": "<=", "!=": "!="}
WHY = "the number decides how often a loop iterates"
_FUNCTIONS = {"<": operator.lt, "<=": operator.le, "!=": operator.ne}


@dataclass(slots=True, eq=False)
class WhileLoop:
    """An active ``while``. Its predicate is ``number op limit``; ``numbers``: those for which it held; ``length``: the
    first call of ``len()`` that gave the number, if it is the length of a list of the run's own."""

    site: Site
    op: str
    limit: Expr
    value: int  # value of ``limit``
    active_loop: ActiveLoop
    numbers: list[int] = field(default_factory=list)
    length: tuple[Any, ...] | None = None

    def facts(self) -> list[Expr]:
        """Return the predicates to hold one by one if this is not recorded as a loop."""
        return [Apply(_FUNCTIONS[self.op], (number, self.limit)) for number in self.numbers]

    def decided(self) -> list[int]:
        """Return the numbers to record as compared if this is not recorded as a loop."""
        return self.numbers

    def span(self, end: int | None = None) -> range | None:
        """Return the range of the induction variable, None if its step is not constant. ``end``: the first number for
        which the predicate failed, None if the loop was left before."""
        first, known = self.numbers[0], self.numbers if end is None else [*self.numbers, end]
        steps = {b - a for a, b in itertools.pairwise(known)}
        step = steps.pop() if len(steps) == 1 else 0
        even = step > 0 and first >= 0 and (step == 1 or (first == 0 and self.op != "!="))
        return range(first, self.value + (self.op == "<=") if end is None else end, step) if even else None

    def past(self) -> Expr:
        """Return the exclusive bound."""
        return Apply(operator.add, (self.limit, 1)) if self.op == "<=" else self.limit


Compare = Callable[[Site, str, Any, Any], Any]
_A = TypeVar("_A", bound=WhileLoop)


class WhileLoops(Part):
    """``while`` loops that count up."""

    def __init__(self, state: WatchState, loops: ForLoops, compare: Compare) -> None:
        """``compare`` makes and records a comparison that decides no loop."""
        super().__init__(state)
        self.loops = loops
        self.untraced = loops.untraced
        self._compare = compare
        self.active: dict[int, Any] = {}  # the active loops, by id of their site
        self._length: tuple[Any, ...] | None = None  # the ``len()`` call whose result is compared next

    def note_call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        own = fn is len and at is not None and type(args[0]) is list and self.recording.owner(args[0]) is None
        loop = self._loop_on_length(args[0]) if own else None
        if own and at.kind == "loop_test" and self._length is None:
            self._length = (at, fn, args, kwargs, result)
        elif loop is not None:
            number = loop.numbers[-1]  # recorded as a computation on the induction variable
            if result != number:
                self.untraced.note_values(at, "+", number, result - number, total=result)
        else:
            self.loops.note_call(at, fn, args, kwargs, result)

    def _loop_on_length(self, holder: Any) -> WhileLoop | None:
        """Return the active loop whose predicate reads the length of this list, or None."""
        return next(
            (one for one in self.active.values() if one.length is not None and one.length[2][0] is holder), None
        )

    def end_compare(self) -> None:
        """Record the length that was read in a predicate and not compared with a number."""
        if self._length is not None:
            length, self._length = self._length, None
            self.loops.note_call(*length)

    def predicate(self, at: Site, op: str, a: Any, b: Any) -> bool | None:
        """Return the outcome of a loop's predicate; None if it is to be compared and recorded as anywhere else."""
        length, self._length = self._length, None
        outcome = self._loop_predicate(at, op, a, b, length)
        if outcome is None and length is not None:
            self.loops.note_call(*length)
        return outcome

    def _loop_predicate(self, at: Site, op: str, a: Any, b: Any, length: Any) -> bool | None:
        """Return the outcome of a loop's predicate, None if the loop cannot be recorded."""
        if isinstance(a, Traced) and type(b) is int:
            op, a, b = _MIRRORED.get(op, ""), b, a
        limited = type(a) is int and isinstance(b, Traced) and type(plain(b)) is int and is_limit(b.expr)
        if op not in _FUNCTIONS or not limited:
            return None
        self.at(at)
        outcome = _FUNCTIONS[op](a, plain(b))
        loop = self.active.get(id(at))
        same = loop is not None and loop.limit.token == b.expr.token and (not outcome or a > loop.numbers[-1])
        if loop is not None and not (same and self.is_same_instance(loop)):
            self.leave(loop)
            loop = None
        if loop is None:
            if not outcome or self.untraced.in_library(at):
                return None
            loop = self.begun(WhileLoop(at, op, b.expr, plain(b), self.new_active_loop(), length=length))
        if outcome:
            loop.numbers.append(a)
            loop.active_loop.begin(a, ())
        else:
            self.over(loop)
            self._complete(loop, a, b)
        return bool(outcome)

    def begun(self, loop: _A) -> _A:
        """Register a loop that begins."""
        self.active[id(loop.site)] = loop
        self.recording.unfinished.append(lambda: self.leave(loop))
        return loop

    def over(self, loop: WhileLoop) -> bool:
        """Unregister a loop. Return False if it was not active."""
        return self.active.get(id(loop.site)) is loop and self.active.pop(id(loop.site)) is loop

    def new_active_loop(self) -> ActiveLoop:
        """Return the record of a loop that begins."""
        place: Place = self.recording.place
        loop_record = LoopRecord([], None, len(self.recording.trace.plain))
        return ActiveLoop(self.recording, self.untraced.counters, place, loop_record, True, None)

    def is_same_instance(self, loop: WhileLoop) -> bool:
        """Whether the predicate belongs to the same loop instance: its function has not returned since."""
        deep = 0
        for event in self.recording.trace.events[loop.active_loop.starts[-1] :]:
            deep += isinstance(event, FunctionEntry) - isinstance(event, FunctionExit)
            if deep < 0:
                return False
        return deep == 0

    def leave(self, loop: WhileLoop) -> None:
        """Record the predicates of a loop that was left early or cannot be recorded as a loop."""
        if self.over(loop):
            loop.active_loop.leave()
            if not self._record_left_loop(loop):
                self._note_predicates(loop)
            self.recording.note_behind_loops()

    def _record_left_loop(self, loop: WhileLoop) -> bool:
        """Record a loop that was left early as a left loop over a range. Return False if no tensor decided in it or it
        has no range."""
        trace, loop_record = self.recording.trace, loop.active_loop.loop_record
        span = loop.span() if loop.length is None and loop_record.count is None else None
        if span is None or not any(position >= loop_record.starts[0] for position in trace.changed):
            return False
        loop_record.over, loop_record.count = span, _count_of(span, loop.past())
        trace.loop_records.append(loop_record)
        here, self.recording.place = self.recording.place, loop.active_loop.place
        self.recording.pin(trace_value(span.stop, loop.past()), WHY)
        self.recording.place = here
        return True

    def _note_predicates(self, loop: WhileLoop) -> None:
        here, self.recording.place = self.recording.place, loop.active_loop.place
        if loop.length is not None:
            self.loops.note_call(*loop.length)
        for number in loop.decided():
            self.untraced.note_values(loop.site, loop.op, number)
        for fact in loop.facts():
            self.recording.hold(fact, True)
        self.recording.place = here

    def _complete(self, loop: WhileLoop, end: int, limit: Traced) -> None:
        span, expr = loop.span(end), loop.past()
        if span is None:
            loop.active_loop.leave()
            self._note_predicates(loop)
            self._compare(loop.site, loop.op, end, limit)
            self.recording.note_behind_loops()
            return
        active_loop = loop.active_loop
        active_loop.loop_record.over, active_loop.loop_record.count = span, _count_of(span, expr)
        self.recording.trace.loop_records.append(active_loop.loop_record)
        self.loops.record_end(active_loop, active_loop.loop_record.count)
        self.recording.pin(trace_value(plain(limit) + (expr is not loop.limit), expr), WHY)


def _count_of(span: range, end: Expr) -> Expr:
    """Return the trip count of a range with a symbolic end."""
    if span.step != 1:
        return Apply(operator.floordiv, (Apply(operator.add, (end, span.step - 1)), span.step))
    return Apply(operator.sub, (end, span.start)) if span.start else end


def is_limit(expr: Expr) -> bool:
    """Whether an expression depends only on numbers from before the call and on sizes."""
    return all(isinstance(leaf, Read | Size) for leaf in leaves(expr))

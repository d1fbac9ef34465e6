"""Watch ``while`` loops that count a number from before the call down, and record them like ranges.

``while n > 0: ...; n -= 1`` is recorded as a loop over ``range(n, 0, -1)``. The start value is taken as untraced, and
so are the numbers that iterations derive from it. If the loop is left early, or the step is not -1, the graph
specialises on the start value.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.semantics import COMPARE
from torchjanus.semantics.watch.loops.while_loops import WHY, WhileLoop, WhileLoops, is_limit
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.values import Apply, Expr, Traced, plain, trace_value

__all__ = ["Countdowns"]

_FUNCTIONS = {">": operator.gt, ">=": operator.ge, "!=": operator.ne, "truth": operator.ne}


@dataclass(slots=True, eq=False)
class _CountdownLoop(WhileLoop):
    """An active loop that counts down. ``limit``: the start value."""

    even: bool = True  # whether each iteration has decremented the number by one

    def facts(self) -> list[Expr]:
        return []  # the specialisation on the start value implies them

    def decided(self) -> list[int]:
        return [] if self.even else self.numbers


class Countdowns(Part):
    """``while`` loops that count down."""

    def __init__(self, state: WatchState, whiles: WhileLoops) -> None:
        super().__init__(state)
        self.whiles = whiles
        self._answered: int | None = None  # the number whose predicate has been answered by ``descend``

    def descend(self, at: Site, value: Any, op: str, bound: int) -> Any:
        loop, number = self.whiles.active.get(id(at)), plain(value)
        if loop is not None and not self.whiles.is_same_instance(loop):
            self.whiles.leave(loop)
            loop = None
        elif loop is not None and not _follows(loop, value):
            self.recording.trace.loop_records.remove(loop.active_loop.loop_record)
            loop.even = False
            self.whiles.leave(loop)
            loop = None
        if type(number) is not int:
            return value
        self.at(at)
        if loop is None:
            low = bound + (op != ">=")
            begins = isinstance(value, Traced) and number >= low and low in (0, 1) and is_limit(value.expr)
            if not begins or self.whiles.untraced.in_library(at):
                return value
            loop = self._begin_countdown(at, op, value.expr, number, low)
        self._answered = number
        if _FUNCTIONS[op](number, bound):
            loop.numbers.append(number)
            loop.active_loop.begin(number, ())
        else:
            self.whiles.over(loop)
            self.whiles.loops.record_end(loop.active_loop, loop.active_loop.loop_record.count)
        return number

    def _begin_countdown(self, at: Site, op: str, limit: Expr, number: int, low: int) -> _CountdownLoop:
        """Register a loop that begins with ``number``, and specialise on its trip count until the loop is merged."""
        first = Apply(operator.sub, (limit, low)) if low else limit
        active_loop = self.whiles.new_active_loop()
        active_loop.loop_record.over, active_loop.loop_record.count = (
            range(number, low - 1, -1),
            Apply(operator.add, (first, 1)),
        )
        self.recording.trace.loop_records.append(active_loop.loop_record)
        self.recording.pin(trace_value(number - low, first), WHY)
        return self.whiles.begun(_CountdownLoop(at, op, limit, number, active_loop))

    def compared(self, op: str, a: Any, b: Any) -> bool | None:
        """Return the outcome of a comparison that ``descend`` has answered, else None."""
        return COMPARE[op](a, b) if self.is_answered() else None

    def is_answered(self) -> bool:
        """Whether ``descend`` has answered the predicate at hand."""
        answered, self._answered = self._answered is not None, None
        return answered


def _follows(loop: WhileLoop, value: Any) -> bool:
    """Whether ``value`` is the number of the next iteration."""
    return type(value) is int and value == loop.numbers[-1] - 1

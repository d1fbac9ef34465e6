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
from torchjanus.semantics.watch.loops.while_loops import WHY, WhileLoop, WhileWatch, is_limit
from torchjanus.trace.values import Apply, Expr, Traced, plain, trace_value

__all__ = ["CountdownWatch"]

_FUNCTIONS = {">": operator.gt, ">=": operator.ge, "!=": operator.ne, "truth": operator.ne}


@dataclass(slots=True, eq=False)
class _CountdownLoop(WhileLoop):
    """An active loop that counts down. ``limit``: the start value."""

    even: bool = True  # whether each iteration has decremented the number by one

    def facts(self) -> list[Expr]:
        return []  # the specialisation on the start value implies them

    def decided(self) -> list[int]:
        return [] if self.even else self.numbers


class CountdownWatch(WhileWatch):
    """The hooks that loops which count down concern."""

    _answered: int | None = None  # the number whose predicate has been answered by ``descend``

    def descend(self, at: Site, value: Any, op: str, bound: int) -> Any:
        loop, number = self._whiles.get(id(at)), plain(value)
        if loop is not None and not self._is_same_instance(loop):
            self.leave(loop)
            loop = None
        elif loop is not None and not _follows(loop, value):
            self.recording.trace.loop_records.remove(loop.active_loop.loop_record)
            loop.even = False
            self.leave(loop)
            loop = None
        if type(number) is not int:
            return value
        self.at(at)
        if loop is None:
            low = bound + (op != ">=")
            begins = isinstance(value, Traced) and number >= low and low in (0, 1) and is_limit(value.expr)
            if not begins or self._in_library(at):
                return value
            loop = self._begin_countdown(at, op, value.expr, number, low)
        self._answered = number
        if _FUNCTIONS[op](number, bound):
            loop.numbers.append(number)
            loop.active_loop.begin(number, ())
        else:
            self.over(loop)
            self.ended(loop.active_loop, loop.active_loop.loop_record.count)
        return number

    def _begin_countdown(self, at: Site, op: str, limit: Expr, number: int, low: int) -> _CountdownLoop:
        """Register a loop that begins with ``number``, and specialise on its trip count until the loop is merged."""
        first = Apply(operator.sub, (limit, low)) if low else limit
        active_loop = self._new_active_loop()
        active_loop.loop_record.over, active_loop.loop_record.count = (
            range(number, low - 1, -1),
            Apply(operator.add, (first, 1)),
        )
        self.recording.trace.loop_records.append(active_loop.loop_record)
        self.recording.pin(trace_value(number - low, first), WHY)
        return self.begun(_CountdownLoop(at, op, limit, number, active_loop))

    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if at is not None and at.kind == "turning" and self._is_answered():
            return {**_FUNCTIONS, "<": operator.lt, "<=": operator.le}[op](a, b)
        return super().native_compare(at, op, a, b)

    def truth(self, at: Site, value: Any) -> bool:
        if at is not None and at.kind == "while" and type(value) is int and self._is_answered():
            return bool(value)
        return super().truth(at, value)

    def _is_answered(self) -> bool:
        answered, self._answered = self._answered is not None, None
        return answered


def _follows(loop: WhileLoop, value: Any) -> bool:
    """Whether ``value`` is the number of the next iteration."""
    return type(value) is int and value == loop.numbers[-1] - 1

"""Watch truth values that only count: ``correct += (predicted == label).item()``, ``if a == b: correct += 1``.

A bool cannot carry an expression, so each truth value normally is a decision of the path. Where the source shows that
it goes straight into arithmetic (sites of the kind "counted"), it becomes a traced number instead. If the other operand
is no number, it becomes a decision after all.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.access_path import Step
from torchjanus.core.kinds import getattr, is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.events import Decision
from torchjanus.trace.facts import NumberPredicate, TensorPredicate
from torchjanus.trace.values import Apply, Fetch, Read, Traced, TracedFloat, TracedInt, leaves, plain, trace_value

__all__ = ["Truth", "Truths", "is_counted", "truth_of"]

_NUMBERS = frozenset((int, float, bool, TracedInt, TracedFloat))


@dataclass(frozen=True, slots=True)
class Truth:
    """A truth value that rewritten code passes from one hook to the next. ``expr``: 0 or 1; ``event``: the guard or
    assertion to record if it becomes a decision."""

    outcome: bool
    expr: Any
    event: NumberPredicate | TensorPredicate


def is_counted(at: Site | None) -> bool:
    """Whether the hook's result goes straight into arithmetic."""
    return at is not None and at.kind == "counted"


def truth_of(event: NumberPredicate) -> Truth | None:
    """Return the outcome of a comparison as a Truth, None if sizes are compared: graphs specialise on them."""
    for leaf in leaves(event.expr):
        if not isinstance(leaf, Read | Fetch) or (
            isinstance(leaf, Read) and leaf.access_path.step in (Step.SIZE, Step.LEN)
        ):
            return None
    return Truth(event.outcome, Apply(int, (event.expr,)), event)


class Truths(Part):
    """Truth values that go straight into arithmetic."""

    def __init__(self, state: WatchState) -> None:
        super().__init__(state)
        self._pending: Truth | None = None  # the predicate of the addition that follows

    def converted(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return ``int(truth)`` or ``float(truth)`` as a traced number; None for other calls."""
        if fn not in (int, float) or len(args) != 1 or kwargs:
            return None
        (truth,) = args
        return trace_value(fn(truth.outcome), Apply(fn, (truth.expr,)) if fn is float else truth.expr)

    def counted(self, at: Site, fn: Any, value: Any) -> Any:
        """Return the result of a native call, as a Truth if it is a fetched bool that counts."""
        if type(value) is not bool or not is_counted(at) or getattr(fn, "__name__", "") != "item":
            return value
        if not isinstance(getattr(fn, "__self__", None), torch.Tensor):
            return value
        return self._fetched(value) if isinstance(self.recording.trace.events[-1], TensorPredicate) else value

    def _fetched(self, outcome: bool) -> Truth:
        """Replace the assertion just recorded by a fetch, and return it as a Truth."""
        event = self.recording.trace.events.pop()
        assert isinstance(event, TensorPredicate)
        fetch = Fetch(event.ref.number, event.after, int)
        self.recording.fetch(fetch, int(outcome))
        return Truth(outcome, fetch, event)

    def predicate(self, at: Site, value: Any) -> Any:
        """Return the predicate of a conditional addition, as a Truth if it need not be decided."""
        events = self.recording.trace.events
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.numel() == 1:
            self.at(at)
            outcome = bool(value)
            value = self._fetched(outcome) if isinstance(events[-1], TensorPredicate) else outcome
        if type(value) is Truth:
            self._pending = value
        return value

    def take_pending(self, at: Site) -> Truth | None:
        """Return the predicate of this addition, None if it has none or one that was decided."""
        if not is_counted(at):
            return None
        pending, self._pending = self._pending, None
        return pending

    def added(self, truth: Truth, op: str, a: Any, b: Any) -> Any:
        """Return ``a`` after the conditional addition of ``b``; None where the predicate has to be decided."""
        if not type(plain(a)) is type(b) is int:  # not for floats: -0.0 + 0 is 0.0
            return None
        given = a.expr if isinstance(a, Traced) else a
        function = operator.add if op == "+" else operator.sub
        added = truth.expr if b == 1 else Apply(operator.mul, (truth.expr, b))
        value = function(plain(a), b) if truth.outcome else plain(a)
        return trace_value(value, Apply(function, (given, added)))

    def decide(self, truth: Truth) -> bool:
        """Record the predicate of an addition as a decision, and return its outcome."""
        outcome: bool = self.decided(truth)
        self.recording.note(Decision(outcome, self.recording.place))
        return outcome

    def numbers(self, *operands: Any) -> tuple[Any, ...]:
        """Return the operands with truth values as traced numbers, or as decisions if an operand is no number."""
        if not all(type(one) is Truth or is_one_of(type(one), _NUMBERS) for one in operands):
            return tuple(map(self.decided, operands))
        return tuple(trace_value(int(x.outcome), x.expr) if type(x) is Truth else x for x in operands)

    def decided(self, value: Any) -> Any:
        """Return the value; of a Truth its outcome, which becomes a decision."""
        if type(value) is not Truth:
            return value
        self.recording.note_once(value.event)
        return value.outcome

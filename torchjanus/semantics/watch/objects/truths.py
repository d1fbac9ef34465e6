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
from torchjanus.semantics.watch.objects.base import WatchBase
from torchjanus.trace.events import Decision
from torchjanus.trace.facts import NumberPredicate, TensorPredicate
from torchjanus.trace.values import Apply, Fetch, Read, Traced, TracedFloat, TracedInt, leaves, plain, trace_value

__all__ = ["Truth", "TruthWatch", "is_counted", "truth_of"]

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


class TruthWatch(WatchBase):
    """The hooks that make and consume truth values."""

    _pending: Truth | None = None  # the predicate of the addition that follows

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(type(arg) is Truth for arg in args):
            if fn in (int, float) and len(args) == 1 and not kwargs:
                (truth,) = args
                return trace_value(fn(truth.outcome), Apply(fn, (truth.expr,)) if fn is float else truth.expr)
            args = tuple(map(self._decided, args))
        return super().call(at, fn, args, kwargs)

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

    def binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if type(a) is Truth or type(b) is Truth:
            a, b = self._numbers(a, b)
        return super().binary(at, op, a, b)

    def branch(self, at: Site, value: Any) -> bool:
        if not is_counted(at):
            return super().branch(at, value)
        events = self.recording.trace.events
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.numel() == 1:
            self.at(at)
            outcome = bool(value)
            value = self._fetched(outcome) if isinstance(events[-1], TensorPredicate) else outcome
        if type(value) is not Truth:
            return super().branch(at, value)
        self._pending = value
        return True

    def inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if is_counted(at) and (truth := self._pending) is not None:
            self._pending = None
            return self._added(at, truth, op, a, b)
        if type(b) is Truth:
            a, b = self._numbers(a, b)
        return super().inplace(at, op, a, b)

    def _added(self, at: Site, truth: Truth, op: str, a: Any, b: Any) -> Any:
        """Return ``a`` after the conditional addition of ``b``."""
        if type(plain(a)) is type(b) is int:  # not for floats: -0.0 + 0 is 0.0
            given = a.expr if isinstance(a, Traced) else a
            function = operator.add if op == "+" else operator.sub
            added = truth.expr if b == 1 else Apply(operator.mul, (truth.expr, b))
            value = function(plain(a), b) if truth.outcome else plain(a)
            return trace_value(value, Apply(function, (given, added)))
        outcome = self._decided(truth)
        self.recording.note(Decision(outcome, self.recording.place))
        return super().inplace(at, op, a, b) if outcome else a

    def _numbers(self, *operands: Any) -> tuple[Any, ...]:
        """Return the operands with truth values as traced numbers, or as decisions if an operand is no number."""
        if not all(type(one) is Truth or is_one_of(type(one), _NUMBERS) for one in operands):
            return tuple(map(self._decided, operands))
        return tuple(trace_value(int(x.outcome), x.expr) if type(x) is Truth else x for x in operands)

    def _decided(self, value: Any) -> Any:
        if type(value) is not Truth:
            return value
        self.recording.note_once(value.event)
        return value.outcome

"""Watching truths that only count: ``correct += (predicted == label).item()``, ``if a == b: correct += 1``.

A bool cannot carry an expression, so a truth decides which path a run takes, whatever becomes of it. Where the source
shows that it goes straight into arithmetic (sites of the kind "counted") it comes as a number instead. Should it meet
anything but a number there, it is the bool after all.
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
from torchjanus.trace.facts import Asserted, Held
from torchjanus.trace.values import Apply, Fetch, Read, Traced, TracedFloat, TracedInt, leaves, plain, trace_value

__all__ = ["Truth", "TruthWatch", "is_counted", "truth_of"]

_NUMBERS = frozenset((int, float, bool, TracedInt, TracedFloat))


@dataclass(frozen=True, slots=True)
class Truth:
    """What rewritten code hands from one hook straight to the next: ``expr`` is 0 or 1, ``event`` says that the truth
    was what it was."""

    outcome: bool
    expr: Any
    event: Held | Asserted


def is_counted(at: Site | None) -> bool:
    """Whether what the hook returns goes straight into arithmetic."""
    return at is not None and at.kind == "counted"


def truth_of(event: Held) -> Truth | None:
    """The outcome of a comparison of traced numbers; None where it is one of sizes, which graphs have to know."""
    for leaf in leaves(event.expr):
        if not isinstance(leaf, Read | Fetch) or (
            isinstance(leaf, Read) and leaf.access_path.step in (Step.SIZE, Step.LEN)
        ):
            return None
    return Truth(event.outcome, Apply(int, (event.expr,)), event)


class TruthWatch(WatchBase):
    """The hooks that make truths, and those that take them."""

    _pending: Truth | None = None  # what decides whether the addition that comes next is made

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(type(arg) is Truth for arg in args):
            if fn in (int, float) and len(args) == 1 and not kwargs:
                (truth,) = args
                return trace_value(fn(truth.outcome), Apply(fn, (truth.expr,)) if fn is float else truth.expr)
            args = tuple(map(self._decided, args))
        return super().call(at, fn, args, kwargs)

    def counted(self, at: Site, fn: Any, value: Any) -> Any:
        """What a native call has returned, as a truth that counts, if it is one."""
        if type(value) is not bool or not is_counted(at) or getattr(fn, "__name__", "") != "item":
            return value
        if not isinstance(getattr(fn, "__self__", None), torch.Tensor):
            return value
        return self._fetched(value) if isinstance(self.recording.trace.events[-1], Asserted) else value

    def _fetched(self, outcome: bool) -> Truth:
        """What a tensor was just asked, as a truth that counts."""
        event = self.recording.trace.events.pop()
        assert isinstance(event, Asserted)
        fetch = Fetch(event.ref.number, event.after, int)
        self.recording.trace.fetched[fetch.token] = int(outcome)
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
            value = self._fetched(outcome) if isinstance(events[-1], Asserted) else outcome
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
        """What a number is after it was added to, if the truth holds."""
        if type(plain(a)) is type(b) is int:  # adding nothing to a float might make another zero of it
            given = a.expr if isinstance(a, Traced) else a
            function = operator.add if op == "+" else operator.sub
            added = truth.expr if b == 1 else Apply(operator.mul, (truth.expr, b))
            value = function(plain(a), b) if truth.outcome else plain(a)
            return trace_value(value, Apply(function, (given, added)))
        outcome = self._decided(truth)
        self.recording.note(Decision(outcome, self.recording.place))
        return super().inplace(at, op, a, b) if outcome else a

    def _numbers(self, *operands: Any) -> tuple[Any, ...]:
        """The operands with truths as numbers, unless there is something else than numbers."""
        if not all(type(one) is Truth or is_one_of(type(one), _NUMBERS) for one in operands):
            return tuple(map(self._decided, operands))
        return tuple(trace_value(int(x.outcome), x.expr) if type(x) is Truth else x for x in operands)

    def _decided(self, value: Any) -> Any:
        if type(value) is not Truth:
            return value
        self.recording.note_once(value.event)
        return value.outcome

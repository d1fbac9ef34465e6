"""Finds what the host decides by chance in each iteration (``if random.random() < ratio``), to make tensors decide it.

The numbers are drawn before the loop, in program order; the outcomes of a predicate form one tensor with an element per
iteration. Runs that took different arms (scheduled sampling, teacher forcing) then have one graph.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.rewrites.hoist_draws import DrawPlaceholder, HostDraws, hoisted_draws
from torchjanus.trace.actions import Extern, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, NumberPredicate
from torchjanus.trace.loops.records import LoopSnapshots
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.recipes import Constant, ExistingObject, Number
from torchjanus.trace.values import Apply, Expr, Fetch, Read, Size, leaves

__all__ = ["host_draws"]

# Functions that raise no more for the numbers of other iterations than for those of the watched one.
_ASKING = (
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, operator.not_, bool,
    operator.add, operator.sub, operator.mul, operator.neg, operator.abs, abs, int, float, min, max,
)  # fmt: skip


def host_draws(trace: Trace, frames: LoopSnapshots) -> tuple[Trace, LoopSnapshots]:
    """Return the run in which tensors decide what the host decided by chance in this loop, and the loop in it.

    Returns the arguments where there is nothing to do. Raises NotMergeable where it is not possible."""
    if not any(isinstance(event, Extern) for event in trace.events[frames.starts[0] : frames.end]):
        return trace, frames
    draws = _DrawFinder(trace, frames).draws()
    if draws is None:
        return trace, frames
    if not any(isinstance(event, Op) for event in trace.events):
        raise NotMergeable("loop-small", "the step computes nothing with tensors")
    number = trace.frames.index(frames)
    made = hoisted_draws(trace, frames, draws).trace()
    return made, made.frames[number]


class _DrawFinder:
    """Finds the draws in the iterations of a loop."""

    def __init__(self, trace: Trace, frames: LoopSnapshots) -> None:
        self.trace, self.frames = trace, frames
        self.limits = frames.spans
        self.own: dict[AccessPath, tuple[int, int]] = {}  # of a drawn number -> its iteration, order of the call
        self.reads: dict[AccessPath, int] = {}

    def draws(self) -> HostDraws | None:
        """Return the draws and the predicates on them; None if no predicate uses a draw. Raises NotMergeable."""
        trace = self.trace
        externs = tuple(
            tuple(at for at in range(start, end) if isinstance(trace.events[at], Extern)) for start, end in self.limits
        )
        called = {
            trace.events[at].number: (iteration, n)  # type: ignore[union-attr]
            for iteration, some in enumerate(externs)
            for n, at in enumerate(some)
        }
        for at in range(self.frames.starts[0], self.frames.end):
            event = trace.events[at]
            if isinstance(event, HeapRead):
                known = called.get(event.access_path.waits_for - 1) if event.access_path.waits_for else None
                if known is not None:
                    if event.kind != "number" or known in self.own.values():
                        raise NotMergeable("branch-native-call", "an extern call in an iteration gives no number")
                    self.own[event.access_path] = known
                self.reads.setdefault(event.access_path, at)
        held: dict[int, tuple[Any, int]] = {}
        asked: dict[Any, tuple[Any, Place]] = {}
        needed: dict[int, None] = {}
        for iteration, (start, end) in enumerate(self.limits):
            for at in range(start, end):
                event = trace.events[at]
                if isinstance(event, NumberPredicate) and (form := self._form(event.expr, iteration)) is not None:
                    key = (event.place, _token(form))
                    asked.setdefault(key, (form, event.place))
                    held[at] = (key, iteration)
                    read = [leaf.access_path for leaf in leaves(form) if isinstance(leaf, Read)]
                    needed.update((self.reads[access_path], None) for access_path in read if access_path in self.reads)
        if not held:
            return None
        self._check(externs, held)
        given = {known: access_path for access_path, known in self.own.items()}
        return HostDraws(externs, given, asked, held, tuple(needed))

    def _form(self, expr: Any, iteration: int) -> Any:
        """Return a condition with ``DrawPlaceholder`` leaves; None if it depends on no draw of the loop. Raises
        NotMergeable."""
        found = [
            self.own[leaf.access_path]
            for leaf in leaves(expr)
            if isinstance(leaf, Read) and leaf.access_path in self.own
        ]
        if not found:
            return None
        if any(known[0] != iteration for known in found):
            raise NotMergeable("branch-native-call", "an iteration asks a number that another one has drawn")
        return self._merged(expr)

    def _merged(self, expr: Any) -> Any:
        if isinstance(expr, Apply):
            drawn = any(isinstance(leaf, Read) and leaf.access_path in self.own for leaf in leaves(expr))
            if drawn and not any(expr.func is func for func in _ASKING):
                raise NotMergeable(
                    "branch-native-call", "a number that is drawn is used to compute, not only to compare"
                )
            return Apply(expr.func, tuple(map(self._merged, expr.args)))
        if isinstance(expr, Fetch | Size):
            raise NotMergeable("branch-native-call", "a number that is drawn is compared with a tensor")
        if isinstance(expr, Read):
            if expr.access_path in self.own:
                return DrawPlaceholder(self.own[expr.access_path][1])
            if expr.access_path.waits_for:
                raise NotMergeable(
                    "branch-native-call", "a number that is drawn is compared with the result of another call"
                )
        return expr

    def _check(self, externs: Sequence[Sequence[int]], held: dict[int, Any]) -> None:
        """Check that all iterations draw the same, make no other host call and use the draws in conditions only."""
        trace = self.trace
        calls: list[list[Any]] = [[trace.events[at] for at in some] for some in externs]
        if len({tuple(call.token for call in some) for some in calls}) > 1:
            raise NotMergeable("branch-native-call", "iterations make different extern calls")
        for call in (call for some in calls for call in some):
            recipes = trace.recipes.get(id(call), ())
            plain = all(
                isinstance(r, Constant | ExistingObject) or (isinstance(r, Number) and not _is_late(r.expr))
                for r in recipes
            )
            if not call.effects.harmless or call.draws or call.chosen or call.stale or call.changes or not plain:
                raise NotMergeable("branch-native-call", "an iteration makes an extern call with effects")
        if len(self.own) != sum(map(len, externs)):
            raise NotMergeable("branch-native-call", "not every result of an extern call is used")
        for at in range(self.frames.starts[0], self.frames.end):
            if at not in held and any(
                isinstance(one, Read) and one.access_path in self.own for one in self._leaves(at)
            ):
                raise NotMergeable("branch-native-call", "a number that is drawn is used for more than to decide")

    def _leaves(self, at: int) -> Iterator[Any]:
        """Yield the leaves of all expressions in an event."""
        event: Any = self.trace.events[at]
        merged = [getattr(event, "expr", None), getattr(getattr(event, "key", None), "expr", None)]
        if isinstance(event, Op):
            merged += [event.args, event.kwargs]
        for expr in expressions_in([*merged, *self.trace.recipes.get(id(event), ())]):
            yield from leaves(expr)


def _is_late(expr: Any) -> bool:
    return any(
        isinstance(one, Fetch | Size) or (isinstance(one, Read) and one.access_path.waits_for) for one in leaves(expr)
    )


def _token(form: Any) -> Any:
    if isinstance(form, Apply):
        return (form.func, *map(_token, form.args))
    return form.token if isinstance(form, Expr) else (type(form), form)

"""Identifies which live-out variable each tensor or number that is used after a switched loop refers to.

One run shows only a tensor, which several variables may hold. Each use has a key (its position among the events after
the loop, and the decisions in between: another arm may have bound the variable anew), and the candidates of several
runs for the same key are intersected until one variable remains. This module reads one loop of one run; it does not
depend on how the loop is rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.errors import Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.arm_effects import ArmEffects
from torchjanus.graph.switches.analysis.arms import ArmResolution, SwitchSites
from torchjanus.graph.switches.analysis.iterations import OUTSIDE, Source, subject_of
from torchjanus.graph.switches.analysis.numbers import is_content
from torchjanus.trace.events import Decision, Event, Fact, Trace
from torchjanus.trace.facts import HostComputation, NumberPredicate, Specialization
from torchjanus.trace.loops.records import LoopSnapshots
from torchjanus.trace.operations import made_by
from torchjanus.trace.values import Apply, Expr, Read

__all__ = ["LiveOutUses"]


class LiveOutUses:
    """Resolves the uses of a loop's live-outs to variables."""

    def __init__(
        self, trace: Trace, frames: LoopSnapshots, switches: SwitchSites, resolving: ArmResolution, acting: ArmEffects
    ) -> None:
        self.counting = acting.counting
        # Numbers that variables hold after the last iteration. Which of them are loop-carried is known better with each
        # run, so candidates are recorded for all.
        self.numbers = [*acting.held.states[-1].items()]
        self.trace, self.frames, self.switches, self.resolving = trace, frames, switches, resolving
        start, end = frames.starts[0], frames.end
        self.made = made_by(trace.events[start:end])
        self.later = made_by(trace.events[end:])
        self.context: Any = 0  # hash of the events since the loop
        self.where: Any = 0  # hash that identifies the current event
        self.decided: Any = 0  # hash of the decisions since the loop
        self._met: set[Any] = set()  # facts since the last other event
        self.count = 0  # uses of live-outs in the current event so far
        self.unclear = False  # whether some use is not resolved yet
        self.names: dict[int, list[Any]] = {}
        for name, value in frames.states[-1].items():
            if value[0] == "tensor":
                self.names.setdefault(value[1], []).append(name)

    def begin(self, what: Any, aside: bool = False) -> None:
        """Start the next event. ``aside``: this event does not occur in every run that reaches this place."""
        self.where, self.count = hash((self.context, what)), 0
        if not aside:
            self.context, self._met = self.where, set()

    def begin_event(self, event: Event) -> None:
        """Start an event after the loop. What identifies it is the same whatever numbers the loop has left."""
        if isinstance(event, Decision):
            self.decided = hash((self.decided, event.outcome))
        what: Any = (type(event).__name__, getattr(event, "name", ""), event.place)
        if not isinstance(event, Fact):
            self.begin(what)
            return
        if isinstance(event, NumberPredicate | Specialization | HostComputation):
            what = (*what, self._form(event.expr))
        else:
            what = (*what, subject_of(event))
        while what in self._met:
            what = (*what, "again")
        self._met.add(what)
        self.begin(what, aside=True)

    def _form(self, expr: Any) -> Any:
        """Return how an expression is computed, without the numbers in it."""
        if isinstance(expr, Apply) and not self.is_held(expr):
            return (expr.func, *map(self._form, expr.args))
        return expr.token if isinstance(expr, Read) and not self.is_held(expr) else "number"

    @property
    def at(self) -> Any:
        """What tells the next event from others."""
        return self.context, self.decided

    def at_state(self, at: Any, what: Any) -> None:
        """Start the state of the variables ``what``, between the events after the loop: see ``at``."""
        self.context, self.decided = at
        self.begin(what, aside=True)

    def leave(self, context: Any, place: Place) -> None:
        """Leave a region that began in ``context``: the key of what follows does not depend on the arm taken."""
        self.context = hash((context, place))

    def variable(self, tensor: int) -> Any:
        """Return the variable that this use of ``tensor`` means; None if it is loop-invariant or not resolved yet."""
        if tensor in self.later:
            self.count += 1
            return None
        names = self.names.get(tensor, ())
        candidates: set[Source] = {("name", name) for name in names}
        if tensor not in self.made:
            access_path = self.trace.access_paths.get(tensor)
            candidates.add((OUTSIDE, tensor if access_path is None else access_path.token))
        # Loop-invariant uses are recorded, too: another run may have a loop-carried variable at this place.
        return self._chosen(
            frozenset(candidates), tensor in self.made or any(n in self.resolving.rebound for n in names)
        )

    def held(self, tensor: int) -> Any:
        """Return the variable whose tensor from before the loop a later variable holds; None if that is no variable of
        the loop. Raises NotMergeable while it is not known."""
        access_path = self.trace.access_paths.get(tensor)
        candidates: set[Source] = {("name", name) for name in self.names.get(tensor, ())}
        candidates.add((OUTSIDE, tensor if access_path is None else access_path.token))
        meant = self.switches.meant(("held", self.where, self.decided), frozenset(candidates))
        source = self.resolving.choose(meant, True)
        return source[1] if source[0] == "name" else None

    def is_held(self, expr: Any) -> bool:
        """Whether a variable holds this number after the loop."""
        return any(is_content(held, expr) for _, held in self.numbers)

    def number(self, value: Any) -> Any:
        """Return the variable that this use of a number means; None if it is loop-invariant. Raises NotMergeable."""
        token = value.token if isinstance(value, Expr) else token_of(value)
        candidates: set[Source] = {("name", name) for name, held in self.numbers if is_content(held, value)}
        candidates.add(("constant", token))
        key = ("number", self.where, self.count, self.decided)
        self.count += 1
        meant = self.switches.meant(key, frozenset(candidates))
        moving = {self.counting.name(source[1]) if source[0] == "name" else None for source in meant}
        if len(moving) != 1:
            raise NotMergeable("branch-numbers", "it is not known which number of the loop is meant after it")
        return moving.pop()

    def column(self, tensors: Sequence[int]) -> Any:
        """Return the variable whose values after each iteration are ``tensors``; None if there is no such variable."""
        if len(tensors) != len(self.frames.starts) or not any(tensor in self.made for tensor in tensors):
            return None
        found: set[Source] | None = None
        for tensor, state in zip(tensors, self.frames.states[1:], strict=True):
            some: set[Source] = {("name", name) for name, value in state.items() if value == ("tensor", tensor)}
            found = some if found is None else found & some
        return self._chosen(frozenset(found or ()))

    def _chosen(self, candidates: frozenset[Source], changes: bool = True) -> Any:
        key = (self.where, self.count, self.decided)
        self.count += 1
        try:
            source = self.resolving.choose(self.switches.meant(key, candidates), True)
        except NotMergeable:
            self.unclear |= changes  # further runs may resolve it
            return None
        return source[1] if source[0] == "name" and source[1] in self.resolving.rebound else None

"""What a program means by the tensors that it takes after a loop in which tensors decide: which of its variables.

The run tells only which tensor it was; what several runs took at the same place tells which variable it is. Knows one
loop of a run, not how it is rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.errors import Place
from torchjanus.graph.loops.analysis.host_recurrences import NotMergeable
from torchjanus.graph.switches.analysis.arm_effects import Acting
from torchjanus.graph.switches.analysis.arms import Resolving, SwitchSites
from torchjanus.graph.switches.analysis.iterations import OUTSIDE, Source
from torchjanus.graph.switches.analysis.numbers import is_content
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.loop_records import Frames
from torchjanus.trace.values import Expr

__all__ = ["After"]


class After:
    """What is meant by what the program takes after the loop."""

    def __init__(
        self, trace: Trace, frames: Frames, switches: SwitchSites, resolving: Resolving, acting: Acting
    ) -> None:
        self.counting = acting.counting
        self.numbers = acting.held.states[-1]  # what variables hold then
        self.trace, self.frames, self.switches, self.resolving = trace, frames, switches, resolving
        start, end = frames.starts[0], frames.end
        self.made = {ref.number for e in trace.events[start:end] if isinstance(e, Op) for ref in e.outs}
        self.later = {ref.number for e in trace.events[end:] if isinstance(e, Op) for ref in e.outs}
        self.context: Any = 0  # what came since the loop
        self.where: Any = 0  # the event
        self.count = 0  # tensors that the event has spoken of so far
        self.unclear = False  # whether it is not known of all what is meant
        self.names: dict[int, list[Any]] = {}
        for name, value in frames.states[-1].items():
            if value[0] == "tensor":
                self.names.setdefault(value[1], []).append(name)

    def begin(self, what: Any, aside: bool = False) -> None:
        """Go on to the next event. ``aside``: one that is not there in each run that comes here."""
        self.where, self.count = hash((self.context, what)), 0
        if not aside:
            self.context = self.where

    def leave(self, context: Any, place: Place) -> None:
        """Behind a region that began in this context: whichever way it went, what follows is the same."""
        self.context = hash((context, place))

    def variable(self, tensor: int) -> Any:
        """The variable that is meant, if it is one that iterations change."""
        if tensor in self.later:
            self.count += 1
            return None
        names = self.names.get(tensor, ())
        candidates: set[Source] = {("name", name) for name in names}
        if tensor not in self.made:
            access_path = self.trace.access_paths.get(tensor)
            candidates.add((OUTSIDE, tensor if access_path is None else access_path.token))
        # What no iteration changes is noted, too: another run may have found a variable to be it at this place.
        return self._chosen(
            frozenset(candidates), tensor in self.made or any(n in self.resolving.rebound for n in names)
        )

    def is_counted(self, expr: Any) -> bool:
        """Whether a variable holds this that iterations change."""
        return any(is_content(held, expr) for name, held in self.numbers.items() if name in self.counting.moving)

    def number(self, value: Any) -> Any:
        """The variable that is meant by a number, if it is one that iterations change."""
        token = value.token if isinstance(value, Expr) else token_of(value)
        candidates: set[Source] = {("constant", token)}
        for name, held in self.numbers.items():
            if name in self.counting.moving and is_content(held, value):
                candidates.add(("name", self.counting.name(name)))
        key = ("number", self.where, self.count)
        self.count += 1
        meant = self.switches.meant(key, frozenset(candidates))
        if len(meant) != 1:
            raise NotMergeable
        (source,) = meant
        return source[1] if source[0] == "name" else None

    def column(self, tensors: Sequence[int]) -> Any:
        """The variable whose values after all iterations these are; None for no such."""
        if len(tensors) != len(self.frames.starts) or not any(tensor in self.made for tensor in tensors):
            return None
        found: set[Source] | None = None
        for tensor, state in zip(tensors, self.frames.states[1:], strict=True):
            some: set[Source] = {("name", name) for name, value in state.items() if value == ("tensor", tensor)}
            found = some if found is None else found & some
        return self._chosen(frozenset(found or ()))

    def _chosen(self, candidates: frozenset[Source], changes: bool = True) -> Any:
        key = (self.where, self.count)
        self.count += 1
        try:
            source = self.resolving.choose(self.switches.meant(key, candidates), True)
        except NotMergeable:
            self.unclear |= changes  # but what follows tells more
            return None
        return source[1] if source[0] == "name" and source[1] in self.resolving.rebound else None

"""Record reads of containers, whose content may depend on the iterations of loops that fill them."""

from __future__ import annotations

import collections
from typing import Any

from torchjanus.core.kinds import getattr
from torchjanus.semantics.watch.objects.state import Part

__all__ = ["ContainerReads"]

_FILLING = frozenset({"append", "appendleft", "add"})
_CONTAINERS = (list, dict, set, collections.deque)


class ContainerReads(Part):
    """Reads of containers, by their id and position among the events."""

    def note(self, *values: Any) -> None:
        for value in values:
            if issubclass(type(value), _CONTAINERS):
                trace = self.recording.trace
                trace.peeked.append((len(trace.events), id(value)))

    def note_call(self, fn: Any, args: tuple[Any, ...], others: tuple[Any, ...]) -> None:
        """Record that a native call reads its arguments and receiver, unless it only adds an element."""
        if getattr(fn, "__name__", "") not in _FILLING:
            self.note(getattr(fn, "__self__", None))
        self.note(*args, *others)

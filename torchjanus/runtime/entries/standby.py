"""Lets the compiled graphs that a path tree replaces make calls until the graphs of the tree are compiled.

A tree is made when a tensor has decided otherwise than before. Its parts are new graphs, which are replayed until each
is compiled. The old graph is still right for all calls on its path, usually most calls. This module does not know how
trees are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torchjanus.host.journal import Journal
from torchjanus.runtime.entries.engine import Engine
from torchjanus.runtime.launch.outcomes import MISS, Violation

__all__ = ["Standby"]

TRIED = 16  # calls before the first check of the outcome
LEAST = 8  # one call of so many has to take the old path: each other call runs a graph for nothing


class PreviousRoute(Protocol):
    """What was tried on a call before: an entry, or a tree."""

    @property
    def engines(self) -> tuple[Engine, ...]: ...

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any: ...


class Standby:
    """Makes calls by ``old`` until all of the ``new`` engines have been compiled."""

    def __init__(self, old: PreviousRoute, new: Sequence[Engine]) -> None:
        self._old, self._new = old, new
        self._tried = self._served = 0

    @staticmethod
    def pays(old: PreviousRoute) -> bool:
        """Whether the old route is compiled."""
        return all(engine.compiled is not None for engine in old.engines)

    def of(self, new: Sequence[Engine]) -> Standby:
        """Return the same for another tree."""
        return Standby(self._old, new)

    @property
    def over(self) -> bool:
        """Whether it is of no more use."""
        if self._tried >= TRIED and self._served * LEAST < self._tried:
            return True
        return all(engine.is_ready for engine in self._new)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Make a call as Launch.call does. Returns MISS, with nothing changed, where the tree has to make it."""
        self._tried += 1
        result = self._old.call(args, kwargs, journal)
        if result is MISS or type(result) is Violation:
            if journal is not None:
                journal.begin()
            return MISS
        self._served += 1
        return result

"""The compiled graphs that a tree of paths has replaced go on making calls until those of the tree are compiled.

A tree is made when a tensor has decided otherwise than before. Its parts are new graphs: they are replayed until each
has been compiled, which takes as long as it took for the first path. What was compiled for that path is still right for
all calls that go its way, which are most of them where the other way is rare. Knows nothing of how trees are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torchjanus.host.journal import Journal
from torchjanus.runtime.entries.engine import Engine
from torchjanus.runtime.launch.launch import MISS, Violation

__all__ = ["Standby"]

TRIED = 16  # calls before what came of them is looked at
LEAST = 8  # of so many calls one at least must go the old way: to find out that it does not takes a graph's time


class Old(Protocol):
    """What was tried on a call before: a path, or a tree of them."""

    @property
    def engines(self) -> tuple[Engine, ...]: ...

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any: ...


class Standby:
    """Makes calls by ``old`` as long as not all of the ``new`` engines have been compiled."""

    def __init__(self, old: Old, new: Sequence[Engine]) -> None:
        self._old, self._new = old, new
        self._tried = self._served = 0

    @staticmethod
    def pays(old: Old) -> bool:
        """Whether what there was is compiled."""
        return all(engine.compiled is not None for engine in old.engines)

    def of(self, new: Sequence[Engine]) -> Standby:
        """The same for another tree."""
        return Standby(self._old, new)

    @property
    def over(self) -> bool:
        """Whether it is of no more use."""
        if self._tried >= TRIED and self._served * LEAST < self._tried:
            return True
        return all(engine.is_ready for engine in self._new)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """As Launch.call; MISS where the tree is to make the call. Nothing has changed then."""
        self._tried += 1
        result = self._old.call(args, kwargs, journal)
        if result is MISS or type(result) is Violation:
            if journal is not None:
                journal.begin()
            return MISS
        self._served += 1
        return result

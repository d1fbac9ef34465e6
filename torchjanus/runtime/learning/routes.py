"""The graphs of one function that are in use: each alone, or in a tree with those from which only tensors' decisions
distinguish it.

This module does not decide when graphs are made or given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torchjanus.core.kinds import isinstance
from torchjanus.runtime.entries.dispatch import Dispatch, Route
from torchjanus.runtime.entries.engine import default_executor
from torchjanus.runtime.entries.entry import Entry, alone
from torchjanus.runtime.entries.path_tree import PathTree
from torchjanus.runtime.entries.path_tree_build import branch, divide, lacking
from torchjanus.runtime.runs.budget import Budget
from torchjanus.runtime.runs.paths import Group
from torchjanus.runtime.runs.records import EventLog

__all__ = ["Routes"]

MAX_ENTRIES = 16

Make = Callable[[Group], Entry | None]


class Routes:
    """The routes to try on a call, in order. ``executor`` is speculate()'s."""

    def __init__(self, event_log: EventLog, executor: str | None, budget: Budget) -> None:
        self.dispatch = Dispatch(())
        self.journaled = False  # whether an entry makes extern calls before its commit
        # Whether one of these calls has effects: a call that its graph cannot finish is then repeated under watch.
        self.repeats = False
        self._event_log = event_log
        self._budget = budget
        self._executor = executor
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    @property
    def first(self) -> Route:
        """The route of the latest graph."""
        return self._routes[0]

    @property
    def executor(self) -> str:
        """The name of the executor."""
        return self._executor or default_executor()

    @property
    def entries(self) -> list[Entry]:
        """The graphs in use, the latest first."""
        return [entry for route in self._routes for entry in route.entries]

    @property
    def are_full(self) -> bool:
        """Whether one more graph would replace another."""
        return len(self.entries) >= MAX_ENTRIES

    def keep(self, routes: list[Route]) -> None:
        """Use these routes from now on, in this order, and close all others."""
        kept = {id(engine) for route in routes for engine in route.engines}
        for route in self._routes:
            for engine in route.engines:
                if id(engine) not in kept:
                    engine.close()
        for route in routes:
            for engine in route.engines:
                engine.budget = self._budget
        self._routes = routes
        self.dispatch = Dispatch(routes)
        self.journaled = any(route.journaled for route in routes)
        self.repeats = any(entry.repeats for route in routes for entry in route.entries)

    def arrange(self, new: Sequence[Entry], gone: Sequence[Entry], make: Make) -> None:
        """Remove the entries in ``gone``, and put new ones first, each in a tree with those from which only a tensor's
        decision distinguishes it."""
        routes: list[Route] = []
        for route in self._routes:
            left = [entry for entry in route.entries if not any(entry is other for other in gone)]
            if len(left) == len(route.entries):
                routes.append(route)
            elif left:
                tree = branch(left, self.executor) if len(left) > 1 else None
                routes += [alone(entry, self.executor) for entry in left] if tree is None else [tree]
        for entry in new:
            for route in routes:
                joined = self._join([entry, *route.entries], make)
                if joined is not None:
                    joined.stand_by(route)
                    routes = [joined, *(other for other in routes if other is not route)]
                    break
            else:
                routes.insert(0, entry)
        self.keep(routes)
        for route in routes:
            if isinstance(route, Entry):
                for engine in route.engines:
                    engine.compile()

    def _join(self, entries: list[Entry], make: Make) -> PathTree | None:
        """Return the entries as one tree, if a tensor decides between them. An input of one entry becomes an input of
        all."""
        if divide(entries) is None:
            return None
        for number, tokens in enumerate(lacking(entries)):
            if tokens:
                entries[number].group.relaxed.update(tokens)
                made = make(entries[number].group)
                if made is None:
                    return None
                entries[number] = made
        joined = branch(entries, self.executor)
        if joined is not None:
            place = joined.root.place
            self._event_log.record(
                "branch", f"a tensor decides between {len(entries)} paths: one graph has them all now", place
            )
        return joined

    @property
    def surplus(self) -> Route | None:
        """The route used longest ago, if there are too many graphs."""
        if len(self.entries) <= MAX_ENTRIES or len(self._routes) < 2:
            return None
        return min(self._routes[1:], key=lambda route: route.used)

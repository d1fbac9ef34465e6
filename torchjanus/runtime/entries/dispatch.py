"""Which graphs are worth trying on a call: decided by the one place in the heap that tells most of them apart.

A filter only. A graph that is left out would have missed by the assumption that was looked at; those that are tried
check all of theirs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.host.assumption import Assumption, Identity, TensorKind, TypeOf, ValueOf
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.entries.path_tree import Branching

__all__ = ["Dispatch", "Route"]

log = logging.getLogger("torchjanus")

WORTHWHILE = 3  # with fewer graphs trying each is as fast

Route = Entry | Branching  # what is tried on a call
Feature = tuple[str, Any]
_BROKEN = (KeyError, AttributeError, IndexError, TypeError, ValueError, ReferenceError)


class Dispatch:
    """Of some routes: ``access_path`` is where they differ most, None if nowhere."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self.access_path: AccessPath | None = None
        self._table: dict[Feature, tuple[Route, ...]] = {}
        self._late: Route | None = None
        self._own: dict[int, list[tuple[Entry, list[Assumption]]]] | None = None  # what tells routes apart, by route
        if len(routes) >= WORTHWHILE:
            self._choose([_told(route) for route in routes])

    def _choose(self, told: list[dict[AccessPath, Feature]]) -> None:
        shared = set.intersection(*(set(features) for features in told))
        if not shared:
            return
        # Of equally good ones the shortest path: it is read at each call.
        order = sorted(shared, key=lambda access_path: (len(str(access_path)), str(access_path)))
        best = max(order, key=lambda access_path: len({features[access_path] for features in told}))
        found = [features[best] for features in told]
        if len(set(found)) == 1:
            return
        self.access_path = best
        for value in set(found):
            # A value is of a type: graphs for all values of that type are worth trying, too.
            kinds = {value, ("type", value[1][0])} if value[0] == "value" else {value}
            self._table[value] = tuple(r for r, f in zip(self.routes, found, strict=True) if f in kinds)

    def candidates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Route, ...]:
        """The routes to be tried on this call, in order."""
        if self.access_path is None:
            return self.routes
        try:
            now = self.access_path.read(args, kwargs)
        except _BROKEN:
            return ()  # every route relies on there being something
        found = self._table.get(("value", (type(now), token_of(now))))
        return self._table.get(("type", type(now)), ()) if found is None else found

    def foresee(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Which of several routes will make this call if one does, as a number: as far as can be seen beforehand, and
        by that only which they assume differently. 0 if none will."""
        if len(self.routes) < 2:
            return 0
        try:
            if self._own is None:
                self._own = _distinguished(self.routes)
            for route in self.candidates(args, kwargs):
                if any(not entry.broken(args, kwargs, own) for entry, own in self._own[id(route)]):
                    return id(route)
        except Exception as error:  # the program's own objects are asked; it is no reason to fail a call
            log.debug("which graph will make a call cannot be told: %s: %s", type(error).__name__, error)
        return 0

    def served_late(self, route: Route) -> None:
        """A route has made a call after others had been tried in vain, which costs a whole run of the graph where a
        tensor tells them apart. One that does so twice is tried first from then on."""
        if self._late is not route:
            self._late = route
            return
        self._late = None
        self.routes = _first(route, self.routes)
        self._table = {feature: _first(route, routes) for feature, routes in self._table.items()}


def _first(route: Route, routes: tuple[Route, ...]) -> tuple[Route, ...]:
    return tuple(sorted(routes, key=lambda other: other is not route))


def _distinguished(routes: Sequence[Route]) -> dict[int, list[tuple[Entry, list[Assumption]]]]:
    """Of each route the entries, and of these what they assume of places of which another assumes something else."""
    spoken = {id(entry): {str(a): a for a in entry.assumptions} for route in routes for entry in route.entries}
    shared = set.intersection(*map(set, spoken.values()))
    own = {key: [a for text, a in texts.items() if text not in shared] for key, texts in spoken.items()}
    looked_at = Counter(place for some in own.values() for place in set(map(_place, some)))
    found = {key: [a for a in some if looked_at[_place(a)] > 1] for key, some in own.items()}
    return {id(route): [(entry, found[id(entry)]) for entry in route.entries] for route in routes}


def _place(assumption: Assumption) -> tuple[str, ...]:
    return tuple(str(access_path) for access_path in assumption.access_paths())


def _told(route: Route) -> dict[AccessPath, Feature]:
    """What all graphs of a route assume of the values that they find, by place: the class, or the very value."""
    first, *others = map(_features, route.entries)
    return {access_path: f for access_path, f in first.items() if all(other.get(access_path) == f for other in others)}


def _features(entry: Entry) -> dict[AccessPath, Feature]:
    found: dict[AccessPath, Feature] = {}
    for assumption in entry.assumptions:
        feature = _feature(assumption)
        for access_path in assumption.access_paths() if feature is not None else ():
            if not access_path.waits_for:  # on an extern call, which has not been made yet
                found[access_path] = feature  # type: ignore[assignment]
    return found


def _feature(assumption: Assumption) -> Feature | None:
    match assumption:
        case ValueOf(value=value):
            return "value", (type(value), token_of(value))
        case TypeOf(cls=cls):
            return "type", cls
        case TensorKind(example=example):
            return "type", type(example)
        case Identity(value=value):
            return "type", type(value)
    return None

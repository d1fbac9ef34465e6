"""Selects the graphs to try on a call, by the one access path at which their assumptions differ most.

This is only a filter. A graph that is left out would miss by the assumption at that access path; a graph that is tried
checks all its assumptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.core.logs import logger
from torchjanus.host.assumption import Assumption, Condition, Identity, TypeOf, ValueOf
from torchjanus.host.tensor_assumptions import TensorKind
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.entries.path_tree import PathTree

__all__ = ["Dispatch", "Route"]

log = logger("faults")

WORTHWHILE = 3  # with fewer graphs it is as fast to try each
MOST_BROKEN = 8  # assumptions of a graph that one miss adds to those that are checked to foresee a miss

Route = Entry | PathTree  # what is tried on a call
Feature = tuple[str, Any]
_BROKEN = (KeyError, AttributeError, IndexError, TypeError, ValueError, ReferenceError)


class Dispatch:
    """Selects among some routes. ``access_path``: where they differ most, None if nowhere."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self.access_path: AccessPath | None = None
        self._table: dict[Feature, tuple[Route, ...]] = {}
        self._late: Route | None = None
        # assumptions in which routes differ, by route
        self._own: dict[int, list[tuple[Entry, list[Assumption]]]] | None = None
        self._broken: dict[int, list[Assumption]] = {}  # assumptions that calls have broken, by graph
        self._misses = 0
        if len(routes) >= WORTHWHILE:
            self._choose([_common_features(route) for route in routes])

    def _choose(self, features_of: list[dict[AccessPath, Feature]]) -> None:
        shared = set.intersection(*(set(features) for features in features_of))
        if not shared:
            return
        # Of equally good ones the shortest, since it is read at each call.
        order = sorted(shared, key=lambda access_path: (len(str(access_path)), str(access_path)))
        best = max(order, key=lambda access_path: len({features[access_path] for features in features_of}))
        found = [features[best] for features in features_of]
        if len(set(found)) == 1:
            return
        self.access_path = best
        for value in set(found):
            # Graphs that assume only the type of the value are worth trying, too.
            kinds = {value, ("type", value[1][0])} if value[0] == "value" else {value}
            self._table[value] = tuple(r for r, f in zip(self.routes, found, strict=True) if f in kinds)

    def candidates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Route, ...]:
        """Return the routes to be tried on this call, in order."""
        if self.access_path is None:
            return self.routes
        try:
            now = self.access_path.read(args, kwargs)
        except _BROKEN:
            return ()  # every route assumes that there is a value
        found = self._table.get(("value", (type(now), token_of(now))))
        return self._table.get(("type", type(now)), ()) if found is None else found

    def foresee(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Return a number for the route that will probably make this call, None if none will, 0 if that is not known.
        Only assumptions that differ between routes, or that an earlier call has broken, are checked."""
        try:
            if self._own is None:
                self._own = _distinguished(self.routes)
            for route in self.candidates(args, kwargs):
                for entry, own in self._own[id(route)]:
                    if not entry.broken(args, kwargs, [*own, *self._broken.get(id(entry), ())]):
                        return id(route)
            return None
        except Exception as error:  # reading may run code of the program, whose exceptions must not fail the call
            log.debug("which graph will make a call is not known: %s: %s", type(error).__name__, error)
        return 0

    def record_miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note which assumptions a call has broken that no graph could make. Those on numbers are evaluated, and all
        others if they hold, which takes longer than a short call. So it is done ever more rarely."""
        self._misses += 1
        if self._misses & (self._misses - 1):
            return
        try:
            for route in self.routes:
                for entry in route.entries:
                    known = self._broken.setdefault(id(entry), [])
                    numbers = [one for one in entry.assumptions if isinstance(one, Condition | ValueOf)]
                    broken = entry.broken(args, kwargs, numbers) or entry.broken(args, kwargs)
                    known += [one for one in broken[:MOST_BROKEN] if all(one is not other for other in known)]
        except Exception as error:
            log.debug("what a call has broken is not known: %s: %s", type(error).__name__, error)

    def record_late_route(self, route: Route) -> None:
        """Record that a route made a call after others had been tried, which costs a run of a graph if only a tensor
        distinguishes them. A route that does so twice in a row is tried first from then on."""
        if self._late is not route:
            self._late = route
            return
        self._late = None
        self.routes = _first(route, self.routes)
        self._table = {feature: _first(route, routes) for feature, routes in self._table.items()}


def _first(route: Route, routes: tuple[Route, ...]) -> tuple[Route, ...]:
    return tuple(sorted(routes, key=lambda other: other is not route))


def _distinguished(routes: Sequence[Route]) -> dict[int, list[tuple[Entry, list[Assumption]]]]:
    """Return the entries of each route, each with its assumptions about access paths for which another entry assumes
    something else."""
    if not routes:
        return {}
    spoken = {id(entry): {str(a): a for a in entry.assumptions} for route in routes for entry in route.entries}
    shared = set.intersection(*map(set, spoken.values()))
    own = {key: [a for text, a in texts.items() if text not in shared] for key, texts in spoken.items()}
    looked_at = Counter(place for some in own.values() for place in set(map(_place, some)))
    found = {key: [a for a in some if looked_at[_place(a)] > 1] for key, some in own.items()}
    return {id(route): [(entry, found[id(entry)]) for entry in route.entries] for route in routes}


def _place(assumption: Assumption) -> tuple[str, ...]:
    return tuple(str(access_path) for access_path in assumption.access_paths())


def _common_features(route: Route) -> dict[AccessPath, Feature]:
    """Return what all graphs of a route assume of values, by access path: the class, or the exact value."""
    first, *others = map(_features, route.entries)
    return {access_path: f for access_path, f in first.items() if all(other.get(access_path) == f for other in others)}


def _features(entry: Entry) -> dict[AccessPath, Feature]:
    found: dict[AccessPath, Feature] = {}
    for assumption in entry.assumptions:
        feature = _feature(assumption)
        for access_path in assumption.access_paths() if feature is not None else ():
            if not access_path.waits_for:  # such a path needs the result of an extern call that has not been made yet
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

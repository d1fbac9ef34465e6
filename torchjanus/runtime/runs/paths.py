"""Groups the watched runs of one function by path: the runs of a group become one graph.

This module does not know the graphs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import NOWHERE, Place, Refusal
from torchjanus.core.kinds import isinstance
from torchjanus.graph.generalize.generalize import EntryPlan
from torchjanus.graph.ir.dimensions import Geometry, decides_alike, geometries, holds_for, key_of
from torchjanus.runtime.runs.records import Counts
from torchjanus.runtime.runs.trip_counts import TripCounts
from torchjanus.semantics.containers.releasing import release
from torchjanus.trace.events import Event, Trace
from torchjanus.trace.facts import Specialization
from torchjanus.trace.values import Expr

__all__ = ["Group", "Paths"]

MAX_SEEN = 16
MAX_GROUPS = 64  # paths whose traces are kept
MAY_HOLD_REPLACED = 3  # calls by graphs after a watched one in which tensors held by its trace may be replaced


@dataclass(slots=True)
class Group:
    """The traces of one path, and what has been relaxed for it."""

    number: int
    shape: tuple[int, tuple[str, ...]]  # number of positional arguments, and names of keyword arguments
    traces: list[Trace] = field(default_factory=list)
    relaxed: set[Any] = field(default_factory=set)
    refusal: Refusal | None = None
    folded: bool = False  # loops of varying trip counts are folded: these runs represent any trip count
    geometries: list[dict[Any, Geometry]] = field(default_factory=list)  # of tensors, so far
    constant_sizes: bool = False  # numbers that are sizes in its graph are constants there: they could not be symbols
    # dimensions of tensors by which its runs were split into groups of their own
    split_dimensions: tuple[tuple[Any, Any], ...] = ()
    dynamic_trip_counts: bool = False  # trip counts are sizes, too
    planned: tuple[Any, EntryPlan] | None = None  # what its graph is made of, while another process makes that
    # conditions of its entry on sizes: runs for which they do not hold are in another group
    conditions: tuple[Expr, ...] = ()
    sizes: set[tuple[Any, int]] = field(default_factory=set)  # dimensions that have become inputs
    borrowed: list[dict[Any, Geometry]] = field(default_factory=list)  # geometries of other paths
    isolated: bool = False  # geometries of other paths do not fit this one
    host_selection_reason: str = ""  # why the host makes the selections that its graph needs, or ""

    def take(self, trace: Trace) -> None:
        """Add a run of this path."""
        self.traces = [*self.traces[-2:], trace]
        if (met := geometries(trace)) not in self.geometries:
            self.geometries = [*self.geometries[1 - MAX_SEEN :], met]

    def learn_from(self, other: Group) -> None:
        """Make inputs of what is an input on another path, and add sizes that have changed there."""
        self.relaxed |= other.relaxed
        if self.isolated or other is self or not self.geometries:
            return
        own = self.geometries[-1]
        for met in other.geometries:
            moved = {token: met[token] for token, _ in other.sizes if token in own and token in met}
            if moved and all(other.moves(token, own[token], moved[token]) for token in moved):
                row = own | moved
                if row not in self.borrowed and row not in self.geometries and decides_alike(self.traces[-1], row):
                    self.borrowed = [*self.borrowed[1 - MAX_SEEN :], row]

    def stop_borrowing(self) -> bool:
        """Stop using geometries of other paths, which did not fit. Returns whether there were any."""
        had, self.borrowed, self.isolated = bool(self.borrowed), [], True
        return had

    def moves(self, token: Any, one: Geometry, other: Geometry) -> bool:
        """Whether two tensors differ at most in sizes that are inputs here."""
        (sizes, _), (others, _) = one, other
        free = {dim for moved, dim in self.sizes if moved == token}
        alike = (a == b or dim in free for dim, (a, b) in enumerate(zip(sizes, others, strict=False)))
        return len(sizes) == len(others) and all(alike)


class Paths:
    """The watched runs by path. ``latest``: the last runs; ``count``: how many paths there have been."""

    def __init__(self, counts: Counts) -> None:
        self.latest: list[Trace] = []
        self.count = 0
        self._counts = counts
        self._groups: dict[Any, Group] = {}
        self._lengths = TripCounts()
        self.concerns = self._lengths.concerns
        self._without_replaced: dict[int, Trace] = {}  # traces from which all replaced tensors have been released
        self._kept_until = -1  # the last speculated call after which traces are searched for replaced tensors

    def take(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add a watched call."""
        self.let_go(args, kwargs)
        self._kept_until = self._counts.speculated + MAY_HOLD_REPLACED
        self.latest = [*self.latest[-2:], trace]

    def drop(self, trace: Trace) -> None:
        """Let go of a run of which no graph is made. The program may see when objects that it holds are gone."""
        self.latest = [one for one in self.latest if one is not trace]

    @property
    def differ_in_results(self) -> bool:
        """Whether the last three runs differ, each from the one before it, first where they look at the result of an
        extern call: samples that are drawn are others in each call."""
        found = [_first_difference(*pair) for pair in pairwise(self.latest)]
        return len(found) == 2 and all(pair is not None and any(map(_looks_at_result, pair)) for pair in found)

    @property
    def specialize_on_growth(self) -> bool:
        """Whether the last two runs differ first in the value of a number that decides (an index, the length of a
        list), and it has become larger: such a value is not expected again."""
        pair = _first_difference(*self.latest[-2:]) if len(self.latest) > 1 else None
        if pair is None:
            return False
        before, after = pair
        if not (isinstance(before, Specialization) and isinstance(after, Specialization)):
            return False
        numbers = isinstance(before.value, int | float) and isinstance(after.value, int | float)
        return numbers and before.value < after.value

    @property
    def may_hold_replaced(self) -> bool:
        """Whether traces may still hold tensors that later calls have replaced."""
        return self._counts.speculated <= self._kept_until

    def let_go(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Release tensors that are no longer at the access path where a trace found them, such as old gradients.
        ``args``, ``kwargs``: of the last call."""
        traces = {id(t): t for t in (*self.latest, *(t for group in self._groups.values() for t in group.traces))}
        self._without_replaced = {key: trace for key, trace in self._without_replaced.items() if key in traces}
        for key, trace in traces.items():
            if key not in self._without_replaced and not release(trace, args, kwargs):
                self._without_replaced[key] = trace

    def group_of(self, trace: Trace, shape: tuple[int, tuple[str, ...]]) -> Group:
        """Return the group that this run belongs to. Runs of different trip counts share a group if one graph serves
        them all."""
        runs = self._lengths.take(trace)
        if runs:
            group = self._group(runs[-1], shape)
            group.folded = True
            if group.refusal is None:
                for run in runs:
                    # Where the trip count cannot vary, runs with other counts are groups of their own.
                    part = self._group(run, shape)
                    part.folded = True
                    if not any(run is known for known in part.traces):
                        part.take(run)
                return group
        group = self._group(trace, shape)
        group.take(trace)
        return group

    def _group(self, trace: Trace, shape: tuple[int, tuple[str, ...]]) -> Group:
        """Return the group of one path; where some sizes cannot vary in one graph, that of runs with equal sizes."""
        key, part, reason = trace.tokens(), False, ""
        while (group := self._groups.get(key)) is not None:
            if group.split_dimensions:
                key, part = (key, key_of(trace, group.split_dimensions)), True
            elif not all(holds_for(condition, trace) for condition in group.conditions):
                key, part = (key, "other sizes"), True
            else:
                break
            reason = group.host_selection_reason
        if group is None:
            self.count += 1
            group = self._groups[key] = Group(self.count, shape, isolated=part, host_selection_reason=reason)
        return group

    def split(self, group: Group, parts: Collection[tuple[Any, Any]]) -> list[Group]:
        """Split a group into groups of equal sizes, where these ``parts`` (dimensions of tensors) cannot vary. The last
        group returned holds the last run."""
        group.split_dimensions = tuple(parts)
        found = [self._group(trace, group.shape) for trace in group.traces]
        for part, trace in zip(found, group.traces, strict=True):
            part.folded = group.folded
            part.take(trace)
        found[-1].relaxed |= group.relaxed
        found[-1].sizes |= group.sizes
        return list({id(part): part for part in reversed(found)}.values())[::-1]

    def forget(self, groups: Collection[Group]) -> None:
        """Remove these groups: their paths may be seen again."""
        gone = set(map(id, groups))
        self._groups = {key: group for key, group in self._groups.items() if id(group) not in gone}

    def trim(self, used: Collection[Group]) -> None:
        """Remove the oldest groups that are not ``used``, if there are too many: their traces hold tensors."""
        kept = set(map(id, used))
        idle = [group for group in self._groups.values() if id(group) not in kept]
        self.forget(idle[: max(0, len(self._groups) - MAX_GROUPS)])

    @property
    def are_refused(self) -> bool:
        """Whether a graph can be made of no path."""
        return all(group.refusal is not None for group in self._groups.values())

    def difference(self) -> tuple[str, Place]:
        """Return where the last watched runs took different paths, in words, and the place; "" if there is one path."""
        if self.count < 2:
            return "", NOWHERE
        for before in reversed(self.latest[:-1]):
            if (difference := _first_difference(before, self.latest[-1])) is not None:
                one, other = difference
                return f"the last two part here: {one} / {other}", other.place
        return "they return or store different things", NOWHERE


def _first_difference(one: Trace, other: Trace) -> tuple[Event, Event] | None:
    """Return the first events in which two runs differ; None if there are none."""
    pairs = zip(one.events, other.events, strict=False)
    return next((pair for pair in pairs if pair[0].token != pair[1].token), None)


def _looks_at_result(event: Event) -> bool:
    """Whether the event is a fact about what an extern call has returned, or about what is in it."""
    names = ("access_path", "base", "first", "second")
    paths = (getattr(event, name, None) for name in names)
    return any(isinstance(path, AccessPath) and path.waits_for > 0 for path in paths)

"""One graph of a speculated function, with its assumptions and the code that runs it.

``entry_making`` makes entries; ``learning`` decides when they are made and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.core.access_path import RESULTS, AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.graph.generalize.generalize import EntryPlan
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Assertion
from torchjanus.host.assumption import Assumption, Condition, Identity, SameObject, ValueOf
from torchjanus.runtime.entries.engine import Engine
from torchjanus.runtime.launch.differentiable import Differentiable
from torchjanus.runtime.launch.launch import Launch, build_launch
from torchjanus.runtime.runs.paths import Group
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.values import Read, leaves

__all__ = ["Entry", "alone", "contradicted", "entry_of"]


@dataclass(slots=True)
class Entry:
    """A guarded graph. In a path tree it is the last part of one path: ``lowered`` is then the rest of the ``whole``
    graph, ``own`` the assumptions that earlier parts do not check, ``live`` the values of earlier parts that it takes.
    """

    group: Group
    plan: EntryPlan
    whole: Lowered
    assumptions: tuple[Assumption, ...]
    lowered: Lowered
    own: tuple[Assumption, ...]
    launch: Launch
    engine: Engine
    live: tuple[int, ...] | None = None
    used: int = 0  # the last call that it made
    runs: int = 0
    violations: int = 0
    errors: int = 0  # calls in which both the graph and an operation of the program raised
    exceptions: int = 0  # calls in which the graph selected a number of elements for which it is not right
    backward: list[Engine] = field(default_factory=list)  # run the backward passes of its results

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Itself: a route is an entry, or a tree of several."""
        return (self,)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """What runs it."""
        return (self.engine, *self.engine.middles, *self.backward)

    @property
    def journaled(self) -> bool:
        """Whether extern calls are made before the commit."""
        return self.launch.journaled

    @property
    def repeats(self) -> bool:
        """Whether an extern call with effects is made before the commit."""
        return any(not event.effects.harmless or event.draws for some in self.plan.schedule.stages for event in some)

    def path_to(self, entry: Entry) -> list[Assertion]:
        """Return the decisions that lead to it: none, outside a tree."""
        return []

    def choose(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Any) -> Any:
        """Return the entry to run, and the values that it takes from earlier parts."""
        return self, ()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Any) -> Any:
        """See Launch.call."""
        return self.launch.call(args, kwargs, journal)

    def timed(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Any, ticks: list[int]) -> Any:
        """See Launch.timed."""
        return self.launch.timed(args, kwargs, journal, ticks)

    def assertion(self, number: int) -> Assertion:
        """Return the assertion with this number."""
        return self.lowered.assertions[number]

    def varying(self) -> set[Any]:
        """Return the tokens of all access paths that are inputs."""
        inputs = (o.token for o, held in zip(self.plan.access_paths, self.plan.pinned, strict=True) if held is None)
        return {*inputs, *(access_path.token for access_path in self.plan.varying)}

    def broken(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], among: Sequence[Assumption] | None = None
    ) -> list[Assumption]:
        """Return the assumptions (of those in ``among``) that do not hold for this call. ``kwargs`` may hold results of
        extern calls."""
        known = (
            a
            for a in (self.assumptions if among is None else among)
            if not _waiting(a)
            and not _unmade(a, kwargs)
            and not any(access_path.is_grown for access_path in a.access_paths())
        )
        return [assumption for assumption in known if not assumption.holds(args, kwargs)]

    def looks_up_constants(self, varying: Container[AccessPath]) -> bool:
        """Whether it looks up the very object of its runs that was at one of these paths."""
        return any(
            isinstance(a, SameObject) and a.same and a.second.step is Step.CONST and a.first in varying
            for a in self.assumptions
        )

    def relaxable(self, assumption: Assumption) -> list[Any]:
        """Return the tokens of the access paths that the assumption holds constant and a graph could take as inputs."""
        if isinstance(assumption, ValueOf) and self._is_number(assumption):
            # A number that Python itself needs (a length, an index) would be held constant all the same.
            read = Read(assumption.access_path).token
            needed = any(isinstance(e, Specialization) and e.expr.token == read for e in self.group.traces[-1].events)
            found = [] if needed else [assumption.access_path]
        elif isinstance(assumption, Identity) and _is_gradient(assumption.access_path):
            # If one gradient is a new tensor, all are: relax all at once, not in one graph for each parameter.
            found = [a.access_path for a in self.assumptions if isinstance(a, Identity) and _is_gradient(a.access_path)]
        elif isinstance(assumption, Identity) and self._may_vary(assumption):
            found = [assumption.access_path]
        else:
            found = []
        return [o.token for o in found if o.token not in self.group.relaxed]

    def _is_number(self, assumption: ValueOf) -> bool:
        """Whether it is a number, or a string that is known to change."""
        if type(assumption.value) is not str:
            return type(assumption.value) in (int, float)
        reads = (
            e
            for e in self.group.traces[-1].events
            if isinstance(e, HeapRead) and e.access_path == assumption.access_path
        )
        return any(read.kind == "number" for read in reads)

    def _may_vary(self, assumption: Identity) -> bool:
        """Whether another object could be there. What decides which code runs could not vary."""
        if callable(assumption.value) and not isinstance(assumption.value, torch.nn.Module):
            return False
        reads = (
            e
            for e in self.group.traces[-1].events
            if isinstance(e, HeapRead) and e.access_path == assumption.access_path
        )
        return all(read.kind in ("tensor", "object") for read in reads)


def _is_gradient(access_path: AccessPath) -> bool:
    return access_path.step is Step.FIELD and access_path.key == "grad"


def _waiting(assumption: Assumption) -> bool:
    return isinstance(assumption, Condition) and any(not isinstance(leaf, Read) for leaf in leaves(assumption.expr))


def _unmade(assumption: Assumption, kwargs: dict[str, Any]) -> bool:
    """Whether it depends on an extern call that has not been made."""
    results = kwargs.get(RESULTS, {})
    return any(o.waits_for and o.waits_for - 1 not in results for o in assumption.access_paths())


def entry_of(
    group: Group, plan: EntryPlan, lowered: Lowered, assumptions: tuple[Assumption, ...], executor: str
) -> Entry:
    launch = build_launch(plan, lowered, assumptions)
    engine = Engine(lowered, executor, launch.use)
    entry = Entry(group, plan, lowered, assumptions, lowered, assumptions, launch, engine)
    if launch.differentiable is not None:
        _run_backward(launch.differentiable, entry, executor)
    return entry


def _run_backward(differentiable: Differentiable, entry: Entry, executor: str) -> None:
    """Give each backward pass of the entry's results an engine."""
    backward, first = entry.backward, entry.engine

    def engine(lowered: Lowered, exchange: Callable[[Any], None]) -> None:
        made = Engine(lowered, executor, exchange)
        made.budget = first.budget
        backward.append(made)
        if first.asked:
            made.compile()

    engine(differentiable.first.lowered, differentiable.first.use)
    differentiable.engine = engine


def alone(entry: Entry, executor: str) -> Entry:
    """Return an entry of a tree as an entry of its own, with the whole graph."""
    if entry.live is None:
        return entry
    made = entry_of(entry.group, entry.plan, entry.whole, entry.assumptions, executor)
    return replace(made, runs=entry.runs, violations=entry.violations, errors=entry.errors)


def contradicted(entry: Entry, trace: Trace) -> bool:
    """Whether the first decision in which this run differs from those that the path was made of went the other way."""
    pairs = zip(_predicates(entry.group.traces[-1]), _predicates(trace), strict=False)
    different = next((pair for pair in pairs if pair[0] != pair[1]), None)
    return different is not None and different[0][0] == different[1][0]


def _predicates(trace: Trace) -> Iterator[tuple[Place, bool]]:
    """Yield where the run decided and how."""
    for event in trace.events:
        if isinstance(event, TensorPredicate | NumberPredicate):
            yield event.place, bool(event.outcome)

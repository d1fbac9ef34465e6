"""Paths that part where a tensor decides, run as one: what they have in common, the decision, the rest of one path.

Knows how to run such a tree and how to make one of entries, not when (JANUS 4.2.1, dynamic control flow).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from torchjanus.assumptions.assumption import Assumption, Condition, Distinct, Identity, TensorKind, ValueOf
from torchjanus.errors import Place
from torchjanus.execute.base import Violated
from torchjanus.execute.gate import Generators
from torchjanus.graph.generalise import Generalised, HostBatch
from torchjanus.graph.invoke_op import is_invoke, known_calls
from torchjanus.graph.lowered import Lowered
from torchjanus.graph.path_values import Path, Tree
from torchjanus.graph.program import Assertion, Input, Modes
from torchjanus.graph.sharing import Rest, Shared, share
from torchjanus.journal import Journal
from torchjanus.origin import Origin, token_of
from torchjanus.runtime.engine import Engine
from torchjanus.runtime.entry import Entry
from torchjanus.runtime.launch import (
    MISS,
    RAISED,
    Beginning,
    Failure,
    Violation,
    build_beginning,
    build_launch,
    failure,
)
from torchjanus.runtime.standby import Standby
from torchjanus.trace.actions import Extern
from torchjanus.trace.events import Event, Trace
from torchjanus.trace.facts import Asserted, Held, Pinned
from torchjanus.trace.recipes import Constant
from torchjanus.trace.values import Apply, Fetch, Read, Turn, leaves

__all__ = ["Branching", "Fork", "branch", "lacking", "part_ways", "same_as"]

SETTLED = 24  # a tree that stayed as it is for so many calls is worth compiling
APART = 3  # calls from one of its parts to the next: to order one takes milliseconds, to order all is felt


@dataclass(slots=True)
class Fork:
    """Where paths part: what is computed before, and an arm for each way that was seen."""

    beginning: Beginning
    engine: Engine
    arms: tuple[Fork | Entry, ...]
    assertions: tuple[Assertion, ...]  # what holds in each arm
    plan: Generalised  # of one of the paths, as far as it is done here
    own: tuple[Assumption, ...]  # what is checked here
    live: tuple[int, ...]  # which values of the parts before it takes
    violations: int = 0  # calls that took none of them

    @property
    def lowered(self) -> Lowered:
        """Its graph."""
        return self.engine.lowered

    @property
    def runs(self) -> int:
        """How many calls went through it to their end."""
        return sum(arm.runs for arm in self.arms)

    def entries(self) -> Iterator[Entry]:
        """The paths that begin with it."""
        for arm in self.arms:
            yield from arm.entries() if isinstance(arm, Fork) else (arm,)

    @property
    def place(self) -> Place:
        """The line that decides."""
        return self.assertions[0].place

    def assertion(self, number: int) -> Assertion:
        """The assertion that was violated, as for an Entry."""
        return self.assertions[number]


@dataclass(slots=True)
class Branching:
    """A tree of paths. It is tried on a call as an entry would be."""

    root: Fork
    entries: tuple[Entry, ...]
    used: int = 0
    runs: int = 0
    calls: int = 0
    standby: Standby | None = None  # what made the calls before
    _generators: Generators | None = field(default=None, init=False)
    _unordered: deque[Engine] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self._unordered.extend(self.engines)
        # What one part has drawn another must be able to take back.
        drawing = [entry.whole for entry in self.entries if entry.whole.random]
        self._generators = Generators(drawing[0]) if drawing else None

    @property
    def engines(self) -> tuple[Engine, ...]:
        """What runs its parts, the shared ones first."""
        return (*(fork.engine for fork in self.forks()), *(entry.engine for entry in self.entries))

    @property
    def journaled(self) -> bool:
        """Whether extern calls are made before the commit."""
        return self.entries[0].journaled

    def choose(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Run the parts before the last decision; return the entry to go on with and the values it needs. Otherwise
        MISS, RAISED, or the Violation of a fork whose way was not seen yet. Nothing is changed but generators."""
        live: list[torch.Tensor] = []
        fork = self.root
        while True:
            given = fork.beginning.begin(args, kwargs, journal, live)
            if given is MISS or given is RAISED:
                return given
            flags = given[0].tolist()
            live += given[1:]
            if True not in flags:
                return Violation(Violated((0,)), fork)
            arm = fork.arms[flags.index(True)]
            if type(arm) is Entry:
                return arm, live
            fork = arm

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """See Launch.call."""
        self.calls += 1
        if self.calls >= SETTLED and self._unordered and (self.calls - SETTLED) % APART == 0:
            self._unordered.popleft().compile()
        if (standby := self.standby) is not None:
            if standby.over:
                self.standby = None
            elif (result := self._by_standby(standby, args, kwargs, journal)) is not MISS:
                return result
        return self._made(lambda entry, live: entry.launch.call(args, kwargs, journal, live), args, kwargs, journal)

    def stand_by(self, before: Entry | Branching) -> None:
        """Go on with what there was, if that is compiled and this is not."""
        if Standby.pays(before):
            self.standby = Standby(before, self.engines)
        elif isinstance(before, Branching) and before.standby is not None:
            self.standby = before.standby.of(self.engines)

    def _by_standby(
        self, standby: Standby, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None
    ) -> Any:
        try:
            result = standby.call(args, kwargs, journal)
        except Exception as error:
            return failure(error, self.entries[0])
        return replace(result, by=self.entries[0]) if type(result) is Failure else result

    def timed(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None, ticks: list[int]) -> Any:
        """See Launch.timed. What comes before the last decision counts as the run of the graph."""
        started = time.perf_counter_ns()

        def run(entry: Entry, live: list[torch.Tensor]) -> Any:
            return entry.launch.timed(args, kwargs, journal, ticks, live)

        result = self._made(run, args, kwargs, journal)
        if len(ticks) == 4:
            begun, guarded, *others = ticks
            ticks[:] = [started, started + guarded - begun, *others]
        return result

    def _made(
        self,
        run: Callable[[Entry, list[torch.Tensor]], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        journal: Journal | None,
    ) -> Any:
        generators = self._generators
        states = None if generators is None else generators.save()
        done = False
        entry = self.entries[0]
        try:
            chosen = self.choose(args, kwargs, journal)
            if type(chosen) is not tuple:
                return chosen
            entry, live = chosen
            result = run(entry, live)
            if type(result) is Violation:
                return Violation(result.violated, entry)
            if type(result) is Failure:
                done = result.committing
                return replace(result, by=entry)
            done = result is not MISS and result is not RAISED
            entry.runs += done
            return result
        except Exception as error:
            return failure(error, entry)
        finally:
            if not done and generators is not None and states is not None:
                generators.restore(states)

    def way_to(self, entry: Entry) -> list[Assertion]:
        """What was decided on the way to an entry, from the first decision on."""

        def search(fork: Fork) -> list[Assertion] | None:
            for arm, assertion in zip(fork.arms, fork.assertions, strict=True):
                below = search(arm) if isinstance(arm, Fork) else [] if arm is entry else None
                if below is not None:
                    return [assertion, *below]
            return None

        return search(self.root) or []

    def forks(self) -> Iterator[Fork]:
        """All forks, from the first on."""
        pending = [self.root]
        while pending:
            fork = pending.pop(0)
            yield fork
            pending += [arm for arm in fork.arms if isinstance(arm, Fork)]


def lacking(entries: Sequence[Entry]) -> list[set[Any]]:
    """For each entry the tokens of what it holds constant and another one takes as an input: what it has to relax
    before they can be joined."""
    varying = set().union(*(entry.varying() for entry in entries))
    return [
        {a.origin.token for a in entry.assumptions if isinstance(a, ValueOf | Identity) and a.origin.token in varying}
        - entry.group.relaxed
        for entry in entries
    ]


def part_ways(entries: Sequence[Entry]) -> Tree | None:
    """How the entries part, if they are the same up to decisions that tensors make; None otherwise."""
    position = _parting([entry.group.traces[-1] for entry in entries])
    first = set(entries[0].plan.schedule.early)
    for entry in entries:
        early = entry.plan.schedule.early
        before = {e.number for e in entry.group.traces[-1].events[:position] if isinstance(e, Extern)}
        # An extern call after the decision that the graph waits for would be made by one path only.
        if entry.whole.program.cuts or set(early) != first or not early <= before:
            return None
    tree = _tree(entries, list(range(len(entries))))
    return tree if isinstance(tree, Tree) else None


def branch(entries: Sequence[Entry], executor: str) -> Branching | None:
    """One tree of these entries, if they are the same up to decisions that tensors make; None otherwise."""
    tree = part_ways(entries)
    shared = None if tree is None else share([_path(entry) for entry in entries], tree)
    if shared is None:
        return None
    leaves_made: dict[int, Entry] = {}
    root = _Assembly(entries, executor, leaves_made).part(shared, frozenset())
    assert isinstance(root, Fork)
    return Branching(root, tuple(leaves_made[number] for number in range(len(entries))))


def _path(entry: Entry) -> Path:
    plan = entry.plan
    tokens = [dimension.expr.token for dimension in plan.program.dimensions]

    def sizes(source: Input) -> tuple[Any, ...]:
        symbols = source.symbols or (None,) * source.example.dim()
        return tuple(n if k is None else tokens[k] for n, k in zip(source.example.shape, symbols, strict=True))

    inputs = tuple(
        (origin, None if held is None else id(held), sizes(source))
        for origin, held, source in zip(plan.origins, plan.pinned, plan.program.inputs, strict=True)
    )
    return Path(entry.whole, inputs, tuple(expr.token for expr in plan.slots))


def _tree(entries: Sequence[Entry], members: list[int]) -> Tree | int | None:
    """How the entries' runs part, as far as tensors decide; None where something else does."""
    if len(members) == 1:
        return members[0]
    first = entries[members[0]].group
    traces = [entries[number].group.traces[-1] for number in members]
    if any(t.ambient != traces[0].ambient for t in traces) or any(
        entries[n].group.shape != first.shape for n in members
    ):
        return None
    position = _parting(traces)
    if position is None:
        return None
    row = [trace.events[position] for trace in traces]
    questions = {_question(event) for event in row}
    asked = {number: _assertion(entries[number], position) for number in members}
    if len(questions) > 1 or None in questions or None in asked.values():
        return None
    ways: dict[Any, list[int]] = {}
    for number, event in zip(members, row, strict=True):
        ways.setdefault(event.token, []).append(number)
    arms = [_tree(entries, way) for way in ways.values()]
    found = [arm for arm in arms if arm is not None]
    if len(found) < len(arms):
        return None
    return Tree(tuple(found), tuple((way[0], asked[way[0]] or 0) for way in ways.values()))


def _parting(traces: Sequence[Trace]) -> int | None:
    """The number of the first event in which some runs differ."""
    for position, row in enumerate(zip(*(trace.events for trace in traces), strict=False)):
        if len({event.token for event in row}) > 1:
            return position
    return None


def _question(event: Event) -> Any:
    """What was asked of a tensor, whatever the answer."""
    match event:
        case Asserted(ref=ref):
            return "truth", ref.number
        case Held(expr=expr):
            return "condition", expr.token
        case Pinned(expr=expr):
            return "value", expr.token
    return None


def _assertion(entry: Entry, position: int) -> int | None:
    return next((n for n, a in enumerate(entry.whole.assertions) if a.event == position), None)


class _Assembly:
    """Makes the parts of a tree runnable."""

    def __init__(self, entries: Sequence[Entry], executor: str, made: dict[int, Entry]) -> None:
        self.entries = entries
        # The symbols of changing sizes are each path's own: Inductor could not compile a part of several paths.
        self.executor = "replay" if any(entry.whole.program.dimensions for entry in entries) else executor
        self.made = made

    def part(self, part: Shared | Rest, checked: frozenset[Any]) -> Fork | Entry:
        """``checked``: the assumptions that parts before it check."""
        if isinstance(part, Rest):
            return self._rest(part, checked)
        entry = self.entries[part.path]
        below = [self.entries[number] for number in _paths(part)]
        common = set.intersection(*({same_as(a) for a in e.assumptions} for e in below))
        mine = [a for a in entry.assumptions if same_as(a) in common and not _late(a)]
        plan = replace(_before(entry.plan, part), groves=_groves(entry, below, part))
        own = [a for a in mine if same_as(a) not in checked]
        beginning = build_beginning(plan, part.lowered, own, part.live)
        engine = Engine(part.lowered, self.executor, beginning.use)
        known = checked | {same_as(a) for a in mine}
        arms = tuple(self.part(arm, known) for arm in part.arms)
        return Fork(beginning, engine, arms, part.assertions, plan, tuple(own), part.live)

    def _rest(self, part: Rest, checked: frozenset[Any]) -> Entry:
        entry = self.entries[part.path]
        own = tuple(a for a in entry.assumptions if same_as(a) not in checked)
        launch = build_launch(entry.plan, part.lowered, own, part.live)
        engine = Engine(part.lowered, self.executor, launch.use)
        made = replace(entry, lowered=part.lowered, own=own, live=part.live, launch=launch, engine=engine)
        self.made[part.path] = made
        return made


def _groves(entry: Entry, below: Sequence[Entry], part: Shared) -> tuple[Any, ...]:
    """The recursive calls that a part makes: for what decides between paths, also those of other paths."""
    called = {node.args[0] for node in part.lowered.graph.graph.nodes if is_invoke(node.target)}
    owners = [calls.owner for key in called if (calls := known_calls(key)) is not None]
    told = [
        grove for grove in entry.plan.groves if [*grove.lists, *grove.numbers, *grove.counts]
    ]  # other parts of the step know it
    made = [grove for other in below for grove in other.plan.groves if grove.invocation in owners]
    return tuple(dict.fromkeys([*told, *made]))


def _paths(part: Shared | Rest) -> Iterator[int]:
    if isinstance(part, Rest):
        yield part.path
    else:
        for arm in part.arms:
            yield from _paths(arm)


def _before(plan: Generalised, part: Shared) -> Generalised:
    """What of a path's plan is to be done before a decision: inputs and numbers of the part, and nothing to commit."""
    slots = tuple(plan.slots[index] for index in part.slots)
    wanted = {leaf.token for expr in slots for leaf in leaves(expr) if isinstance(leaf, Fetch)}
    chosen = list(part.inputs)
    batches = []
    for batch in plan.batches:
        pairs = [(i, f) for i, f in zip(batch.inputs, batch.fetches, strict=True) if f.token in wanted]
        chosen += [index for index, _ in pairs if index not in chosen]
        if pairs:
            places = tuple(chosen.index(index) for index, _ in pairs)
            batches.append(HostBatch(places, batch.steps, tuple(fetch for _, fetch in pairs)))
    inputs = tuple(plan.program.inputs[index] for index in chosen)
    early = plan.schedule.early
    return replace(
        plan,
        program=replace(plan.program, inputs=inputs),
        origins=tuple(plan.origins[index] for index in chosen),
        pinned=tuple(plan.pinned[index] for index in chosen),
        slots=slots,
        batches=tuple(batches),
        outputs={},
        effects=tuple(e for e in plan.effects if isinstance(e.event, Extern) and e.event.number in early),
        result=Constant(None),
        risky=(),
        computed=(),
    )


def _late(assumption: Assumption) -> bool:
    """Whether it is left to the rest of each path: what needs numbers from tensors, or matters to the commit only."""
    if isinstance(assumption, Distinct) or any(origin.waits_for for origin in assumption.origins()):
        return True
    return isinstance(assumption, Condition) and any(isinstance(leaf, Fetch) for leaf in leaves(assumption.expr))


def same_as(assumption: Assumption) -> Any:
    """Equal for assumptions that say the same, wherever the program relies on them."""
    if isinstance(assumption, TensorKind):
        assumption = replace(assumption, detail=assumption.held)  # in which run it was seen is of no interest
    said = (
        (f.name, _token(getattr(assumption, f.name)))
        for f in fields(assumption)
        if f.name not in ("place", "example", "describe")
    )
    return (type(assumption).__name__, *said)


def _token(value: Any) -> Any:
    if isinstance(value, Origin | Read | Fetch | Turn | Apply):
        return value.token
    if isinstance(value, tuple):
        return tuple(map(_token, value))
    if isinstance(value, Modes):
        return value
    return token_of(value)

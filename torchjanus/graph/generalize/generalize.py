"""Generalise the traces of one path to one program with assumptions (JANUS 4.2).

Where the traces agree there is an assumption; where a number or an object differs there is an input. The traces must
have taken the same path (equal tokens). The assumptions decide which path a later call takes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Refused
from torchjanus.graph.generalize.assume import assumptions_of
from torchjanus.graph.generalize.builder import Builder
from torchjanus.graph.generalize.dead_stores import overwritten
from torchjanus.graph.generalize.known_numbers import with_known_numbers
from torchjanus.graph.generalize.schedule import Schedule, schedule
from torchjanus.graph.generalize.selections import made_sizes
from torchjanus.graph.ir.dimensions import Dimensions, Geometry, dimensions_of, geometries
from torchjanus.graph.ir.numbers import (
    HostBatch,
    Numbers,
    find_host_fetches,
    need,
    split_numbers,
    used_expressions,
    value_of,
    varies,
)
from torchjanus.graph.ir.passes import Part, Pass, PassList, Stage
from torchjanus.graph.ir.program import Cut, Program
from torchjanus.graph.ir.repetition import begin_iterations
from torchjanus.graph.ir.size_formulas import Formulas
from torchjanus.host.assumption import Assumption, TypeOf
from torchjanus.host.collectives import Collective
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, HostLoop, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HostComputation, KeyLookup, Specialization
from torchjanus.trace.operations import ops_of
from torchjanus.trace.recipes import ExistingObject, Recipe
from torchjanus.trace.values import Expr, Read, Size, Traced, leaves

__all__ = ["PROGRAM", "Effect", "EntryPlan", "HostBatch", "generalise"]


@dataclass(frozen=True, slots=True)
class Effect:
    """A deferred write or extern call with the recipes of its values; or those of all iterations of a loop, with the
    recipes of one iteration. ``parts``: how many values each event of an iteration has."""

    event: HeapWrite | ContainerMutation | Extern | HostLoop
    recipes: tuple[Recipe, ...]
    parts: tuple[int, ...] = ()

    def externs(self) -> Iterator[Extern]:
        """Yield the extern calls; for a loop those of the first iteration."""
        events = self.event.events if isinstance(self.event, HostLoop) else (self.event,)
        yield from (event for event in events if isinstance(event, Extern))


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """One path, ready to be lowered and guarded."""

    program: Program
    assumptions: tuple[Assumption, ...]
    access_paths: tuple[AccessPath, ...]  # of the program's inputs
    pinned: tuple[torch.Tensor | None, ...]  # the tensor itself, where an assumption fixes its identity
    slots: tuple[Expr, ...]
    batches: tuple[HostBatch, ...]
    outputs: dict[Any, int]  # ("tensor", number) or a fetch's token -> position in the program's outputs
    effects: tuple[Effect, ...]
    result: Recipe
    varying: tuple[AccessPath, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
    risky: tuple[Expr, ...] = ()  # Python arithmetic on fetched numbers that may raise, with no assertion against it
    computed: tuple[Expr, ...] = ()  # other arithmetic that may raise: known before the graph runs
    dimensions: Dimensions = field(default_factory=Dimensions)
    sizes: dict[Any, int] = field(default_factory=dict)  # of intermediate tensors, by token, where none changes
    call_groups: tuple[Any, ...] = ()  # groups of recursive calls of the step
    measures: tuple[Size, ...] = ()  # sizes of intermediate tensors, in the order of ``Program.measures``

    @property
    def is_overtaken(self) -> bool:
        """Whether an extern call may change memory that the graph has read before."""
        return any(event.late for effect in self.effects for event in effect.externs())


def generalise(
    traces: Sequence[Trace],
    relaxed: frozenset[Any] = frozenset(),
    describe: Callable[[torch.Tensor], Any] | None = None,
    seen: Sequence[Mapping[Any, Geometry]] = (),
    numbers: bool = False,
    counted: bool = False,
) -> EntryPlan:
    """Return the program and the assumptions that all of these runs share. ``seen``: geometries of tensors in earlier
    runs. ``numbers``: whether numbers used as sizes may change. ``counted``: whether trip counts are sizes, too. Raises
    Refused where no graph can represent the runs, Split where no graph can for all sizes."""
    if any(trace.refusals for trace in traces):
        raise Refused(next(trace.refusals[0] for trace in traces if trace.refusals))
    making = _Generalization(list(traces), relaxed, describe or (lambda t: None), seen, numbers, counted)
    program = PROGRAM.run(traces[-1], making)
    work, builder, plan = making.work, making.builder, making.plan
    last = work.traces[-1]
    made = tuple(
        a for a in making.assumptions if all(plan.is_early(access_path.waits_for) for access_path in a.access_paths())
    )
    return EntryPlan(
        program,
        made,
        tuple(builder.inputs.access_paths),
        builder.inputs.pinned(),
        tuple(builder.slots),
        tuple(builder.batches()),
        builder.outputs,
        tuple(_effects(last, making.gone)),
        last.result,
        tuple(sorted(work.varying, key=str)),
        plan,
        tuple(builder.risky),
        tuple(_computed(work, builder)),
        work.dimensions,
        {} if work.dimensions else {token: size for token, size in last.fetched.items() if token[0] == "size"},
        measures=tuple(builder.sizes.measures),
    )


@dataclass(slots=True)
class _Generalization:
    """The state that the passes share while they make one program of the runs of a path: see ``generalise``."""

    traces: list[Trace]
    relaxed: frozenset[Any]
    describe: Callable[[torch.Tensor], Any]
    seen: Sequence[Mapping[Any, Geometry]]
    numbers: bool
    counted: bool
    gone: frozenset[int] = frozenset()  # the ids of dead stores
    work: Numbers = field(init=False)
    builder: Builder = field(init=False)
    assumptions: tuple[Assumption, ...] = ()
    plan: Schedule = field(init=False)


def _without_dead_stores(last: Trace, making: _Generalization) -> Trace:
    making.gone = gone = overwritten(last)
    if gone:
        kept = {number: recipes for number, recipes in last.recipes.items() if number not in gone}
        last = making.traces[-1] = replace(last, recipes=kept)
    return last


def _known(last: Trace, making: _Generalization) -> Trace:
    traces = making.traces
    work = making.work = Numbers(traces, making.relaxed)
    work.dimensions = dimensions_of(traces, [*making.seen, *map(geometries, traces)], making.relaxed, making.numbers)
    split_numbers(work)
    work.traces = with_known_numbers(work)
    return work.traces[-1]


def _built(last: Trace, making: _Generalization) -> Program:
    work = making.work
    ops = ops_of(last.events)
    if making.counted:
        work.dimensions.counts.extend(_counts(work, ops))
    _select(work, ops)
    find_host_fetches(work, last, ops)
    for expr in used_expressions(last):
        need(work, expr)
    for event in last.events:
        if isinstance(event, Specialization) and not varies(work, event.expr):
            need(work, event.expr)
        elif isinstance(event, KeyLookup) and isinstance(event.key, Traced):
            need(work, event.key.expr)
    making.builder = Builder(work, last, ops)
    return making.builder.build()


def _scheduled(program: Program, making: _Generalization) -> Program:
    builder = making.builder
    making.assumptions = tuple(assumptions_of(making.work, builder, making.describe))
    making.plan = schedule(making.work.traces[-1], _wanted(builder, making.assumptions))
    return _staged(program, builder, making.plan)


PROGRAM = PassList(
    Part.PROGRAM,
    (
        Pass(
            "drop_dead_stores",
            Stage.TRACE,
            _without_dead_stores,
            "Drops writes to objects that are overwritten before anything reads them.",
            contextual=True,
            entry=overwritten,
        ),
        Pass(
            "fold_known_numbers",
            Stage.TRACE,
            _known,
            "Makes numbers fetched from tensors that the step itself has made of constants constants.",
            contextual=True,
            entry=with_known_numbers,
        ),
        Pass(
            "generalize",
            Stage.PROGRAM,
            _built,
            "Makes one program of the runs: what stayed equal is constant, what differed is an input.",
            contextual=True,
        ),
        Pass(
            "schedule_host_calls",
            Stage.REWRITE,
            _scheduled,
            "Cuts the program where the host must make a call before the graph can go on.",
            contextual=True,
            entry=schedule,
        ),
    ),
)


def _counts(work: Numbers, ops: Sequence[Op]) -> Sequence[Read]:
    """Return the varying numbers, other than sizes, on which a trip count or its limit depends."""
    asked = [number for op in ops if op.func is begin_iterations for number in (op.args[0], *op.args[3:4])]
    reads = [read for number in asked for read in Formulas.numbers_in(number)]
    met = {read.token: read for read in reads if varies(work, read)}
    return [read for read in met.values() if type(value := value_of(work, read)) is int and value > 1]


def _select(work: Numbers, ops: Sequence[Op]) -> None:
    """Make the sizes of selections symbols; selections under equal masks share one."""
    met: dict[Any, Size] = {}
    for key, size in made_sizes(ops):
        work.dimensions.select(size, met.setdefault(key, size))


def _wanted(builder: Builder, assumptions: Sequence[Assumption]) -> set[int]:
    """Return the extern calls whose results the graph or an assumption needs before the commit. The types of foreign
    objects, and of numbers that only the commit uses, do not make a call early."""
    waiting = {access_path.waits_for for access_path in builder.inputs.access_paths}
    for expr in builder.slots:
        waiting.update(leaf.access_path.waits_for for leaf in leaves(expr) if isinstance(leaf, Read))
    for expr in _computed(builder.work, builder):
        waiting.update(leaf.access_path.waits_for for leaf in leaves(expr) if isinstance(leaf, Read))
    for assumption in assumptions:
        if isinstance(assumption, TypeOf) and builder.inputs.found[assumption.access_path].kind in (
            "foreign",
            "number",
        ):
            continue
        waiting.update(access_path.waits_for for access_path in assumption.access_paths())
    return {number - 1 for number in waiting if number}


def _computed(work: Numbers, builder: Builder) -> Iterator[Expr]:
    """Yield the varying expressions that may raise and need no result of the graph."""
    for event in builder.trace.events:
        if isinstance(event, HostComputation) and varies(work, event.expr) and not builder.decided_in_graph(event.expr):
            yield event.expr


def _staged(program: Program, builder: Builder, plan: Schedule) -> Program:
    """Return the program with its cuts, and for each input and slot the stage from which it is known."""
    if not plan.cuts:
        return program
    inputs = tuple(
        replace(entry, stage=plan.stage_of(access_path.waits_for))
        for entry, access_path in zip(program.inputs, builder.inputs.access_paths, strict=True)
    )
    slots = tuple(
        replace(kind, stage=max((plan.stage_of(waits_for) for waits_for in _waited_for(builder, e)), default=0))
        for kind, e in zip(program.slots, builder.slots, strict=True)
    )
    cuts = []
    for after, events in zip(plan.cuts, plan.stages[1:], strict=True):
        outputs = {position for event in events for position in builder.outputs_of(event)}
        giving = [event.func for event in events if any(True for _ in builder.outputs_of(event))]
        sums = bool(giving) and all(isinstance(func, Collective) and func.sums for func in giving)
        cuts.append(Cut(builder.position(after), tuple(sorted(outputs)), events[0].effects.begins, sums))
    return replace(program, inputs=inputs, slots=slots, cuts=tuple(cuts))


def _waited_for(builder: Builder, expr: Expr) -> Iterator[int]:
    """Yield the extern calls that a number waits for. A size of an intermediate tensor may depend on the results of
    every call made before it was read."""
    read = [leaf.after for leaf in leaves(expr) if isinstance(leaf, Size)]
    yield from (leaf.access_path.waits_for for leaf in leaves(expr) if isinstance(leaf, Read))
    if not read:
        return
    made = {event.number + 1: event.after for event in builder.trace.events if isinstance(event, Extern)}
    for members in builder.work.dimensions.symbols:
        for access_path, _ in members:
            if access_path.waits_for and made.get(access_path.waits_for, 0) <= max(read):
                yield access_path.waits_for


def _effects(trace: Trace, gone: Container[int]) -> Iterator[Effect]:
    """Yield the effects of a run in order, without dead stores and without writes that put back what was there."""
    touched: set[Any] = set()
    for event in trace.events:
        if id(event) in gone:
            continue
        if isinstance(event, HostLoop):
            values = [trace.recipes.get(id(part), ()) for part in event.events]
            touched.update(part.base for part in event.events if not isinstance(part, Extern))
            yield Effect(event, tuple(r for some in values for r in some), tuple(map(len, values)))
        if not isinstance(event, HeapWrite | ContainerMutation | Extern):
            continue
        recipes = trace.recipes.get(id(event), ())
        if isinstance(event, HeapWrite) and event.how == "item":
            place = event.base.item(event.key.expr if isinstance(event.key, Traced) else event.key)
            same = bool(recipes) and isinstance(recipes[0], ExistingObject) and recipes[0].access_path == place
            if same and place not in touched and event.base not in touched:
                continue  # it puts back the value that was there
            touched.add(place)
        elif not isinstance(event, Extern):
            touched.add(
                event.base.item(event.key)
                if isinstance(event, HeapWrite) and not isinstance(event.key, Traced)
                else event.base
            )
        yield Effect(event, recipes)

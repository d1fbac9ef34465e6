"""Joins entries to a path tree: finds where their runs differ by tensors' decisions, and makes the parts runnable
(JANUS 4.2.1, dynamic control flow).

It does not decide when entries are joined. ``path_tree`` runs the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.graph.generalize.generalize import EntryPlan, HostBatch
from torchjanus.graph.ir.program import Input
from torchjanus.graph.lowering.common_prefix import CommonPrefix, PathRemainder, split_paths
from torchjanus.graph.lowering.value_numbering import Path, Tree
from torchjanus.graph.recursion.cells.invoke_op import is_invoke, known_calls
from torchjanus.host.assumption import Assumption, Condition, Identity, ValueOf
from torchjanus.host.tensor_assumptions import Distinct, TensorKind
from torchjanus.runtime.entries.engine import Engine
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.entries.path_tree import BranchPoint, PathTree
from torchjanus.runtime.launch.launch import build_beginning, build_launch
from torchjanus.trace.actions import Extern
from torchjanus.trace.events import Event, Trace
from torchjanus.trace.facts import NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.modes import Modes
from torchjanus.trace.recipes import Constant
from torchjanus.trace.values import Apply, Fetch, InductionVariable, Read, depends_on, leaves

__all__ = ["branch", "divide", "lacking", "same_as"]


def lacking(entries: Sequence[Entry]) -> list[set[Any]]:
    """Return for each entry the tokens of what it holds constant and another entry takes as an input. They have to be
    relaxed before the entries can be joined."""
    varying = set().union(*(entry.varying() for entry in entries))
    return [
        {
            a.access_path.token
            for a in entry.assumptions
            if isinstance(a, ValueOf | Identity) and a.access_path.token in varying
        }
        - entry.group.relaxed
        for entry in entries
    ]


def divide(entries: Sequence[Entry]) -> Tree | None:
    """Return the tree of the entries' paths, if they differ only by decisions of tensors; None otherwise."""
    position = _parting([entry.group.traces[-1] for entry in entries])
    first = set(entries[0].plan.schedule.early)
    for entry in entries:
        early = entry.plan.schedule.early
        before = {e.number for e in entry.group.traces[-1].events[:position] if isinstance(e, Extern)}
        # An early extern call after the decision would be made on one path only.
        if entry.whole.program.cuts or entry.whole.saves is not None or set(early) != first or not early <= before:
            return None
    tree = _tree(entries, list(range(len(entries))))
    return tree if isinstance(tree, Tree) else None


def branch(entries: Sequence[Entry], executor: str) -> PathTree | None:
    """Return one tree of these entries, if they differ only by decisions of tensors; None otherwise."""
    tree = divide(entries)
    shared = None if tree is None else split_paths([_path(entry) for entry in entries], tree)
    if shared is None:
        return None
    leaves_made: dict[int, Entry] = {}
    root = _Assembly(entries, executor, leaves_made).part(shared, frozenset())
    assert isinstance(root, BranchPoint)
    return PathTree(root, tuple(leaves_made[number] for number in range(len(entries))))


def _path(entry: Entry) -> Path:
    plan = entry.plan
    tokens = [dimension.expr.token for dimension in plan.program.dimensions]

    def sizes(source: Input) -> tuple[Any, ...]:
        symbols = source.symbols or (None,) * source.example.dim()
        return tuple(n if k is None else tokens[k] for n, k in zip(source.example.shape, symbols, strict=True))

    inputs = tuple(
        (access_path, None if held is None else id(held), sizes(source))
        for access_path, held, source in zip(plan.access_paths, plan.pinned, plan.program.inputs, strict=True)
    )
    return Path(entry.whole, inputs, tuple(expr.token for expr in plan.slots))


def _tree(entries: Sequence[Entry], members: list[int]) -> Tree | int | None:
    """Return the tree of these entries' runs; None where they differ by anything but a tensor's decision."""
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
    groups: dict[Any, list[int]] = {}
    for number, event in zip(members, row, strict=True):
        groups.setdefault(event.token, []).append(number)
    arms = [_tree(entries, group) for group in groups.values()]
    found = [arm for arm in arms if arm is not None]
    if len(found) < len(arms):
        return None
    return Tree(tuple(found), tuple((group[0], asked[group[0]] or 0) for group in groups.values()))


def _parting(traces: Sequence[Trace]) -> int | None:
    """Return the position of the first event in which the runs differ; None if there is none."""
    for position, row in enumerate(zip(*(trace.events for trace in traces), strict=False)):
        if len({event.token for event in row}) > 1:
            return position
    return None


def _question(event: Event) -> Any:
    """Return a key of what was asked of a tensor, independent of the answer; None for another event."""
    match event:
        case TensorPredicate(ref=ref):
            return "truth", ref.number
        case NumberPredicate(expr=expr):
            return "condition", expr.token
        case Specialization(expr=expr):
            return "value", expr.token
    return None


def _assertion(entry: Entry, position: int) -> int | None:
    return next((n for n, a in enumerate(entry.whole.assertions) if a.event == position), None)


class _Assembly:
    """Makes the parts of a tree runnable."""

    def __init__(self, entries: Sequence[Entry], executor: str, made: dict[int, Entry]) -> None:
        self.entries = entries
        # The symbols of sizes are specific to each path: Inductor could not compile a part that several paths share.
        self.executor = "replay" if any(entry.whole.program.dimensions for entry in entries) else executor
        self.made = made

    def part(self, part: CommonPrefix | PathRemainder, checked: frozenset[Any]) -> BranchPoint | Entry:
        """Make one part. ``checked``: the assumptions that earlier parts check."""
        if isinstance(part, PathRemainder):
            return self._rest(part, checked)
        entry = self.entries[part.path]
        below = [self.entries[number] for number in _paths(part)]
        common = set.intersection(*({same_as(a) for a in e.assumptions} for e in below))
        mine = [a for a in entry.assumptions if same_as(a) in common and not _late(a)]
        plan = replace(_before(entry.plan, part), call_groups=_call_groups(entry, below, part))
        own = [a for a in mine if same_as(a) not in checked]
        beginning = build_beginning(plan, part.lowered, own, part.live)
        engine = Engine(part.lowered, self.executor, beginning.use)
        known = checked | {same_as(a) for a in mine}
        arms = tuple(self.part(arm, known) for arm in part.arms)
        return BranchPoint(beginning, engine, arms, part.assertions, plan, tuple(own), part.live)

    def _rest(self, part: PathRemainder, checked: frozenset[Any]) -> Entry:
        entry = self.entries[part.path]
        own = tuple(a for a in entry.assumptions if same_as(a) not in checked)
        launch = build_launch(entry.plan, part.lowered, own, part.live)
        engine = Engine(part.lowered, self.executor, launch.use)
        made = replace(entry, lowered=part.lowered, own=own, live=part.live, launch=launch, engine=engine)
        self.made[part.path] = made
        return made


def _call_groups(entry: Entry, below: Sequence[Entry], part: CommonPrefix) -> tuple[Any, ...]:
    """Return the call groups of a part: those that other parts of the step use, and those whose calls it makes, of
    other paths too."""
    called = {node.args[0] for node in part.lowered.graph.graph.nodes if is_invoke(node.target)}
    owners = [calls.owner for key in called if (calls := known_calls(key)) is not None]
    used_elsewhere = [
        call_group
        for call_group in entry.plan.call_groups
        if [*call_group.lists, *call_group.numbers, *call_group.counts]
    ]  # other parts of the step use them
    made = [call_group for other in below for call_group in other.plan.call_groups if call_group.invocation in owners]
    return tuple(dict.fromkeys([*used_elsewhere, *made]))


def _paths(part: CommonPrefix | PathRemainder) -> Iterator[int]:
    if isinstance(part, PathRemainder):
        yield part.path
    else:
        for arm in part.arms:
            yield from _paths(arm)


def _before(plan: EntryPlan, part: CommonPrefix) -> EntryPlan:
    """Return a path's plan restricted to the part before a decision: its inputs and numbers, and nothing to commit."""
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
        access_paths=tuple(plan.access_paths[index] for index in chosen),
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
    """Whether the rest of each path checks it: if it needs numbers from tensors, or matters to the commit only."""
    if isinstance(assumption, Distinct) or any(access_path.waits_for for access_path in assumption.access_paths()):
        return True
    return isinstance(assumption, Condition) and depends_on(assumption.expr, Fetch)


def same_as(assumption: Assumption) -> Any:
    """Return a key that is equal for assumptions with the same meaning at any place."""
    if isinstance(assumption, TensorKind):
        assumption = replace(assumption, detail=assumption.held)  # in which run it was seen does not matter
    said = (
        (f.name, _token(getattr(assumption, f.name)))
        for f in fields(assumption)
        if f.name not in ("place", "example", "describe")
    )
    return (type(assumption).__name__, *said)


def _token(value: Any) -> Any:
    if isinstance(value, AccessPath | Read | Fetch | InductionVariable | Apply):
        return value.token
    if isinstance(value, tuple):
        return tuple(map(_token, value))
    if isinstance(value, Modes):
        return value
    return token_of(value)

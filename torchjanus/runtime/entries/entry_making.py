"""Makes the entry of one path: generalises its traces, lowers the program, and guards it (JANUS 4.2).

In: a group of traces of one path. Out: an ``Entry``. Raises Refused, Split or Pending where there is no graph, or none
yet.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torchjanus.core.default_device import without_function_modes
from torchjanus.core.errors import NOWHERE, Place, Refused, refused
from torchjanus.graph.aten.symbolic_sizes import Fixed
from torchjanus.graph.generalize.generalize import EntryPlan, generalise
from torchjanus.graph.generalize.selections import SELECT, SELECTIONS, as_read, with_selections
from torchjanus.graph.ir.dimensions import Split, holds_for, in_inputs, is_size, key_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.number_sizes import carries
from torchjanus.graph.ir.program import Program, Symbol
from torchjanus.graph.loops.roll.roll import is_nested
from torchjanus.graph.lowering.lower import made_in
from torchjanus.graph.operators.host_column import host_column
from torchjanus.graph.recursion.cells.invoke import NotBatched
from torchjanus.graph.recursion.grouping.grouping import CALL_GROUPS, GROUP_CALLS, with_call_groups
from torchjanus.graph.recursion.grouping.variants import VariantTable
from torchjanus.graph.regions.loop import FixedTripCount
from torchjanus.host.assumption import AmbientState, Arguments, Assumption, Condition, KeyPresence, evaluate
from torchjanus.host.tensor_assumptions import Distinct, Memory, are_disjoint, distinct
from torchjanus.runtime.entries.entry import Entry, entry_of
from torchjanus.runtime.runs.lowering_cache import Pending, RemoteLowering, lowered_or_cached
from torchjanus.runtime.runs.paths import Group
from torchjanus.runtime.runs.saved_graphs import SavedGraphs
from torchjanus.semantics.known.details import tensor_detail
from torchjanus.trace.blanks import is_blank
from torchjanus.trace.events import Trace
from torchjanus.trace.modes import is_attention_met
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.values import Apply, Expr, Read, leaves

__all__ = ["is_expected", "make_entry"]


def make_entry(group: Group, executor: str, variant_table: VariantTable, remote: RemoteLowering | None = None) -> Entry:
    """Generalise, lower, guard and compile one path.

    Raises Refused where there is no graph for the path, Split where there is none for all sizes of its tensors, Pending
    while another process makes the graph, and NotBatched where recursive calls have to be unrolled.
    """
    plan = _planned(group, variant_table)
    try:
        plan, lowered = _lowered(group, plan, variant_table, remote)
    except Pending:
        group.planned = group.planned or (_asked(group), plan)  # the caller tries again later
        raise
    except NotBatched:
        raise
    except (Refused, Split) as error:
        if plan.dimensions.made:
            group.host_selection_reason = str(
                error.at(_first_selection(plan.program)) if isinstance(error, Refused) else error
            )
        elif plan.dimensions.carriers():
            group.constant_sizes = True
        else:
            raise
        return make_entry(group, executor, variant_table, remote)
    group.planned = None
    _ask_few(group, plan, lowered)
    measured = plan.sizes | {s.token: expr for s, expr in zip(plan.measures, lowered.measures, strict=True)}
    ambient = group.traces[-1].ambient  # of the watched run, which may be long ago
    assumptions: list[Assumption] = [
        Arguments(NOWHERE, *group.shape),
        replace(AmbientState(NOWHERE, *ambient), attention=is_attention_met()),
        *(made for a in plan.assumptions if (made := _in_inputs(a, measured)) is not None),
        *(Condition(NOWHERE, expr, True) for expr in lowered.conditions),
    ]
    for slot, value in lowered.pinned.items():
        assumptions.append(Condition(NOWHERE, in_inputs(plan.slots[slot], measured), value))
    assumptions.extend(_memory(plan, lowered))
    group.conditions = lowered.conditions
    return entry_of(group, plan, lowered, tuple(assumptions), executor)


def is_expected(group: Group, variant_table: VariantTable, saved: SavedGraphs) -> bool:
    """Whether the graph of a path is one of a saved step's."""
    try:
        plan = _planned(group, variant_table)
    except (Refused, Split):
        return False
    found = saved.find(plan.program)
    group.planned = (_asked(group), plan if found is None else replace(plan, program=found))
    return found is not None


def _first_selection(program: Program) -> Place:
    """Return the place of the first selection that the graph would make."""
    sizes = [Symbol(k) for k, one in enumerate(program.dimensions) if one.made]
    return next((node.place for node in program.nodes if node.args and node.args[-1] in sizes), NOWHERE)


def _asked(group: Group) -> Any:
    flags = group.constant_sizes, group.dynamic_trip_counts, group.host_selection_reason
    return tuple(map(id, group.traces)), frozenset(group.relaxed), len(group.borrowed), flags


def _planned(group: Group, variant_table: VariantTable) -> EntryPlan:
    known, group.planned = group.planned, None
    if known is not None and known[0] == _asked(group):
        return known[1]
    plan, traces = _generalised(group, group.traces), group.traces
    if (
        not group.host_selection_reason
        and not group.folded
        and (rewritten := with_selections(traces, plan.schedule)) is not None
    ):
        SELECTIONS.begin(traces)
        SELECT.gave(rewritten)
        plan, traces = _generalised(group, rewritten), rewritten
    CALL_GROUPS.begin(plan)
    return GROUP_CALLS.gave(with_call_groups(plan, traces[-1], variant_table))


def _generalised(group: Group, traces: Sequence[Trace]) -> EntryPlan:
    numbers, counted = not group.constant_sizes, group.dynamic_trip_counts
    return generalise(
        traces, frozenset(group.relaxed), tensor_detail, [*group.borrowed, *group.geometries], numbers, counted
    )


def _lowered(
    group: Group, plan: EntryPlan, variant_table: VariantTable, remote: RemoteLowering | None
) -> tuple[EntryPlan, Lowered]:
    """Return the plan and its graph. Trip counts become sizes where the values of all iterations are used together, or
    computed together."""
    made = plan.program
    if not group.dynamic_trip_counts and (is_nested(made) or any(node.func is host_column for node in made.nodes)):
        plan = _counted(group, variant_table)
    try:
        lowered = _lower(plan, remote)
        _check_made(group, plan, lowered)
        return plan, lowered
    except (FixedTripCount, Split) as held:
        if group.dynamic_trip_counts or not isinstance(
            held.__cause__ if isinstance(held, Split) else held, FixedTripCount
        ):
            raise
        try:
            plan = _counted(group, variant_table)
            return plan, lowered_or_cached(plan.program, remote)
        except (Refused, Fixed):
            group.dynamic_trip_counts, group.planned = False, None
            raise held from None


def _check_made(group: Group, plan: EntryPlan, lowered: Lowered) -> None:
    """Check a graph that selects elements. Raises Refused where the host needs the number of selected elements, or the
    graph is not right for some runs."""
    if not plan.dimensions.made:
        return
    for trace in group.traces:
        if not all(holds_for(as_read(condition, trace), trace) for condition in lowered.sized):
            what = "the step does something else for some numbers of elements that are selected"
            raise refused("selection-on-host", what, "The host makes the selection.")
    known = {size.token: expr for size, expr in zip(plan.measures, lowered.measures, strict=True)}
    recipes = (plan.result, *(recipe for effect in plan.effects for recipe in effect.recipes))
    asked: list[Any] = [*plan.slots, *plan.computed, *(e for recipe in recipes for e in expressions_in(recipe))]
    asked += [a.expr for a in plan.assumptions if isinstance(a, Condition)]
    asked += [a.key for a in plan.assumptions if isinstance(a, KeyPresence)]
    rewritten = (in_inputs(expr, known) for expr in asked)
    if any(made_in(lowered.program, expr) and not _is_one(expr) for expr in rewritten):
        what = "Python needs to know how many elements are selected"
        raise refused("selection-on-host", what, "The host makes the selection.")


def _counted(group: Group, variant_table: VariantTable) -> EntryPlan:
    """Return the plan with trip counts as sizes. It is kept, since another process may make its graph."""
    group.dynamic_trip_counts = True
    plan = _planned(group, variant_table)
    group.planned = (_asked(group), plan)
    return plan


def _lower(plan: EntryPlan, remote: RemoteLowering | None) -> Lowered:
    """Lower the program. Raises Refused, or Split if the cause are sizes that vary, or Pending."""
    try:
        with without_function_modes():
            return lowered_or_cached(plan.program, remote)
    except Fixed as fixed:
        members = plan.dimensions.symbols
        held = {(o.token, d): why for k, why in fixed.dimensions.items() if k < len(members) for o, d in members[k]}
        if not held:
            what = f"the number of a loop's iterations cannot change: {'; '.join(fixed.dimensions.values())}"
            raise refused("loop-count-fixed", what, "Each trip count has an entry of its own.") from fixed
        raise Split(held) from fixed
    except NotBatched:
        raise
    except Refused as error:
        if not plan.dimensions.symbols:
            raise
        parts = [part for members in plan.dimensions.symbols for part in members]
        sizes = ", ".join(str(dimension.expr) for dimension in plan.program.dimensions)
        why = f"{sizes} cannot change: {str(error.refusal).rstrip('.')}"
        raise Split({(o.token, dim): why for o, dim in parts}) from error


def _ask_few(group: Group, plan: EntryPlan, lowered: Lowered) -> None:
    """Check runs of the path with sizes 0 or 1. Raises Split where the graph is not right for them."""
    parts = list(plan.dimensions.seen_few_times())
    if not parts or all(holds_for(condition, trace) for condition in lowered.conditions for trace in group.traces):
        return
    if len({key_of(trace, parts) for trace in group.traces}) > 1:
        names = dict.fromkeys(str(plan.dimensions.read(k)) for k in range(len(plan.dimensions.symbols)))
        why = f"{', '.join(names)} was 0 or 1, and the step does something else then"
        raise Split(dict.fromkeys(parts, why))


def _in_inputs(assumption: Assumption, measured: dict[Any, Any]) -> Assumption | None:
    """Return the assumption in terms of what the host can read; None where it is known to hold."""
    if isinstance(assumption, Condition):
        expr = in_inputs(assumption.expr, measured)
        if _is_one(expr):
            expr = True
        if isinstance(expr, Expr) and any(True for _ in leaves(expr)):
            return replace(assumption, expr=expr)
        if evaluate(expr, (), {}) == assumption.outcome:
            return None
    elif isinstance(assumption, KeyPresence):
        return replace(assumption, key=in_inputs(assumption.key, measured))
    return assumption


def _is_one(expr: Any) -> bool:
    """Whether the expression compares a size with itself. (A NaN would differ from itself.)"""
    same = isinstance(expr, Apply) and expr.func is operator.eq and all(isinstance(arg, Expr) for arg in expr.args)
    sizes = all(isinstance(leaf, Read) and is_size(leaf.access_path) for leaf in leaves(expr)) if same else False
    return sizes and len({arg.token for arg in expr.args}) == 1


def _memory(plan: EntryPlan, lowered: Lowered) -> Sequence[Distinct]:
    """Return the assumptions that tensors which are new at each call do not share memory with inputs that change in
    place. Raises Refused if they share it in the watched run."""
    if not lowered.mutated and not lowered.replaced and not lowered.restored:
        return ()
    fresh = [i for i, tensor in enumerate(plan.pinned) if tensor is None and not carries(plan.access_paths[i])]
    if not fresh:
        return ()
    changed = {*lowered.mutated, *lowered.restored}
    remote = {one.index for one in lowered.replaced}
    held = tuple(t for i, t in enumerate(plan.pinned) if t is not None and i in changed - remote)
    moving = tuple(t for i, t in enumerate(plan.pinned) if t is not None and i in remote)
    # A pair matters only if one of its tensors changes: if no new tensor changes, new tensors may share memory.
    examples = [plan.program.inputs[i].example for i in fresh]
    examples = [tensor for tensor in examples if not is_blank(tensor)]  # its memory was shared with no other tensor
    together = any(i in changed | remote for i in fresh)
    memory = Memory(held)
    shares = not are_disjoint(examples, moving) or any(memory.holds(t.data_ptr()) for t in examples)
    if shares or (together and not distinct(examples)):
        raise refused(
            "input-shares-memory",
            "a tensor passed in shares memory with one that the step changes in place",
            "the graph would have to know which comes first.",
            "Clone it before the step.",
        )
    one = Distinct(NOWHERE, tuple(plan.access_paths[i] for i in fresh), held, together, moving)
    return (one, *_memory_of_others(plan, [i for i in fresh if i in changed], changed | remote))


def _memory_of_others(plan: EntryPlan, written: Sequence[int], held: Collection[int]) -> Iterator[Distinct]:
    """Yield the assumption that new tensors which change do not share memory with pinned inputs that do not change.
    Pinned inputs in the same storage as such a tensor are known not to overlap."""
    others = [t for i, t in enumerate(plan.pinned) if t is not None and i not in held]
    examples = [plan.program.inputs[i].example for i in written]
    others = [t for t in others if not any(Memory((t,)).holds(one.data_ptr()) for one in examples)]
    if written and others:
        yield Distinct(
            NOWHERE, tuple(plan.access_paths[i] for i in written), tuple(others), False, of="the graph reads"
        )

"""Puts the recursive calls of a step's program into call groups.

Calls between which nothing happens that they depend on become one node. Independent of how calls are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.errors import Refused, refused
from torchjanus.graph.generalize.generalize import EntryPlan
from torchjanus.graph.ir.passes import Part, Pass, PassList, Stage
from torchjanus.graph.ir.program import Assertion, Node, Ref
from torchjanus.graph.loops.rewrites.gradient_flow import asks_for_gradients, differentiated, looked_at_later, writes
from torchjanus.graph.recursion.cells.invoke import EntryCalls, Invocation, NotBatched
from torchjanus.graph.recursion.entry_loops.output_lists import is_rows_of
from torchjanus.graph.recursion.grouping.call_group import CallGroup, Calls
from torchjanus.graph.recursion.grouping.variants import VariantTable
from torchjanus.graph.recursion.variants.gradients import Used
from torchjanus.graph.recursion.variants.nodes import with_equal_arguments
from torchjanus.graph.recursion.variants.reads import (
    class_of,
    given_tensors,
    is_read,
    names_read,
    result_key,
    written_by,
)
from torchjanus.graph.recursion.variants.variant import Variant, tables_in
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, InvokeEachOp, InvokeOp, Op
from torchjanus.trace.context_facts import context_facts
from torchjanus.trace.events import Trace
from torchjanus.trace.recipes import RowOf, parts_of

__all__ = ["CALL_GROUPS", "GROUP_CALLS", "with_call_groups"]

LEAST_ROWS = 64  # least number of rows of a table as calls see it

Group = Sequence[tuple[int, InvokeOp]]  # calls made together, each with the position of its node


def with_call_groups(plan: EntryPlan, trace: Trace, variant_table: VariantTable) -> EntryPlan:
    """Return the plan with its recursive calls in call groups. Raises Refused."""
    if not any(isinstance(event, InvokeOp) for event in trace.events):
        return plan
    grouping_run = _Grouping(plan, trace, variant_table)
    for group in grouping_run.groups:
        try:
            grouping_run.plant(group)
        except Refused as refused:
            raise NotBatched(refused.refusal) from refused
    return grouping_run.planted()


GROUP_CALLS = Pass(
    "group_calls",
    Stage.REWRITE,
    with_call_groups,
    "Puts recursive calls that do not depend on each other into one call group, run level by level.",
    contextual=True,
)
CALL_GROUPS = PassList(Part.CALL_GROUPS, (GROUP_CALLS,))


class _Grouping:
    """A step's program while its ``groups`` are replaced one by one."""

    def __init__(self, plan: EntryPlan, trace: Trace, variant_table: VariantTable) -> None:
        self.plan = plan
        self.trace = trace
        self.variant_table = variant_table
        self.nodes = with_equal_arguments(plan.program.nodes)
        self.assertions = list(plan.program.assertions)
        self.call_groups: list[CallGroup] = []
        calls = [event for event in trace.events if isinstance(event, InvokeOp)]
        self.groups = list(_groups(self.nodes, len(plan.program.inputs), calls))
        self._order = {id(event): number for number, event in enumerate(calls)}
        self._at = {id(event): number for number, event in enumerate(trace.events)}
        self._free = max(len(plan.program.inputs), *(1 + ref.index for node in self.nodes for ref in node.outs))
        # List of the step -> position of the node that gives its rows.
        self._rows = {_list_of(plan, node): position for position, node in enumerate(self.nodes) if is_rows_of(node)}
        self._world = context_facts(trace.events)
        self._gradients = differentiated(self.nodes)

    def plant(self, group: Group) -> None:
        """Replace these calls by one node at the position of the first. Raises Refused."""
        events = [event for _, event in group]
        lists = self._lists_of(group)
        calls, held = self._calls(group, lists)
        if calls.shown:
            _refuse_always_shown(events, self.variant_table)
        call_group, node = self._call_group(group, lists, calls, held)
        self._refuse_read_back(call_group, group)
        self._refuse_changed_tables(call_group, group)
        if call_group.assembled.recursion.kept and not node.outs:
            raise _refused(group, "return nothing", "")
        if call_group.writes and any(other.writes for other in self.call_groups):
            raise _refused(group, "other calls write, too", "In which order is not known.")
        self.call_groups.append(call_group)
        for writing in self.call_groups:
            for other in self.call_groups:
                _refuse_read_later(writing, other)
        first, *others = (position for position, _ in group)
        for _ in range(call_group.assembled.recursion.asked):
            node = replace(node, outs=(*node.outs, Ref(self._free)))
            self.assertions.append(Assertion(Ref(self._free), True, first + 1, call_group.asked))
            self._free += 1
        self.nodes[first] = node
        for position in (*others, *(self._rows[number] for number in lists)):
            self.nodes[position] = replace(self.nodes[position], func=_nothing, args=(), kwargs={}, outs=())

    def planted(self) -> EntryPlan:
        """Return the plan with all groups replaced."""
        program, nodes = self.plan.program, tuple(self.nodes)
        # Values that are only written to objects have to be computed too.
        roots = (node for node in nodes if isinstance(node.func, EntryCalls))
        kept = tuple(node.outs[0] for node in roots if node.func.invocation.recursion.kept)
        program = replace(
            program,
            nodes=nodes,
            assertions=tuple(sorted(self.assertions, key=lambda assertion: assertion.after)),
            outputs=(*program.outputs, *kept),
            output_after=(*program.output_after, *(len(nodes) for _ in kept)),
        )
        return replace(self.plan, program=program, call_groups=tuple(self.call_groups))

    def _lists_of(self, group: Group) -> tuple[int, ...]:
        """Return the lists to which these calls append. Raises Refused if another group appends to one of them."""
        for number in dict.fromkeys(number for _, event in group for number, _ in event.grown):
            some = [other for other in self.groups if any(n == number for _, event in other for n, _ in event.grown)]
            if len(some) > 1:
                raise _refused(group, "others append to the same list", "They are not made together.")
        return tuple(dict.fromkeys(n for _, event in group for n, _ in event.grown if n in self._rows))

    def _calls(self, group: Group, lists: tuple[int, ...]) -> tuple[Calls, dict[Any, int]]:
        """Return the description of the calls, and the step's value for each tensor that they find in their context."""
        trace, events = self.trace, tuple(event for _, event in group)
        first, callee, given = events[0], events[0].callee, self.nodes[group[0][0]].kwargs.get("own", ())
        variants = self.variant_table.reached([callee], self._world)
        own = dict(zip((access_path.token for access_path in first.own), given, strict=True))
        held, examples = _held(self.plan, variants, own)
        known = zip(own, (trace.kinds.get(ref.number) for ref in first.kwargs.get("own", ())), strict=True)
        lengths = {token: kind[0][0] for token, kind in known if kind is not None and kind[0]}
        tables = tuple(token for token in lengths if token in examples and token in tables_in(variants))
        for token in tables:
            examples[token] = _longer(examples[token], lengths[token])
        tokens: dict[int, set[Any]] = {}
        for token, index in held.items():
            tokens.setdefault(index, set()).add(token)
        of_use = {
            ("argument", variant.callee, access_path.token)
            for variant in variants
            for access_path in variant.plan.access_paths
        }
        recipes = [self.plan.result, *(recipe for effect in self.plan.effects for recipe in effect.recipes)]
        calls = Calls(
            callee,
            events,
            examples,
            passed=tuple(key for token in given_tensors(first) if (key := ("argument", callee, token)) in of_use),
            results=tuple(result_key(first, which) for which in range(len(first.outs))),
            lists=lists,
            leaving=bool(lists) and any(isinstance(part, RowOf) for recipe in recipes for part in parts_of(recipe)),
            places=tuple(self._order[id(event)] for event in events),
            shown=self._are_shown(group),
            world=self._world,
            used=tuple(self._used(self.nodes[position], event) for position, event in group),
            written=tuple(written_by(trace, trace.events[: self._at[id(events[-1])]])),
            counted={number: start for event in events for number, start in event.counted},
            alike={token: frozenset(tokens[index]) for token, index in held.items()},
            tables=tables,
        )
        return calls, held

    def _are_shown(self, group: Group) -> bool:
        """Compute ``Calls.shown``."""
        memory = self.trace.memory
        leaving = {memory[number] for number in self.trace.leaving()} if memory else set()
        left = not leaving.isdisjoint(memory[ref.number] for _, event in group for ref in event.outs)
        return left or looked_at_later(self.nodes, [position for position, _ in group])

    def _used(self, node: Node, event: InvokeOp) -> Used:
        """Return the results and appended values of a call to which gradients may flow."""
        gradients, nodes = self._gradients, self.nodes
        returned = (which for which, ref in enumerate(node.outs) if ref.index in gradients)
        lists = ((place, self._rows[number]) for place, (number, _) in enumerate(event.grown) if number in self._rows)
        appended = (("list", place) for place, at in lists if any(ref.index in gradients for ref in nodes[at].outs))
        return frozenset((*returned, *appended))

    def _call_group(
        self, group: Group, lists: tuple[int, ...], calls: Calls, held: Mapping[Any, int]
    ) -> tuple[CallGroup, Node]:
        """Return the calls as a call group and as a node of the program."""
        nodes, callee = self.nodes, calls.callee
        assembled = calls.assemble(self.variant_table)
        walker = calls.walker(assembled, self.variant_table, {})
        reached = calls.reached(self.variant_table)
        flowing = tuple(access_path.token in reached for access_path in assembled.shared)
        offered = [access_path.token for access_path in assembled.shared]
        longer = tuple(offered.index(token) if token in offered else -1 for token in calls.tables)
        invocation = Invocation(assembled.recursion, self.variant_table.traced)
        roots = EntryCalls(invocation, len(group), flowing, calls.shown, longer)
        seeds: dict[int, list[Ref]] = {number: [] for number in assembled.recursion.seeds}
        for position, event in group:
            for token, ref in zip(given_tensors(event), nodes[position].args, strict=True):
                if ("argument", callee, token) in calls.passed:
                    seeds[assembled.buffers["argument", callee, token]].append(ref)
        rows = [self._rows[number] for number in lists]
        whole = [nodes[position].args[0] for position in rows]
        args = ([Ref(held[access_path.token]) for access_path in assembled.shared], list(seeds.values()), whole)
        outs = tuple(ref for position in (*(p for p, _ in group), *rows) for ref in nodes[position].outs)
        first = nodes[group[0][0]]
        return CallGroup(calls, assembled, roots, walker), Node(roots, args, {}, outs, first.modes, first.place)

    def _refuse_read_back(self, call_group: CallGroup, group: Group) -> None:
        """Raise Refused if the step uses what the calls write, or itself writes between them."""
        if not call_group.writes:
            return
        trace = self.trace
        stored = (event.key for event in trace.events if isinstance(event, HeapWrite))
        names = names_read(trace) | {(None, key) for key in stored if type(key) is str}
        for write in call_group.assembled.writes:
            cls, name = write.name
            if cls is None and isinstance(write.event, HeapWrite):  # an object of the step
                cls = class_of(trace, write.event.base)
            if is_read((cls, name), names):
                raise _refused(group, f"the step uses what they write ({write.event})", "Writes are made at the end.")
        begun, ended = self._at[id(group[0][1])], self._at[id(group[-1][1])]
        if any(isinstance(event, HeapWrite | ContainerMutation | Extern) for event in trace.events[begun:ended]):
            raise _refused(group, "the step does other things between them", "All calls are made at once.")

    def _refuse_changed_tables(self, call_group: CallGroup, group: Group) -> None:
        """Raise Refused if the step changes a tensor before the calls of which the host picks rows."""
        tables = {pick.table.token for variant in call_group.assembled.variants for pick in variant.picks.values()}
        if not tables:
            return
        memory = self.trace.memory
        picked = {
            memory[number] for number, access_path in self.trace.access_paths.items() if access_path.token in tables
        }
        for event in self.trace.events[: self._at[id(group[0][1])]]:
            if isinstance(event, Op) and writes(event):
                changed = {memory[ref.number] for ref in event.inputs}
                if changed & picked:
                    what = "the step changes a tensor in place of which recursive calls pick rows by their own numbers"
                    raise refused(
                        "recursion-table-changed",
                        what,
                        "The host picks them before the step.",
                        "Pass on a copy.",
                        event.place,
                    )


def _refuse_always_shown(events: Sequence[InvokeOp], variant_table: VariantTable) -> None:
    """Raise Refused if the step lets out a call's result that is always a parameter or a view of one."""
    for event in events:
        if not isinstance(event, InvokeEachOp) and variant_table.shows_always(event):
            what = f"{event.name} returns a tensor from before the step, or a view of it, and the step lets it out"
            raise refused(
                "recursion-result-outside",
                what,
                "What calls return lies in rows of one tensor.",
                "Return a copy.",
                event.place,
            )


def _refuse_read_later(writing: CallGroup, other: CallGroup) -> None:
    """Raise Refused if calls of one group read what calls of another write."""
    names = (
        {name for variant in other.assembled.variants for name in variant.names_read} if writing is not other else set()
    )
    for write in writing.assembled.writes:
        if is_read(write.name, names):
            what = f"calls of {writing.calls.events[0].name} write what other calls read"
            raise refused(
                "recursion-reads-writes", what, "Writes are made at the end.", "Return it.", write.event.place
            )


def _refused(group: Group, what: str, why: str) -> Refused:
    event = group[0][1]
    return refused(
        "recursion-writes", f"calls of {event.name} write to objects, and {what}", why, "Return it.", event.place
    )


def _list_of(plan: EntryPlan, node: Node) -> int:
    """Return the number of the list of which the node gives the rows."""
    (which,) = node.args
    number: int = plan.access_paths[which.index].key
    return number


def _nothing() -> None:
    """Take the place of a call that another node makes."""


def _groups(nodes: Sequence[Node], inputs: int, events: Sequence[InvokeOp]) -> Iterator[Group]:
    """Yield the groups: calls that can be made where the first of them is made."""
    waiting = iter(events)
    there = set(range(inputs))
    opened: dict[Any, tuple[set[int], list[tuple[int, InvokeOp]]]] = {}
    for position, node in enumerate(nodes):
        if getattr(node.func, "__name__", "") == "invoke":
            event = next(waiting)
            kind = (event.callee, event.made, given_tensors(event), tuple(node.kwargs.get("own", ())))
            group = opened.get(kind)
            if group is not None and any(ref.index not in group[0] for ref in node.inputs):
                yield opened.pop(kind)[1]
                group = None
            if group is None:
                group = opened[kind] = (set(there), [])
            group[1].append((position, event))
        elif _stands_between(node, there):
            yield from (group for _, group in opened.values())
            opened.clear()
        there.update(ref.index for ref in node.outs)
    yield from (group for _, group in opened.values())


def _stands_between(node: Node, there: set[int]) -> bool:
    """Whether calls before the node and calls after it cannot be made together."""
    return writes(node) or asks_for_gradients(node) or any(ref.index in there for ref in node.outs)


def _held(
    plan: EntryPlan, variants: Sequence[Variant], own: Mapping[Any, Ref]
) -> tuple[dict[Any, int], dict[Any, torch.Tensor]]:
    """Return, by token, the step's value (an index) for each tensor that calls find in their context, and its example.
    ``own``: the values that the step has computed."""
    by_path = {access_path.token: index for index, access_path in enumerate(plan.access_paths)}
    inputs = plan.program.inputs
    by_tensor = {id(entry.example): index for index, entry in enumerate(inputs)}
    held: dict[Any, int] = {}
    examples: dict[Any, torch.Tensor] = {}
    for variant in variants:
        for part in variant.parts:
            for ref, access_path in part.shared:
                entry = variant.plan.program.inputs[ref.index]
                if access_path.token in own:
                    index: int | None = own[access_path.token].index
                else:  # the step may reach it by another path
                    index = by_path.get(access_path.token, by_tensor.get(id(entry.example)))
                    entry = entry if index is None else inputs[index]
                if index is not None:
                    held[access_path.token] = index
                    examples[access_path.token] = _like(entry.example, entry.requires_grad)
    return held, examples


def _longer(example: torch.Tensor, rows: int) -> torch.Tensor:
    """Return an example of a table with at least ``rows`` rows, rounded up to serve many lengths."""
    size = (max(LEAST_ROWS, 1 << (rows - 1).bit_length()), *example.shape[1:])
    return torch.empty(size, dtype=example.dtype, device=example.device).requires_grad_(example.requires_grad)


def _like(example: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return the example with this ``requires_grad``."""
    return example.detach().requires_grad_(requires_grad)

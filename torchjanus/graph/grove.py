"""The recursive calls that a step makes, put together so that the nodes of all its trees are run in one go.

Calls that depend on nothing done in between become one node of the program. Knows nothing of how trees are followed in
detail, nor of how cells are run.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.errors import NOWHERE, Place, Refusal, Refused
from torchjanus.graph.assembling import Assembled, Uneven, assemble
from torchjanus.graph.generalise import Generalised
from torchjanus.graph.gradient_flow import asks_for_gradients, differentiated, looked_at_later, writes
from torchjanus.graph.grown import is_rows_of
from torchjanus.graph.invocations import Invocation, Roots, Unrolled
from torchjanus.graph.program import Assertion, Node, Ref
from torchjanus.graph.recursion import Forest
from torchjanus.graph.repertoire import Repertoire
from torchjanus.graph.walk import Root, Walker, wherever
from torchjanus.graph.way_counts import read_place
from torchjanus.graph.way_gradients import Used
from torchjanus.graph.way_nodes import refs_of, taken_by, with_equal_arguments
from torchjanus.graph.way_reads import (
    Written,
    class_of,
    given_tensors,
    is_read,
    names_read,
    numbers_made,
    result_key,
    written_by,
)
from torchjanus.graph.ways import Way, tables_in
from torchjanus.origin import Origin
from torchjanus.trace.actions import Extern, Invoked, InvokedEach, Mutation, Op, Stored
from torchjanus.trace.around import around
from torchjanus.trace.events import Trace
from torchjanus.trace.recipes import Recipe, RowOf, TensorOf, parts_of

__all__ = ["Grove", "with_groves"]

LEAST_ROWS = 64  # that tables have to calls


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that a grove stands for. ``shared``: examples of the tensors that the step offers, by where calls find
    them; ``passed``: the keys of the tensors that it passes; ``results``: of those it takes; ``lists``: the numbers of
    the step's lists to which they append; ``leaving``: whether elements of those leave the step; ``places``: the
    how-manieth of the step each call is; ``shown``: whether what they return, or a view of it, leaves the step, or
    is used after something has been changed in place; ``world``: what is known of what calls rely on around themselves;
    ``used``: of each call to what of what it returns and appends gradients may flow;
    ``written``: what the step changes before the last of them; ``counted``: the lists that stand for numbers that calls
    count, with recipes of what those are before the first of them; ``alike``: of each place in ``shared`` all at which
    the same tensor is found; ``tables``: where those are of which calls only pick rows, and see more than there are."""

    callee: Any
    events: tuple[Invoked, ...]
    shared: dict[Any, torch.Tensor]
    passed: tuple[Any, ...]
    results: tuple[Any, ...]
    lists: tuple[int, ...] = ()
    leaving: bool = False
    places: tuple[int, ...] = ()
    shown: bool = False
    world: dict[Any, Any] = field(default_factory=dict)
    used: tuple[Used, ...] = ()
    written: tuple[Written, ...] = ()
    counted: dict[int, Any] = field(default_factory=dict)
    alike: dict[Any, frozenset[Any]] = field(default_factory=dict)
    tables: tuple[Any, ...] = ()

    def assemble(self, repertoire: Repertoire) -> Assembled:
        """The recursion that is known by now. Raises Refused."""
        while True:
            try:
                lists = [self._known_as(number) for number in self.lists]
                ways = repertoire.reached([self.callee], self.world)
                if not tables_in(ways).issuperset(self.tables):
                    what = f"{self.events[0].name} does something else with a tensor of which it has only picked rows"
                    raise Refused(Refusal(self.events[0].place, what, "", ""))
                deciding = next((way for way in ways if way.sides), None)
                if deciding is not None and self._exact(repertoire):
                    name = deciding.name
                    what = f"a tensor decides which way {name} goes, and some of its results are detached or not used"
                    why = "Which parameters have a gradient is not known beforehand."
                    raise Refused(Refusal(deciding.place, what, why, "Choose with torch.where()."))
                appends = set().union(*(way.trace.appends for way in ways))
                if self.leaving and len(appends) > len({place for place, _ in appends}):
                    what = "a list leaves the step in which some elements have gradients and others have none"
                    raise Refused(Refusal(self.events[0].place, what, "Rows of one tensor are alike.", ""))
                several = any(isinstance(event, InvokedEach) for event in self.events)
                return assemble(ways, self.shared, self.passed, self.results, lists, several, self.reached(repertoire))
            except Uneven as uneven:
                repertoire.leave(uneven)

    def _known_as(self, number: int) -> int:
        """By which number calls know a list of the step. Raises Refused."""
        known = {place for event in self.events for place, (one, _) in enumerate(event.grown) if one == number}
        if len(known) > 1:
            what = "the lists to which recursive calls append change places"
            raise Refused(Refusal(self.events[0].place, what, "", "Pass them in one order."))
        return known.pop()

    def walker(self, assembled: Assembled, repertoire: Repertoire, needs: dict[Any, Any]) -> Walker:
        """Who follows the calls."""
        counts = dict.fromkeys(assembled.recursion.seeds, 0)
        roots: list[Root] = []
        # A row is a copy: what eager returns would change with the parameter that it is a view of.
        never = repertoire.showing() if self.shown or self.leaving else frozenset()
        guarded = {event.callee for event in self.events if isinstance(event, InvokedEach)} if self.leaving else set()
        for event in self.events:
            seeds = []
            for token in given_tensors(event):
                if ("argument", self.callee, token) in self.passed:
                    number = assembled.buffers["argument", self.callee, token]
                    seeds.append((token, number, counts[number]))
                    counts[number] += 1
            lists = tuple(map(self._place, (n for n, _ in event.grown)))
            names = [name for name, _ in event.given]
            each = tuple(map(names.index, event.over)) if isinstance(event, InvokedEach) else ()
            own = never if self.shown else frozenset()
            even = isinstance(event, InvokedEach) and event.even
            used = self.used[len(roots)]
            roots.append(Root(self.callee, event.made, tuple(seeds), lists, each, len(names), own, even, used))
        handed = dict.fromkeys(guarded, never)
        told = (
            needs, handed, self._exact(repertoire), self.written, self.alike, len(self.counted), self.tables
        )  # fmt: skip
        return Walker(assembled, roots, list(counts.values()), self.reached(repertoire), *told)

    def _place(self, number: int) -> int | None:
        """Which of the step's lists, or numbers that are counted, it is (see ``Root``)."""
        if number in self.counted:
            return ~list(self.counted).index(number)
        return self.lists.index(number) if number in self.lists else None

    def _exact(self, repertoire: Repertoire) -> bool:
        """Whether calls on the same way may have gradients or none."""
        return repertoire.tells_apart(self.callee, self.world, self.used)

    def reached(self, repertoire: Repertoire) -> frozenset[Any]:
        """Where these calls find the shared tensors that they use."""
        known = (way.flowing for way in repertoire.reached([self.callee], self.world))
        events = [(event, used) for event, used in zip(self.events, self.used, strict=True) if used]
        found = repertoire.flowing(events, self._exact(repertoire)) & frozenset().union(*known)
        return wherever(found, self.alike)


@dataclass(eq=False)
class Grove:
    """Some recursive calls of one function: what the step calls as ``roots``, and how they are followed."""

    calls: Calls
    assembled: Assembled
    roots: Roots
    walker: Walker

    @property
    def invocation(self) -> Invocation:
        """The calls as a node of a graph knows them."""
        return self.roots.invocation

    @property
    def writes(self) -> bool:
        """Whether calls write to objects."""
        return bool(self.assembled.writes)

    def written(self, forest: Forest) -> list[tuple[Stored | Mutation, Any, Any]]:
        """What the calls of a forest that has been run write, in eager's order: each write, its object, its value."""
        made: dict[tuple[int, int], torch.Tensor] = {}
        now: dict[tuple[int, Any], Any] = {}
        found = []
        buffers = dict(zip(map(id, self.assembled.writes), self._buffers(), strict=True))
        for number, target, value in forest.writes:
            write = self.assembled.writes[number]
            if (buffer := buffers[id(write)]) is not None:
                if (buffer, value) not in made:
                    made[buffer, value] = forest.kept[buffer][value].clone()
                value = made[buffer, value]
            if isinstance(write.event, Stored):
                place = (id(target), write.event.key)
                if write.counts:
                    value = value(now[place] if place in now else read_place(write.event, target))
                now[place] = value
            found.append((write.event, target, value))
        return found

    def _buffers(self) -> Iterator[int | None]:
        for way in self.assembled.ways:
            for number, write in enumerate(way.writes):
                if write.list is None:
                    yield self.assembled.stored.get((way.number, number))

    @property
    def asked(self) -> Place:
        """Where a tensor decides what a call does."""
        return next((place for way in self.assembled.ways for place in way.asked), NOWHERE)

    def __str__(self) -> str:
        calls, cells = self.calls.events, len(self.assembled.recursion.cells)
        ways = sum(way.callee == self.calls.callee for way in self.assembled.ways)
        return f"{calls[0].name}, called {len(calls)} times by the step: {ways} ways, in {cells} cells"

    @property
    def reads(self) -> list[Origin]:
        """What ``follow`` is given of the step, in this order."""
        return self.walker.reads

    @property
    def lists(self) -> Iterator[tuple[Origin, int]]:
        """Where the step finds the rows of its lists, and which of a forest's results they are."""
        first = self.assembled.recursion.by_root
        return ((Origin.grown(number), first + n) for n, number in enumerate(self.calls.lists))

    @property
    def numbers(self) -> Iterator[tuple[Origin, int, int]]:
        """Where the step finds the numbers that calls return: of which call, and which of its numbers, each is."""
        for call, (event, place) in enumerate(zip(self.calls.events, self.calls.places, strict=True)):
            for which, path in enumerate(numbers_made(event.made)):
                origin = Origin.grown(("call", place))
                for key in path:
                    origin = origin.item(key)
                yield origin, call, which

    @property
    def counts(self) -> Iterator[tuple[Origin, int]]:
        """Where the step finds the numbers that calls count, and which of a forest's counts they are."""
        return ((Origin.grown(number), n) for n, number in enumerate(self.calls.counted))

    @property
    def given(self) -> tuple[tuple[tuple[str, Recipe], ...], ...]:
        """What each call is given."""
        return tuple(event.given for event in self.calls.events)

    @property
    def starts(self) -> tuple[Recipe, ...]:
        """What the numbers that calls count are before the first of them."""
        return tuple(self.calls.counted.values())

    def follow(
        self, step: Sequence[Any], given: Sequence[tuple[Any, ...]], starts: Sequence[Any] = ()
    ) -> Forest | None:
        """See Walker.walk."""
        return self.walker.walk(step, given, starts)

    def renew(self, repertoire: Repertoire) -> bool:
        """Serve the ways that have been seen since. Returns whether that needs no other cells than there are."""
        try:
            assembled = self.calls.assemble(repertoire)
        except Refused:
            return False
        before = self.assembled
        places = (
            [(c.takes, c.gives, c.alone) for c in before.recursion.cells],
            before.recursion.seeds,
            before.recursion.results,
        )
        after = [(c.takes, c.gives, c.alone) for c in assembled.recursion.cells]
        if assembled.forms != before.forms or assembled.recursion.buffers != before.recursion.buffers:
            return False
        if (after, assembled.recursion.seeds, assembled.recursion.results) != places:
            return False
        asked = [(one.truths, one.somewhere, one.nowhere, one.kept) for one in (assembled.recursion, before.recursion)]
        if asked[0] != asked[1]:
            return False
        if {write.name for write in assembled.writes} != {write.name for write in before.writes}:
            return False
        walker = self.calls.walker(assembled, repertoire, dict(self.walker.needs))
        if len(walker.reads) != len(self.walker.reads):
            return False
        self.assembled, self.walker = assembled, walker
        return True


def with_groves(plan: Generalised, trace: Trace, repertoire: Repertoire) -> Generalised:
    """The plan with its recursive calls in groves. Raises Refused."""
    events = [event for event in trace.events if isinstance(event, Invoked)]
    if not events:
        return plan
    nodes = with_equal_arguments(plan.program.nodes)
    assertions = list(plan.program.assertions)
    free = max(len(plan.program.inputs), *(1 + ref.index for node in nodes for ref in node.outs))
    groves: list[Grove] = []
    rows = {_list_of(plan, node): position for position, node in enumerate(nodes) if is_rows_of(node)}
    recipes = (trace.result, *(recipe for some in trace.recipes.values() for recipe in some))
    parts = [part for recipe in recipes if recipe is not None for part in parts_of(recipe)]
    leaving = {trace.memory[part.ref.number] for part in parts if isinstance(part, TensorOf)} if trace.memory else set()
    world = around(trace.events)
    groups = list(_groups(nodes, len(plan.program.inputs), events))
    gradients = differentiated(nodes)
    for group in groups:
        try:
            lists = _lists_of(group, groups, rows)
            order = tuple(next(n for n, known in enumerate(events) if known is event) for _, event in group)
            given = {number: rows[number] for number in lists}
            shown = not leaving.isdisjoint(trace.memory[ref.number] for _, event in group for ref in event.outs)
            shown |= looked_at_later(nodes, [position for position, _ in group])
            used = tuple(_used(nodes[position], event, rows, nodes, gradients) for position, event in group)
            if shown:
                _refuse_always_shown([event for _, event in group], repertoire)
            before = trace.events[: next(n for n, event in enumerate(trace.events) if event is group[-1][1])]
            written = tuple(written_by(trace, before))
            grove, node = _grove(plan, trace, nodes, group, repertoire, given, order, shown, world, used, written)
            _refuse_read_back(grove, trace, group)
            _refuse_changed_tables(grove, trace, group)
            if grove.assembled.recursion.kept and not node.outs:
                raise _refused(group, "return nothing", "")
            if grove.writes and any(other.writes for other in groves):
                raise _refused(group, "other calls write, too", "In which order is not known.")
        except Refused as refused:
            raise Unrolled(refused.refusal) from refused
        groves.append(grove)
        for writing in groves:
            for other in groves:
                _refuse_read_later(writing, other)
        first, *others = (position for position, _ in group)
        for _ in range(grove.assembled.recursion.asked):
            node = replace(node, outs=(*node.outs, Ref(free)))
            assertions.append(Assertion(Ref(free), True, first + 1, grove.asked))
            free += 1
        nodes[first] = node
        for position in (*others, *(rows[number] for number in lists)):
            nodes[position] = replace(nodes[position], func=_nothing, args=(), kwargs={}, outs=())
    assertions.sort(key=lambda assertion: assertion.after)
    # What is only written to objects has to be computed, too.
    kept = tuple(node.outs[0] for node in nodes if isinstance(node.func, Roots) and node.func.invocation.recursion.kept)
    outputs = (*plan.program.outputs, *kept)
    after = (*plan.program.output_after, *(len(nodes) for _ in kept))
    program = replace(
        plan.program, nodes=tuple(nodes), assertions=tuple(assertions), outputs=outputs, output_after=after
    )
    return replace(plan, program=program, groves=tuple(groves))


def _used(
    node: Node, event: Invoked, rows: Mapping[int, int], nodes: Sequence[Node], gradients: Container[int]
) -> Used:
    """To what of what a call returns and appends gradients may flow. ``rows``: which node gives the rows of each
    list."""
    returned = (which for which, ref in enumerate(node.outs) if ref.index in gradients)
    lists = ((place, rows[number]) for place, (number, _) in enumerate(event.grown) if number in rows)
    appended = (("list", place) for place, at in lists if any(ref.index in gradients for ref in nodes[at].outs))
    return frozenset((*returned, *appended))


def _refuse_always_shown(events: Sequence[Invoked], repertoire: Repertoire) -> None:
    """Where the step lets out what calls return, that is not always a parameter, or a view of one."""
    for event in events:
        if not isinstance(event, InvokedEach) and repertoire.shows_always(event):
            what = f"{event.name} returns a tensor from before the step, or a view of it, and the step lets it out"
            raise Refused(Refusal(event.place, what, "What calls return lies in rows of one tensor.", "Return a copy."))


def _refuse_read_back(grove: Grove, trace: Trace, group: Sequence[tuple[int, Invoked]]) -> None:
    """The step does nothing with what calls write, and does not itself write in between."""
    if not grove.writes:
        return
    names = names_read(trace) | {(None, e.key) for e in trace.events if isinstance(e, Stored) and type(e.key) is str}
    for write in grove.assembled.writes:
        cls, name = write.name
        if cls is None and isinstance(write.event, Stored):  # an object of the step
            cls = class_of(trace, write.event.base)
        if is_read((cls, name), names):
            raise _refused(group, f"the step uses what they write ({write.event})", "Writes are made at the end.")
    begun = next(n for n, event in enumerate(trace.events) if event is group[0][1])
    ended = next(n for n, event in enumerate(trace.events) if event is group[-1][1])
    if any(isinstance(event, Stored | Mutation | Extern) for event in trace.events[begun:ended]):
        raise _refused(group, "the step does other things between them", "All calls are made at once.")


def _refuse_changed_tables(grove: Grove, trace: Trace, group: Sequence[tuple[int, Invoked]]) -> None:
    """What the host picks rows of is what it was before the step."""
    tables = {pick.table.token for way in grove.assembled.ways for pick in way.picks.values()}
    if not tables:
        return
    picked = {trace.memory[number] for number, origin in trace.origins.items() if origin.token in tables}
    begun = next(n for n, event in enumerate(trace.events) if event is group[0][1])
    for event in trace.events[:begun]:
        if isinstance(event, Op) and writes(event):
            changed = {trace.memory[ref.number] for ref in taken_by(event)}
            if changed & picked:
                what = "the step changes a tensor in place of which recursive calls pick rows by their own numbers"
                raise Refused(Refusal(event.place, what, "The host picks them before the step.", "Pass on a copy."))


def _refuse_read_later(writing: Grove, other: Grove) -> None:
    """What calls write is not what calls of another function read. Raises Unrolled."""
    names = {name for way in other.assembled.ways for name in way.names_read} if writing is not other else set()
    for write in writing.assembled.writes:
        if is_read(write.name, names):
            what = f"calls of {writing.calls.events[0].name} write what other calls read"
            raise Unrolled(Refusal(write.event.place, what, "Writes are made at the end.", "Return it."))


def _refused(group: Sequence[tuple[int, Invoked]], what: str, why: str) -> Refused:
    event = group[0][1]
    return Refused(Refusal(event.place, f"calls of {event.name} write to objects, and {what}", why, "Return it."))


def _list_of(plan: Generalised, node: Node) -> int:
    """The number of the list of which the node gives the rows."""
    (which,) = node.args
    number: int = plan.origins[which.index].key
    return number


def _lists_of(
    group: Sequence[tuple[int, Invoked]], groups: Sequence[Sequence[tuple[int, Invoked]]], rows: Mapping[int, int]
) -> tuple[int, ...]:
    """The lists to which these calls append. Raises Refused where others do, too."""
    for number in dict.fromkeys(number for _, event in group for number, _ in event.grown):
        some = [other for other in groups if any(n == number for _, event in other for n, _ in event.grown)]
        if len(some) > 1:
            raise _refused(group, "others append to the same list", "They are not made together.")
    return tuple(dict.fromkeys(n for _, event in group for n, _ in event.grown if n in rows))


def _nothing() -> None:
    """The call is made with another."""


def _groups(nodes: Sequence[Node], inputs: int, events: Sequence[Invoked]) -> Iterator[list[tuple[int, Invoked]]]:
    """The calls that can be made at one point of the program: that of the first of them."""
    waiting = iter(events)
    there = set(range(inputs))
    opened: dict[Any, tuple[set[int], list[tuple[int, Invoked]]]] = {}
    for position, node in enumerate(nodes):
        if getattr(node.func, "__name__", "") == "invoke":
            event = next(waiting)
            kind = (event.callee, event.made, given_tensors(event), tuple(node.kwargs.get("own", ())))
            group = opened.get(kind)
            if group is not None and any(ref.index not in group[0] for ref in refs_of(node)):
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


def _grove(
    plan: Generalised,
    trace: Trace,
    nodes: Sequence[Node],
    group: list[tuple[int, Invoked]],
    repertoire: Repertoire,
    lists: Mapping[int, int],
    order: tuple[int, ...],
    shown: bool,
    world: dict[Any, Any],
    used: tuple[Used, ...],
    written: tuple[Written, ...],
) -> tuple[Grove, Node]:
    """``lists``: which node gives the rows of each of the lists to which these calls append."""
    events = tuple(event for _, event in group)
    callee = events[0].callee
    ways = repertoire.reached([callee], world)
    own = dict(zip((origin.token for origin in events[0].own), nodes[group[0][0]].kwargs.get("own", ()), strict=True))
    held, examples = _held(plan, ways, own)
    known = zip(own, (trace.kinds.get(ref.number) for ref in events[0].kwargs.get("own", ())), strict=True)
    lengths = {token: kind[0][0] for token, kind in known if kind is not None and kind[0]}
    tables = tuple(token for token in lengths if token in examples and token in tables_in(ways))
    for token in tables:
        examples[token] = _longer(examples[token], lengths[token])
    tokens: dict[int, set[Any]] = {}
    for token, index in held.items():
        tokens.setdefault(index, set()).add(token)
    alike = {token: frozenset(tokens[index]) for token, index in held.items()}
    results = tuple(result_key(events[0], which) for which in range(len(events[0].outs)))
    of_use = {("argument", way.callee, origin.token) for way in ways for origin in way.plan.origins}
    passed = tuple(key for token in given_tensors(events[0]) if (key := ("argument", callee, token)) in of_use)
    recipes = [plan.result, *(recipe for effect in plan.effects for recipe in effect.recipes)]
    leaving = any(isinstance(part, RowOf) for recipe in recipes for part in parts_of(recipe))
    leaves = leaving and bool(lists)
    calls = Calls(
        callee,
        events,
        examples,
        passed,
        results,
        tuple(lists),
        leaves,
        order,
        shown,
        world,
        used,
        written,
        {number: start for event in events for number, start in event.counted},
        alike,
        tables,
    )
    assembled = calls.assemble(repertoire)
    walker = calls.walker(assembled, repertoire, {})
    reached = calls.reached(repertoire)
    flowing = tuple(origin.token in reached for origin in assembled.shared)
    offered = [origin.token for origin in assembled.shared]
    longer = tuple(offered.index(token) if token in offered else -1 for token in tables)
    roots = Roots(Invocation(assembled.recursion, repertoire.traced), len(events), flowing, shown, longer)
    grove = Grove(calls, assembled, roots, walker)
    seeds: dict[int, list[Ref]] = {number: [] for number in assembled.recursion.seeds}
    for position, event in group:
        for token, ref in zip(given_tensors(event), nodes[position].args, strict=True):
            if ("argument", callee, token) in passed:
                seeds[assembled.buffers["argument", callee, token]].append(ref)
    whole = [nodes[position].args[0] for position in lists.values()]
    args = ([Ref(held[origin.token]) for origin in assembled.shared], list(seeds.values()), whole)
    outs = tuple(ref for position in (*(p for p, _ in group), *lists.values()) for ref in nodes[position].outs)
    first = nodes[group[0][0]]
    return grove, Node(roots, args, {}, outs, first.modes, first.place)


def _held(
    plan: Generalised, ways: Sequence[Way], own: Mapping[Any, Ref]
) -> tuple[dict[Any, int], dict[Any, torch.Tensor]]:
    """Which value of the step each tensor is that calls find around themselves, by where they find it, and what it is
    like. ``own``: those that the step has made."""
    by_path = {origin.token: index for index, origin in enumerate(plan.origins)}
    inputs = plan.program.inputs
    by_tensor = {id(entry.example): index for index, entry in enumerate(inputs)}
    held: dict[Any, int] = {}
    examples: dict[Any, torch.Tensor] = {}
    for way in ways:
        for part in way.parts:
            for ref, origin in part.shared:
                entry = way.plan.program.inputs[ref.index]
                if origin.token in own:
                    index: int | None = own[origin.token].index
                else:  # the step may have met it on another path
                    index = by_path.get(origin.token, by_tensor.get(id(entry.example)))
                    entry = entry if index is None else inputs[index]
                if index is not None:
                    held[origin.token] = index
                    examples[origin.token] = _like(entry.example, entry.requires_grad)
    return held, examples


def _longer(example: torch.Tensor, rows: int) -> torch.Tensor:
    """The like of a table with room for so many rows, and more: one for many lengths."""
    size = (max(LEAST_ROWS, 1 << (rows - 1).bit_length()), *example.shape[1:])
    return torch.empty(size, dtype=example.dtype, device=example.device).requires_grad_(example.requires_grad)


def _like(example: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return example.detach().requires_grad_(requires_grad)

"""A call group: recursive calls of a step that are made together, so that the nodes of all its trees run in one
schedule.

Independent of the step's program, of how the traversal works, and of how cells run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import NOWHERE, Place, Refused, refused
from torchjanus.graph.recursion.cells.buffers import AssembledRecursion, UnequalTerms, assemble
from torchjanus.graph.recursion.cells.invoke import EntryCalls, Invocation
from torchjanus.graph.recursion.grouping.variants import VariantTable
from torchjanus.graph.recursion.traversal.traversal import EntryCall, HostTraversal, with_aliases
from torchjanus.graph.recursion.variants.counts import read_place
from torchjanus.graph.recursion.variants.gradients import Used
from torchjanus.graph.recursion.variants.plan import LevelSchedule
from torchjanus.graph.recursion.variants.reads import Written, given_tensors, numbers_made
from torchjanus.graph.recursion.variants.variant import tables_in
from torchjanus.trace.actions import ContainerMutation, HeapWrite, InvokeEachOp, InvokeOp
from torchjanus.trace.recipes import Recipe

__all__ = ["CallGroup", "Calls"]


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a call group.

    ``shared``: examples of the tensors that the step offers, by the token of the calls' access path; ``passed``: keys
    of the tensors that the step passes; ``results``: keys of those it takes; ``lists``: the numbers of the step's lists
    to which calls append; ``leaving``: whether elements of those leave the step; ``places``: for each call its index
    among the step's calls; ``shown``: whether a result or a view of it leaves the step, or is used after an in-place
    change; ``world``: the context facts of the step; ``used``: for each call the results and appended values to which
    gradients may flow; ``written``: what the step changes before the last call; ``counted``: recipes of the initial
    values of the counters, by list number; ``alike``: for each token in ``shared`` all tokens of the same tensor;
    ``tables``: tokens of the tensors from which calls only pick rows; their examples in ``shared`` have spare rows.
    """

    callee: Any
    events: tuple[InvokeOp, ...]
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

    def assemble(self, variant_table: VariantTable) -> AssembledRecursion:
        """Return the recursion of all variants seen so far. Raises Refused."""
        while True:
            try:
                lists = [self._known_as(number) for number in self.lists]
                variants = variant_table.reached([self.callee], self.world)
                if not tables_in(variants).issuperset(self.tables):
                    what = f"{self.events[0].name} does something else with a tensor of which it has only picked rows"
                    raise refused("recursion-list-gradients", what, place=self.events[0].place)
                deciding = next((variant for variant in variants if variant.sides), None)
                if deciding is not None and self._exact(variant_table):
                    name = deciding.name
                    what = (
                        f"a tensor decides which variant {name} takes, and some of its results are detached or not used"
                    )
                    why = "Which parameters have a gradient is not known beforehand."
                    raise refused("recursion-list-gradients", what, why, "Choose with torch.where().", deciding.place)
                appends = set().union(*(variant.trace.appends for variant in variants))
                if self.leaving and len(appends) > len({place for place, _ in appends}):
                    what = "a list leaves the step in which some elements have gradients and others have none"
                    raise refused(
                        "recursion-list-gradients", what, "Rows of one tensor are alike.", place=self.events[0].place
                    )
                several = any(isinstance(event, InvokeEachOp) for event in self.events)
                return assemble(
                    variants, self.shared, self.passed, self.results, lists, several, self.reached(variant_table)
                )
            except UnequalTerms as uneven:
                variant_table.leave(uneven)

    def _known_as(self, number: int) -> int:
        """Return the number by which calls know a list of the step. Raises Refused."""
        known = {place for event in self.events for place, (one, _) in enumerate(event.grown) if one == number}
        if len(known) > 1:
            what = "the lists to which recursive calls append change places"
            raise refused("recursion-list-shared", what, "", "Pass them in one order.", self.events[0].place)
        return known.pop()

    def walker(
        self, assembled: AssembledRecursion, variant_table: VariantTable, needs: dict[Any, Any]
    ) -> HostTraversal:
        """Return the host traversal of the calls."""
        counts = dict.fromkeys(assembled.recursion.seeds, 0)
        roots: list[EntryCall] = []
        # Rows are copies, but eager's result would be a view of the parameter and change with it.
        never = variant_table.showing() if self.shown or self.leaving else frozenset()
        guarded = {event.callee for event in self.events if isinstance(event, InvokeEachOp)} if self.leaving else set()
        for event in self.events:
            seeds = []
            for token in given_tensors(event):
                if ("argument", self.callee, token) in self.passed:
                    number = assembled.buffers["argument", self.callee, token]
                    seeds.append((token, number, counts[number]))
                    counts[number] += 1
            lists = tuple(map(self._place, (n for n, _ in event.grown)))
            names = [name for name, _ in event.given]
            each = tuple(map(names.index, event.over)) if isinstance(event, InvokeEachOp) else ()
            own = never if self.shown else frozenset()
            even = isinstance(event, InvokeEachOp) and event.even
            used = self.used[len(roots)]
            roots.append(EntryCall(self.callee, event.made, tuple(seeds), lists, each, len(names), own, even, used))
        excluded = dict.fromkeys(guarded, never)
        merged = needs, excluded, self._exact(variant_table), self.written, self.alike, self.tables
        return HostTraversal(assembled, roots, list(counts.values()), self.reached(variant_table), *merged)

    def _place(self, number: int) -> int | None:
        """Return the index of one of the step's lists, or of a counter (see ``EntryCall``)."""
        if number in self.counted:
            return ~list(self.counted).index(number)
        return self.lists.index(number) if number in self.lists else None

    def _exact(self, variant_table: VariantTable) -> bool:
        """Whether calls that take the same variant may differ in their gradients."""
        return variant_table.tells_apart(self.callee, self.world, self.used)

    def reached(self, variant_table: VariantTable) -> frozenset[Any]:
        """Return the tokens of the shared tensors that these calls use."""
        known = (variant.flowing for variant in variant_table.reached([self.callee], self.world))
        events = [(event, used) for event, used in zip(self.events, self.used, strict=True) if used]
        found = variant_table.flowing(events, self._exact(variant_table)) & frozenset().union(*known)
        return with_aliases(found, self.alike)


@dataclass(eq=False)
class CallGroup:
    """Recursive calls of one function: the ``roots`` that the step calls, and the traversal that follows them."""

    calls: Calls
    assembled: AssembledRecursion
    roots: EntryCalls
    walker: HostTraversal

    @property
    def invocation(self) -> Invocation:
        """The calls as a node of a graph."""
        return self.roots.invocation

    @property
    def writes(self) -> bool:
        """Whether calls write to objects."""
        return bool(self.assembled.writes)

    def written(self, forest: LevelSchedule) -> list[tuple[HeapWrite | ContainerMutation, Any, Any]]:
        """Return the deferred writes of a completed schedule, in eager's order: write, object, value."""
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
            if isinstance(write.event, HeapWrite):
                place = (id(target), write.event.key)
                if write.counts:
                    value = value(now[place] if place in now else read_place(write.event, target))
                now[place] = value
            found.append((write.event, target, value))
        return found

    def _buffers(self) -> Iterator[int | None]:
        """Yield for each write the buffer of the value, or None for a value that is not a tensor."""
        for variant in self.assembled.variants:
            for number, write in enumerate(variant.writes):
                if write.list is None:
                    yield self.assembled.stored.get((variant.number, number))

    @property
    def asked(self) -> Place:
        """The place of the first predicate on a tensor in a call, or NOWHERE."""
        return next((place for variant in self.assembled.variants for place in variant.asked), NOWHERE)

    def __str__(self) -> str:
        calls, cells = self.calls.events, len(self.assembled.recursion.cells)
        variants = sum(variant.callee == self.calls.callee for variant in self.assembled.variants)
        return f"{calls[0].name}, called {len(calls)} times by the step: {variants} variants, in {cells} cells"

    @property
    def reads(self) -> list[AccessPath]:
        """The access paths of the step's values that ``follow`` takes, in this order."""
        return self.walker.reads

    @property
    def lists(self) -> Iterator[tuple[AccessPath, int]]:
        """Where the step finds the rows of its lists, and the index of each among a schedule's results."""
        first = self.assembled.recursion.by_root
        return ((AccessPath.grown(number), first + n) for n, number in enumerate(self.calls.lists))

    @property
    def numbers(self) -> Iterator[tuple[AccessPath, int, int]]:
        """Where the step finds each number that calls return, with the index of the call and of the number."""
        for call, (event, place) in enumerate(zip(self.calls.events, self.calls.places, strict=True)):
            for which, path in enumerate(numbers_made(event.made)):
                access_path = AccessPath.grown(("call", place))
                for key in path:
                    access_path = access_path.item(key)
                yield access_path, call, which

    @property
    def counts(self) -> Iterator[tuple[AccessPath, int]]:
        """Where the step finds the final values of counters, and their indices among a schedule's counts."""
        return ((AccessPath.grown(number), n) for n, number in enumerate(self.calls.counted))

    @property
    def given(self) -> tuple[tuple[tuple[str, Recipe], ...], ...]:
        """The arguments of each call."""
        return tuple(event.given for event in self.calls.events)

    @property
    def starts(self) -> tuple[Recipe, ...]:
        """The values of the counters before the first call."""
        return tuple(self.calls.counted.values())

    def follow(
        self, step: Sequence[Any], given: Sequence[tuple[Any, ...]], starts: Sequence[Any] = ()
    ) -> LevelSchedule | None:
        """Return the schedule of these calls, or None (see ``HostTraversal.walk``)."""
        return self.walker.walk(step, given, starts)

    def renew(self, variant_table: VariantTable) -> bool:
        """Extend the group to the variants seen since; return False, changing nothing, if that needs other cells."""
        try:
            assembled = self.calls.assemble(variant_table)
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
        walker = self.calls.walker(assembled, variant_table, dict(self.walker.needs))
        if len(walker.reads) != len(self.walker.reads):
            return False
        self.assembled, self.walker = assembled, walker
        return True

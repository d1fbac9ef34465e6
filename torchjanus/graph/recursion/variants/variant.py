"""One execution path through a recursive function, cut into segments where it waits for the calls that it makes.

A variant is made from the trace of one call; every call that takes the path is an instance. Independent of trees.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Place, Refused, refused
from torchjanus.graph.generalize.generalize import EntryPlan, generalise
from torchjanus.graph.ir.passes import unobserved
from torchjanus.graph.ir.program import Ref
from torchjanus.graph.recursion.variants.counts import counted
from torchjanus.graph.recursion.variants.gradients import Gradients
from torchjanus.graph.recursion.variants.nodes import (
    changed_views,
    is_call,
    lifted,
    named_rows,
    seen_before,
    without_changes,
)
from torchjanus.graph.recursion.variants.predicates import DECIDED, MergedVariant, Side, with_truths
from torchjanus.graph.recursion.variants.reads import (
    calls_of,
    names_read,
    numbers_of,
    places_of,
    tensors_of,
)
from torchjanus.graph.recursion.variants.reductions import Accumulation, accumulations, stacks_as_sums
from torchjanus.graph.recursion.variants.row_picks import tables_of, with_picks
from torchjanus.graph.recursion.variants.schedule import Schedule
from torchjanus.graph.recursion.variants.segments import Segment, Segmentation, SegmentReduction, StagedVariant
from torchjanus.graph.recursion.variants.writes import writes_of
from torchjanus.trace.actions import HeapWrite, InvokeOp, place_of
from torchjanus.trace.calls import count_of
from torchjanus.trace.context_facts import holds
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, IdentityTest, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.operations import ops_of
from torchjanus.trace.values import Fetch, Size, depends_on, is_local

__all__ = ["Variant", "tables_in"]


class Variant:
    """The variant of ``event``, one of its calls. ``parameters`` change from call to call; ``given``: access paths of
    the tensors that the caller passes; ``truths``: predicates that hold on this path; ``relied``: sets of context
    facts, one of which has to hold. Raises Refused if its calls cannot be batched."""

    def __init__(
        self, number: int, event: InvokeOp, switch: MergedVariant | None = None, sides: Sequence[Side] = ()
    ) -> None:
        """``switch``: set for a merged variant; ``sides``: what only some of its paths use."""
        trace: Trace = event.call
        self.sides = tuple(sides)
        self.relied = [trace.context]
        self.number, self.callee, self.name, self.trace = number, event.callee, event.name, trace
        self.made = event.made
        self.parameters = tuple(name for name, _ in event.given)
        self.given = {o.token: o for name, recipe in event.given for o in places_of(recipe, AccessPath.parameter(name))}
        self._counted = counted(trace)
        local = {
            e.access_path.token for e in trace.events if isinstance(e, HeapRead) and is_local(e.access_path)
        } | self._counted
        with unobserved():
            self.plan: EntryPlan = generalise([trace], frozenset(local))
        self.place: Place = trace.events[0].place if trace.events else Place("", 0)
        program = self.plan.program
        self._inputs = dict(enumerate(self.plan.access_paths))
        self.results = tuple(
            program.outputs[self.plan.outputs["tensor", part.ref.number]] for part in tensors_of(trace.result)
        )
        self.numbers = [recipe for _, recipe in numbers_of(trace.result)]
        self._refuse_unsupported()
        merged = with_truths(program, trace, self.place, switch, self.sides)
        self._nodes, self._places, self.picks = with_picks(self.plan, merged.nodes, merged.places)
        self._inputs.update((index, AccessPath.parameter(f"pick {index}")) for index in self.picks)
        self.truths, self.takings = merged.truths, merged.takings
        self.writes = list(writes_of(trace, self.plan, self._counted, self._refused))
        self.tables = tables_of(self.plan, self._nodes, self._wanted())
        changes = self._settle_changes()
        self._flowing = self._flows()
        schedule = Schedule(trace, self._nodes, self.plan.slots, self._inputs.keys(), self._refused)
        self.sites, self.stages, self._call = schedule.sites, schedule.stages, schedule.calls
        if changes.intersection(ref.index for ref in self._stored()) or (changes and not self._only_lists()):
            raise self._refused("it writes to objects, and changes tensors in place", self.place)
        if self.writes and any(b.stage < a.stage for a, b in itertools.pairwise(self.sites)):
            raise self._refused("it writes to objects, and its calls are not followed in their order", self.place)
        self._at = schedule.latest(self._nodes, self.results, self._changed)
        with torch._C.DisableTorchFunction():  # a watched run may be in progress
            few = {n for n, one in enumerate(program.inputs) if one.example is not None and one.example.dim() <= 2}
        self._tables = frozenset(n for n in few & self._inputs.keys() if self._kind_of(self._inputs[n]) == "shared")
        self.gradients = self._gradients()
        self._sums: list[Accumulation] | None = None
        self._cut_at: Any = None
        self.cut(frozenset(), {}, frozenset())

    def fits(self, world: Mapping[Any, Any]) -> bool:
        """Whether the context facts ``world`` imply those that it relies on."""
        return any(holds(relied, world) for relied in self.relied)

    def _refuse_unsupported(self) -> None:
        """Raise Refused if the calls cannot be batched."""
        program = self.plan.program
        for event in self.trace.events:
            if isinstance(event, IdentityTest) and self.given.keys() & {event.first.token, event.second.token}:
                raise self._refused("it is given one tensor twice", event.place)
        for expr in self.plan.slots:
            if depends_on(expr, Fetch | Size):
                raise self._refused(f"it computes with {expr} in Python", self.place)
        for event in self.trace.events:
            if isinstance(event, NumberPredicate | Specialization) and calls_of(event.expr):
                raise self._refused("a number that calls return decides what it does", event.place)
        asked = all(
            isinstance(self.trace.events[a.event], TensorPredicate | NumberPredicate)
            for a in program.assertions
            if a.event >= 0
        )
        if not asked or any(a.event < 0 for a in program.assertions) or self.plan.batches or program.cuts:
            raise self._refused("it asks tensors for their values", self.place)
        if any(not node.modes.is_plain for node in program.nodes):
            raise self._refused("it runs under autocast, in inference mode, or without some kernel", self.place)

    def _refused(self, why: str, place: Place) -> Refused:
        return refused("recursion-body", f"calls of {self.name} cannot be run many at a time", f"{why}.", place=place)

    def seen_at(self, event: HeapWrite) -> Any:
        """Return the recorded value before the write."""
        place = place_of(event).token
        return next(e.value for e in self.trace.events if isinstance(e, HeapRead) and e.access_path.token == place)

    def _only_lists(self) -> bool:
        """Whether it writes to lists of the step only."""
        return all(write.list is not None for write in self.writes)

    @property
    def appended(self) -> list[Ref]:
        """The tensors that it appends to lists of the step."""
        return [write.ref for write in self.writes if write.list is not None and write.ref is not None]

    def _stored(self) -> list[Ref]:
        return [write.ref for write in self.writes if write.ref is not None]

    def _wanted(self) -> tuple[Ref, ...]:
        """Return the tensors used outside of cells, other than arguments of calls."""
        return (*self.results, *self.truths, *self.takings, *self._stored())

    @property
    def names_read(self) -> set[tuple[type | None, Any]]:
        """The names of what it reads from before the step, except counters (see ``reads.names_read``)."""
        return names_read(self.trace, self._counted)

    @property
    def entered(self) -> set[int]:
        """The counters whose initial values it reads."""
        found = (count_of(event.access_path) for event in self.trace.events if isinstance(event, HeapRead))
        return {number for number in found if number is not None}

    @property
    def shows(self) -> bool:
        """Whether it returns or appends an alias of a tensor that all calls share."""
        memory, access_paths = self.trace.memory, self.trace.access_paths
        return not self._let_out.isdisjoint(
            memory[n] for n, access_path in access_paths.items() if not is_local(access_path)
        )

    @property
    def handing(self) -> frozenset[int]:
        """The inner calls whose results alias what it returns or appends."""
        memory, let_out = self.trace.memory, self._let_out
        calls = enumerate(site.event for site in self.sites)
        return frozenset(n for n, call in calls if any(memory[ref.number] in let_out for ref in call.outs))

    @property
    def passed_up(self) -> set[Any]:
        """The functions whose results it returns or appends, or views of them."""
        return {self.sites[number].event.callee for number in self.handing}

    @property
    def _let_out(self) -> set[int]:
        """The memory of what it returns and appends."""
        recipes = (self.trace.result, *(write.value for write in self.writes))
        return {self.trace.memory[part.ref.number] for recipe in recipes for part in tensors_of(recipe)} - {0}

    @property
    def asked(self) -> list[Place]:
        """The places of its predicates on tensors."""
        return [assertion.place for assertion in self.plan.program.assertions]

    def _settle_changes(self) -> set[int]:
        """Functionalise in-place changes that nothing else sees. Return all changed tensors. Raises Refused."""
        calls = [node for node in self._nodes if is_call(node)]
        given = {ref.index for node in calls for ref in node.outs} | self._inputs.keys()
        made = set(self._inputs)
        changed: set[int] = set()
        for node in self._nodes:
            changed.update(ref.index for ref in node.outs if ref.index in made)
            made.update(ref.index for ref in node.outs)
        if any(ref.index in changed for node in calls for ref in node.args):
            raise self._refused("it changes a tensor in place that it passes to a call", self.place)
        for node in changed_views(self._nodes, changed):
            raise self._refused("it changes a view of another tensor in place", node.place)
        own = changed - given - seen_before(self._nodes, changed)
        self._nodes, now = without_changes(self._nodes, own, 1 + max(made, default=0))
        self._changed = changed - own
        self.results = tuple(now.get(ref.index, ref) for ref in self.results)
        kept = [ref.index for ref in self._wanted()]
        free = 1 + max((ref.index for node in self._nodes for ref in node.outs), default=max(made, default=0))
        found = stacks_as_sums(self._nodes, kept, max(free, 1 + max(made, default=0)))
        self._nodes = [node for node, _ in found]
        self._places = [self._places[number] for _, number in found] if self._places else []
        return changed

    def _flows(self) -> set[int]:
        """Return the tensors on which results, appended values or inner calls depend."""
        found = {ref.index for ref in self.results}
        found.update(ref.index for ref in self.appended)
        for node in reversed(self._nodes):
            if is_call(node) or any(ref.index in found for ref in node.outs):
                refs = node.inputs
                # The predicate has no gradient.
                found.update(ref.index for ref in (refs[1:] if node.func in DECIDED else refs))
        return found

    def _gradients(self) -> Gradients:
        shared = {
            index: access_path.token
            for index, access_path in self._inputs.items()
            if self._kind_of(access_path) == "shared"
        }
        quiet = not any(event.modes.grad for event in ops_of(self.trace.events))
        appended = [(w.list, w.ref) for w in self.writes if w.list is not None and w.ref is not None]
        return Gradients(self._nodes, shared, self.results, appended, quiet)

    @property
    def differentiated(self) -> frozenset[Any]:
        """The tokens of the shared tensors to which gradients flow from what it returns and appends."""
        return self.gradients.differentiated

    @property
    def dropped(self) -> frozenset[int]:
        """The inner calls that gradients do not reach."""
        return self.gradients.dropped

    # -- cells ----------------------------------------------------------------------------------------------------

    def sums(self) -> list[Accumulation]:
        """Return all chains of additions, by either carried operand."""
        if self._sums is None:
            self._sums = self._found_sums()
        return self._sums

    def _found_sums(self) -> list[Accumulation]:
        kept = [ref.index for ref in self._wanted()]
        return [one for carried in (0, 1) for one in accumulations(self._nodes, kept, carried)]

    def named_rows(self) -> Iterator[tuple[Place, int | float]]:
        """Yield the places and values of constants that name rows of shared tensors or fill tensors."""
        return ((self._nodes[n].place, value) for n, value in named_rows(self._nodes, self._tables))

    def number_at(self, slot: int) -> tuple[type, Any]:
        """Return the type of the number that the host supplies in a slot, and its expression or value."""
        known = self.plan.program.slots
        if slot < len(known):
            return known[slot].type, self.plan.slots[slot]
        return type(self._lifted[slot - len(known)]), self._lifted[slot - len(known)]

    def cut(self, varying_loops: frozenset[Place], folded: Mapping[Place, int], named: frozenset[Place]) -> None:
        """Cut the computation into segments: at calls, at the iterations of ``varying_loops`` (trip counts vary, so
        all iterations have one form), and around the sums at the places ``folded``, each with its carried operand. At
        the places ``named`` constants differ between variants and become slots."""
        cut_at = (varying_loops, dict(folded), named)
        if cut_at == self._cut_at:
            return
        self._cut_at = cut_at
        nodes, self._lifted = lifted(self._nodes, self._tables, named, len(self.plan.slots))
        kinds = {index: self._kind_of(access_path) for index, access_path in self._inputs.items()}
        kinds.update(dict.fromkeys(self._call, "call"))
        stages = StagedVariant(
            callee=self.callee,
            nodes=nodes,
            places=self._places,
            at=self._at,
            stages=self.stages,
            kinds=kinds,
            access_paths=self._inputs,
            passed=[(site.stage, tuple(ref for _, ref in site.args)) for site in self.sites],
            wanted=self._wanted(),
            flowing=self._flowing,
            slots=[self.number_at(n)[0] for n in range(len(self.plan.slots) + len(self._lifted))],
        )
        sums = [one for one in self.sums() if folded.get(one.place) == one.carried]
        self._cut = Segmentation(stages, sums, varying_loops, self.trace.loops)
        some = self.sometimes
        for part in self._cut.parts:
            used = some & {access_path.token for access_path in part.flowing}
            if used:  # another variant may always use them
                part.form = (*part.form, used)

    @property
    def sometimes(self) -> frozenset[Any]:
        """The tokens of the shared tensors that only some of its calls use."""
        return frozenset(token for side in self.sides for token in side.tensors)

    @property
    def flowing(self) -> frozenset[Any]:
        """The tokens of the shared tensors on which results depend."""
        return frozenset(access_path.token for part in self.parts for access_path in part.flowing)

    @property
    def cuts_gradients(self) -> bool:
        """Whether it keeps gradients from a shared tensor on which results depend, or from an inner call."""
        return bool(self.dropped) or self.differentiated != self.flowing

    @property
    def parts(self) -> list[Segment]:
        """The segments, one cell each."""
        return self._cut.parts

    @property
    def folds(self) -> list[SegmentReduction]:
        """The reductions."""
        return self._cut.folds

    @property
    def order(self) -> list[tuple[str, int]]:
        """("part", "fold" or "site", number), in execution order."""
        return self._cut.order

    def _kind_of(self, access_path: AccessPath) -> str:
        return "shared" if not is_local(access_path) else "argument" if access_path.token in self.given else "column"

    def source_of(self, ref: Ref) -> tuple[Any, ...]:
        """Return where a tensor comes from: ("call", site, index), ("argument", token), ("column", input), ("shared",
        access path), ("part", segment, index of the output) or ("fold", reduction, 0)."""
        if ref.index in self._call:
            return ("call", *self._call[ref.index])
        made = self._cut.source_of(ref)
        if made is not None:
            return made
        access_path = self._inputs[ref.index]
        kind = self._kind_of(access_path)
        return (kind, {"shared": access_path, "argument": access_path.token, "column": ref.index}[kind])


def tables_in(variants: Sequence[Variant]) -> frozenset[Any]:
    """Return the tokens of the tensors of which all of these variants only pick rows."""
    found = {token for variant in variants for token in variant.tables}
    return frozenset(token for token in found if all(variant.tables.get(token, ()) is not None for variant in variants))

"""Writes the trace in which loops over trees are calls: the call that replaces the iterations, and what follows it.

In: a trace, its loops over trees and what is merged beside their calls. Out: the rewritten trace, in which each loop is
one ``InvokeEachOp``; raises NotMergeable. ``finding`` decides which loops these are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.recursion.entry_loops.checks import only_read, own_of, passed_along, refuse_counted, used_outside
from torchjanus.graph.recursion.entry_loops.columns import Column, as_it_is, column_of, lists_beside
from torchjanus.graph.recursion.entry_loops.effects import LoopEffects, merged_beside
from torchjanus.graph.recursion.entry_loops.finding import EntryCallLoop, added_up
from torchjanus.graph.recursion.entry_loops.iterations import (
    IterationOfEntryCalls,
    IterationRewriter,
    calls_in,
    items_of,
)
from torchjanus.graph.recursion.entry_loops.output_lists import sum_from, sum_of_rows
from torchjanus.graph.recursion.entry_loops.pass_through import passed_on, unseen
from torchjanus.trace.actions import WITHIN, ContainerMutation, Extern, HeapWrite, InvokeEachOp, InvokeOp, Op
from torchjanus.trace.context_facts import context_facts
from torchjanus.trace.events import ANYTHING, HostFact, Trace
from torchjanus.trace.facts import HeapRead, IdentityTest, Specialization
from torchjanus.trace.loops.records import UntracedComputation
from torchjanus.trace.recipes import ExistingObject, NewObject, ObjectReference, TensorOf
from torchjanus.trace.rewriting import Renumbering
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Read

__all__ = ["EntryLoopRewriter"]


class EntryLoopRewriter(Renumbering):
    """Writes the new trace. Raises NotMergeable."""

    def __init__(self, old: Trace, loops: Sequence[EntryCallLoop], made: Any) -> None:
        self.new = itertools.count(len(old.tensors))  # numbers of added tensors
        old, self.beside = merged_beside(old, loops, self.new)
        self.does_more = any(one.merged for one in self.beside)  # than make calls
        super().__init__(old)
        self.loops, self.look = loops, made
        self.inside = frozenset(number for loop in loops for some in loop.made for number in some)
        self.over = {token: n for loop in loops for n, token in enumerate(loop.lists)}
        recipes = old.all_recipes()
        read = [access_path for one in self.beside for access_path in one.lists if access_path.token not in self.over]
        if not all(only_read(old, access_path, recipes) for access_path in read):
            raise NotMergeable("recursion-entry-loop", "the list of trees is changed, or used as a whole")
        self.over.update((access_path.token, 0) for access_path in read)
        beside = [*read, *lists_beside(old, {len(loop.starts) for loop in loops}, self.over, recipes)]
        self.over.update((access_path.token, 0) for access_path in beside)
        self.lists = [*(access_path for loop in loops for access_path in loop.over), *beside]
        if ANYTHING in old.looked_at and any(isinstance(e, IdentityTest) for e in old.events):
            raise NotMergeable("recursion-entry-loop", "the step looks at what all objects hold")
        self.columns = {
            position: column
            for position, event in enumerate(old.events)
            if isinstance(event, Op) and not any(loop.holds(position) for loop in loops)
            if (column := column_of(old, event, self.over)) is not None
        }
        # Loops that only collect numbers, by their end.
        self.idle = {
            loop_record.end
            for loop_record in old.loop_records
            if loop_record.end is not None
            and loop_record.access_path is not None
            and loop_record.access_path.token in self.over
            if not any(isinstance(event, Op) for event in old.events[loop_record.starts[0] : loop_record.end])
        }
        order = [position for position, event in enumerate(old.events) if isinstance(event, InvokeOp)]
        self.calls = {position: n for n, position in enumerate(order)}
        self.merged_calls = {n for position, n in self.calls.items() if any(loop.holds(position) for loop in loops)}
        if any(calls_in(_LeavingValue(recipe)) for recipe in recipes):
            raise NotMergeable("recursion-entry-loop", "single results of calls leave the step")
        refuse_counted(old, loops, [token for token, _ in self.columns.values()])
        used = used_outside(old, loops, self.inside)
        free = 1 + max((n for e in old.events if isinstance(e, InvokeOp) for n, _ in e.grown), default=-1)
        self.begun: dict[int, list[Any]] = {}
        self.fixed: dict[int, list[Specialization]] = {}  # end of a loop -> the facts on which its iterations rely
        self.rows: list[int] = []  # tensors that calls append to lists
        self.sum_of: dict[int, int] = {}  # sum after the last iteration -> the stacked terms
        for loop, one in zip(loops, self.beside, strict=True):
            event, *others = self._merged(loop, one, used, free)
            self.begun[loop.end] = [event, *others]
            free = max(free, *(1 + number for number, _ in event.grown))
        local = {n for n, access_path in old.access_paths.items() if items_of(_PathEvent(access_path), self.over)}
        lost = (self.inside | local) - set(self.rows) - self.sum_of.keys()
        self.kept = [n for n in range(len(old.tensors)) if n not in lost and n not in set(self.rows)]
        self.collected = {
            access_path: number for one in self.beside for access_path, number in one.exprs.gathered.items()
        }
        for token, known in self.columns.values():
            self.collected.setdefault(self._rows_of(token, known), next(self.new))
        self.found = {e.access_path: e.value for e in old.events if isinstance(e, HeapRead) and e.kind == "number"}
        columns = (number for one in self.beside for number in one.columns)
        numbered = dict.fromkeys((*self.kept, *self.sum_of.values(), *columns, *self.collected.values(), *self.rows))
        self.numbers = {number: new for new, number in enumerate(numbered)}
        self.after: list[int] = []
        self.builds: dict[int, int] = {}  # old number of a new object -> its number in the new trace
        self.emitted: set[AccessPath] = set()  # paths of collected numbers that have been emitted

    # -- a loop as calls ------------------------------------------------------------------------------------------

    def _merged(self, loop: EntryCallLoop, beside: LoopEffects, used: set[int], free: int) -> Iterator[Any]:
        """Yield the call that replaces the iterations, then the sums over them and what they do beside their calls."""
        old = self.old
        added = [added_up(old, self.inside, loop, place) for place in loop.sums]
        finals = {outs[-1] for _, _, outs in added}
        carried = {number for _, _, outs in added for number in outs}
        if used & carried - finals:
            raise NotMergeable("recursion-entry-loop", "a sum is used before the loop is over")
        plain = [[n for n in some if n not in carried] for some in loop.made]
        # The outputs of iterations: the terms of each sum, then other live-outs in the order of computation.
        outs = [
            list(
                dict.fromkeys(
                    [
                        *(terms[n] for terms, _, _ in added),
                        *(k for k in some if k in used),
                        *(rows[n] for rows in beside.columns.values()),
                    ]
                )
            )
            for n, some in enumerate(plain)
        ]
        if any(n in carried for rows in beside.columns.values() for n in rows):
            raise NotMergeable("recursion-entry-loop", "an iteration writes a sum that is not finished")
        calls = [event for ops in loop.ops for p in ops if isinstance(event := old.events[p], InvokeOp)]
        passed = passed_along(calls)
        if len({len(some) for some in outs}) > 1 or not (outs[0] or any(passed.values())):
            raise NotMergeable(
                "recursion-entry-loop", "the calls of iterations return different numbers of tensors, or none"
            )
        sums = {positions[key] for positions in loop.keyed for key in loop.sums}
        iterations = [self._iteration(loop, number, sums, some, len(passed)) for number, some in enumerate(outs)]
        self.fixed[loop.end] = list({fact.token: fact for one in iterations for fact in one.fixed}.values())
        first, merged = calls[0], iterations[0]
        if any(one.given != merged.given for one in iterations):
            raise NotMergeable("recursion-entry-loop", "iterations give their calls different arguments")
        self.rows += [some[which] for which in range(len(outs[0])) for some in outs]
        self.rows += [ref.number for refs in passed.values() for ref in refs]
        # Iterations that call other inner functions of the same code differ, though their events do not show it.
        parts = {part for event in calls for part in event.callee if type(part) is tuple and part[:1] == (WITHIN,)}
        callee = ("each", loop.place, first.modes, len(loop.over), len(outs[0]), *([frozenset(parts)] if parts else ()))
        given: tuple[tuple[str, Any], ...] = tuple(
            (f"element{n}", ExistingObject(access_path)) for n, access_path in enumerate(loop.over)
        )
        given += tuple((f"given{n}", TensorOf(TensorRef(number))) for n, number in enumerate(merged.given))
        shared = dict.fromkeys(ref for event in calls for ref in event.kwargs.get("shared", ()))
        for position in (position for ops in loop.ops for position in ops):
            refs = old.events[position].inputs  # type: ignore[union-attr]
            shared.update((ref, None) for ref in refs if ref.number in old.access_paths)
        found = own_of(calls)
        grown = tuple(passed.items())
        grown += tuple((free + n, tuple(TensorRef(some[n]) for some in outs)) for n in range(len(outs[0])))
        outside = tuple(r for r in shared if not items_of(_PathEvent(old.access_paths[r.number]), self.over))
        base = InvokeOp(
            first.func, f"the iterations at {loop.place}", tuple(map(TensorRef, merged.given)),
            {"shared": outside, "own": tuple(found.values())},
            (), first.modes, first.place, callee=callee, given=given, made=None,
            own=tuple(found),
        )  # fmt: skip
        made = ("constant", ("NoneType", None))
        each = tuple(replace(base, call=one.trace, made=made) for one in iterations)
        yield InvokeEachOp(
            base.func, base.name, base.args, base.kwargs, (), base.modes, base.place, callee=callee, given=given,
            made=made, call=each[0].call, grown=grown, over=tuple(f"element{n}" for n in range(len(loop.over))),
            counted=calls[0].counted, own=base.own, iterations=each, even=loop.even,
        )  # fmt: skip
        for terms, start, (*_, last) in added:
            stack = self.sum_of[last] = next(self.new)
            modes = first.modes
            out = (TensorRef(stack),)
            yield Op(torch.stack, "torch.stack", (list(map(TensorRef, terms)),), {}, out, modes, loop.place)
            func: Any = sum_of_rows if start is None else sum_from
            args = out if start is None else (*out, TensorRef(start))
            yield Op(func, func.__name__, args, {}, (TensorRef(last),), modes, loop.place)
        if beside.merged:
            yield from beside.conditions(loop.place)
        for stack, terms in beside.columns.items():
            # What leaves has its gradients as in eager; what is fetched has none.
            own = beside.exprs.is_own(stack)
            modes = first.modes if own else replace(first.modes, grad=False)
            rows = list(map(TensorRef, terms))
            yield Op(torch.stack, "torch.stack", (rows,), {}, (TensorRef(stack),), modes, loop.place)
        if beside.effect_merger.each is not None:
            yield beside.effect_merger.each

    def _iteration(
        self, loop: EntryCallLoop, number: int, sums: set[int], outs: Sequence[int], passed: int
    ) -> IterationOfEntryCalls:
        """Return one iteration as a call. It appends ``outs`` to lists of its own, after the ``passed`` ones."""
        old = self.old
        facts = []
        calls = [self.calls[p] for p in loop.ops[number] if p in self.calls]
        for event in old.events:
            if isinstance(event, HostFact) and ((items := items_of(event, loop.lists)) or calls_in(event)):
                if calls_in(event) - set(calls):
                    if number in items or calls_in(event) & set(calls):
                        raise NotMergeable("recursion-entry-loop", "an iteration uses the call of another one")
                    continue
                if items <= {number}:
                    facts.append(event)
                elif number in items and not isinstance(event, IdentityTest):
                    raise NotMergeable("recursion-entry-loop", "an iteration uses the tree of another one")
        limits = loop.limits
        events = []
        for position in range(limits[number], limits[number + 1]):
            event = old.events[position]
            if position not in sums and not isinstance(event, (HostFact, HeapWrite, ContainerMutation, Extern)):
                if items_of(event, loop.lists) - {number} or calls_in(event) - set(calls):
                    raise NotMergeable("recursion-entry-loop", "something else uses a tree or the result of a call")
                events.append(event)
        own = frozenset(loop.made[number]) | self.inside
        over = {**loop.lists, **{("call", call): n for n, call in enumerate(calls)}}
        known = [event for event in old.events[: loop.end] if not items_of(event, loop.lists)]
        effect_merger = IterationRewriter(old, over, own)
        effect_merger.made_trace.context = context_facts(known, numbers=False)
        effect_merger.merge(facts, events, outs, range(passed, passed + len(outs)))
        made = effect_merger.made_trace
        gone = unseen(made, self.look)
        if gone:
            paths = frozenset(
                e.access_path.token for n, e in enumerate(made.events) if n in gone and isinstance(e, HeapRead)
            )
            kept = [event for n, event in enumerate(made.events) if n not in gone]
            made.events = [
                replace(e, given=tuple((name, passed_on(recipe, paths)) for name, recipe in e.given))
                if isinstance(e, InvokeOp)
                else e
                for e in kept
            ]
        return IterationOfEntryCalls(made, tuple(effect_merger.given), tuple(effect_merger.fixed.values()))

    # -- the new trace ------------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """Return the new trace."""
        old = self.old
        events: list[Any] = []
        places: list[int] = []
        operations, before = 0, 0
        self.after = []
        steps: list[tuple[Any, int]] = []
        for position, event in enumerate(old.events):
            loop = next((one for one in self.loops if one.holds(position)), None)
            if loop is None and calls_in(event):
                raise NotMergeable("recursion-entry-loop", "the result of a single call is used after the loop")
            if isinstance(event, Op):
                self.after.append(operations)
            places.append(len(steps))
            before += isinstance(event, Op)
            if isinstance(event, HostFact):
                if items_of(event, self.over) or calls_in(event) & self.merged_calls:
                    continue
                read = event.expr if isinstance(event, Specialization) else None
                if isinstance(read, Read) and self._is_length(read.access_path):
                    continue
                steps.append((event, before))
            elif position in self.idle:
                continue
            elif loop is None:
                if position in self.columns:
                    steps += ((made, before) for made in self._column(event, position))
                elif items_of(event, self.over):
                    raise NotMergeable("recursion-entry-loop", "a single tree is used outside of the loop")
                else:
                    steps.append((event, before))
                operations += isinstance(event, Op)
            elif position == loop.end:
                steps += ((fact, before) for fact in self.fixed[loop.end])
                for access_path in self.beside[self.loops.index(loop)].exprs.gathered:
                    steps += ((fact, before) for fact in self._collected(access_path, loop.place))
                for made in self.begun[loop.end]:
                    steps.append((made, before))
                    operations += isinstance(made, Op)
        self.after.append(operations)
        places.append(len(steps))
        try:
            events = [self.event(event, after) for event, after in steps]
        except (KeyError, IndexError) as error:
            raise NotMergeable(
                "recursion-entry-loop", "a tensor of a single iteration is used outside of the loop"
            ) from error

        def outside(starts: Sequence[int]) -> bool:
            return not any(loop.holds(start) for loop in self.loops for start in starts)

        access_paths = {self.numbers[n]: path for n, path in old.access_paths.items() if n in self.numbers}
        values: dict[int, Any] = {}
        for event in events:
            path = event.access_path if isinstance(event, HeapRead) else None
            if path is not None and path.step is Step.OF and isinstance(path.key, Column):
                number = self.collected[path]
                access_paths[self.numbers[number]], values[number] = path, event.value
        tensors = [old.tensors[n] if n < len(old.tensors) else values.get(n) for n in self.numbers]
        memory = [old.memory[n] if n < len(old.tensors) else 0 for n in self.numbers]
        try:
            return self.made(
                events,
                tensors=tensors,
                memory=memory,
                access_paths=access_paths,
                kinds={self.numbers[n]: kind for n, kind in old.kinds.items() if n in self.numbers},
                loop_instances=[
                    replace(one, starts=tuple(places[n] for n in one.starts), end=places[one.end])
                    for one in old.loop_instances
                    if outside(one.starts)
                ],
                loop_records=[
                    one.elsewhere([places[n] for n in one.starts], None if one.end is None else places[one.end])
                    for one in old.loop_records
                    if outside(one.starts)
                ],
                loops=[
                    replace(one, starts=tuple(places[n] for n in one.starts), end=places[one.end])
                    for one in old.loops
                    if outside(one.starts)
                ],
                frames=[],
                plain=[UntracedComputation(places[one.position], one.operands, one.total) for one in old.plain],
                changed={places[position]: names for position, names in old.changed.items()},
                measured=places[old.measured] if old.measured >= 0 else old.measured,
                counted=[],
            )  # fmt: skip
        except (KeyError, IndexError) as error:
            raise NotMergeable("recursion-entry-loop", "a tensor of a single iteration leaves the step") from error

    def _rows_of(self, token: Any, column: Column) -> AccessPath:
        """Return the path of the numbers that the host collects from a list."""
        return next(access_path for access_path in self.lists if access_path.token == token).then(Step.OF, column)

    def _column(self, op: Any, position: int) -> Iterator[Any]:
        """Yield the operation that makes a tensor of numbers of all trees."""
        access_path = self._rows_of(*self.columns[position])
        yield from self._collected(access_path, op.place)
        yield replace(op, func=as_it_is, name="column", args=(TensorRef(self.collected[access_path]),))

    def _collected(self, access_path: AccessPath, place: Place) -> Iterator[HeapRead]:
        """Yield the facts of numbers of all trees that the host collects, once."""
        if access_path in self.emitted:
            return
        self.emitted.add(access_path)
        assert access_path.base is not None
        places = (access_path.key.at(access_path.base, n) for n in itertools.count())
        elements = itertools.takewhile(self.found.__contains__, places)
        value = torch.tensor([self.found[element] for element in elements])
        dtype = str(value.dtype).removeprefix("torch.")
        yield HeapRead(
            access_path, value, "tensor", ("Tensor", dtype, tuple(value.shape), (1,), "cpu", False, True), place
        )
        yield HeapRead(access_path.then(Step.SIZE, 0), len(value), "number", place=place)

    def _is_length(self, access_path: AccessPath) -> bool:
        return access_path.step is Step.LEN and access_path.base is not None and access_path.base.token in self.over

    def event(self, event: Any, after: int) -> Any:
        made = super().event(event, after)
        if isinstance(event, InvokeEachOp):
            grown = tuple((n, tuple(TensorRef(self.numbers[ref.number]) for ref in refs)) for n, refs in event.grown)
            given = tuple((name, self.recipe(recipe)) for name, recipe in event.given)
            iterations = tuple(
                replace(one, args=made.args, kwargs=made.kwargs, given=given) for one in event.iterations
            )
            made = replace(made, grown=grown, given=given, iterations=iterations)
        return made

    def recipe(self, recipe: Any) -> Any:
        made = super().recipe(recipe)
        if isinstance(made, NewObject | ObjectReference):  # the number of new objects depends on the trip count
            made = replace(made, number=self.builds.setdefault(made.number, len(self.builds)))
        return made


@dataclass(frozen=True, slots=True)
class _LeavingValue:
    """A value that leaves the step, in the form of an event."""

    args: Any


@dataclass(frozen=True, slots=True)
class _PathEvent:
    """An access path in the form of an event."""

    access_path: AccessPath

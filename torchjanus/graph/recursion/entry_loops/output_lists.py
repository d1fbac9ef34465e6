"""Lists of a step to which recursive calls append, as rows of one tensor, since trees differ in the number of elements.

A rewriting of traces: where the step stacks, concatenates or sums such a list, it does so with the rows. Their number
is known once the calls have been followed. Independent of how that is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import NOWHERE, Place, Refused, refused
from torchjanus.graph.ir.passes import Pass, Stage
from torchjanus.graph.ir.program import Node
from torchjanus.graph.loops.rewrites.lists import concatenated_rows, takes_all
from torchjanus.graph.recursion.entry_loops.pass_through import passed_on, unseen
from torchjanus.trace.actions import InvokeOp, Op
from torchjanus.trace.events import Event, Trace
from torchjanus.trace.facts import HeapRead, TensorPredicate
from torchjanus.trace.functions import added_up
from torchjanus.trace.recipes import CollectedItems, NewObject, RowOf, TensorAt, TensorOf, inner_recipes, parts_of
from torchjanus.trace.rewriting import Renumbering
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, Read, Size, leaves

__all__ = ["STACK_OUTPUT_LISTS", "is_rows_of", "output_lists_as_rows", "sum_from", "sum_of_rows"]

_ADDITIONS = ("Tensor.add", "Tensor.__add__", "Tensor.__radd__", "torch.add")


def _rows(which: torch.Tensor) -> torch.Tensor:
    """Mark all that calls append to a list; the calls give these rows."""
    raise AssertionError("the rows are given by the calls that append to the list")


_rows.__name__ = "rows"


def is_rows_of(node: Node) -> bool:
    """Whether the node represents all that calls append to the list of its argument."""
    return node.func is _rows


def sum_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """Compute ``sum`` of the rows."""
    return rows.sum(0, dtype=None if rows.dtype is torch.bool else rows.dtype)


def sum_from(rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Compute ``sum`` of the rows with a start value."""
    return start + sum_of_rows(rows)


@dataclass(frozen=True, slots=True)
class _OutputList:
    """``refs``: what calls append to the list, in order; ``own``: those that are neither results nor inputs; ``after``:
    the last event that appends; ``place``: its place."""

    number: int
    refs: tuple[int, ...]
    own: frozenset[int]
    after: int
    place: Place


def output_lists_as_rows(trace: Trace, made: Mapping[Any, Any], inner: bool = False) -> Trace:
    """Return the trace with its lists as rows, or itself if there are none. ``made``, ``inner``: see ``unseen``. Raises
    Refused if the step uses single elements."""
    lists, gone = list(_lists(trace)), unseen(trace, made, inner)
    return _OutputListRewriter(trace, lists, gone).trace() if lists or gone else trace


STACK_OUTPUT_LISTS = Pass(
    "stack_output_lists",
    Stage.TRACE,
    output_lists_as_rows,
    "Makes lists to which recursive calls append the rows of one tensor, of any number.",
    contextual=True,
)


def _lists(trace: Trace) -> Iterator[_OutputList]:
    """Yield the lists to which calls append."""
    calls = [(position, event) for position, event in enumerate(trace.events) if isinstance(event, InvokeOp)]
    results = {ref.number for _, event in calls for ref in event.outs}
    for number in dict.fromkeys(number for _, event in calls for number, _ in event.grown):
        refs: list[int] = []
        after = 0
        for position, event in calls:
            for one, some in event.grown:
                if one == number and some:
                    refs += [ref.number for ref in some]
                    after = position
        if refs:
            own = frozenset(ref for ref in refs if ref not in results and ref not in trace.access_paths)
            yield _OutputList(number, tuple(refs), own, after, trace.events[after].place)


def _refused(place: Place, what: str) -> Refused:
    why = "It is one tensor, of as many rows as there are."
    return refused(
        "recursion-list-used", f"the step {what}", why, "Stack the list, or add it up; or return what is used.", place
    )


class _OutputListRewriter(Renumbering):
    """Writes the new trace. Raises Refused."""

    def __init__(self, old: Trace, lists: Sequence[_OutputList], gone: frozenset[int]) -> None:
        """``gone``: positions of events that are left out."""
        super().__init__(old)
        self.lists = lists
        self.gone = gone
        self.paths = frozenset(
            e.access_path.token for e in map(old.events.__getitem__, gone) if isinstance(e, HeapRead)
        )
        # Numbered after all others: for each list its row numbers, then its rows.
        self.given = {one.number: len(old.tensors) + 2 * n for n, one in enumerate(lists)}
        self.numbers: dict[int, int] = {}  # old tensor number -> new
        self.changes: dict[int, Op | None] = {}  # position -> new operation, None if it is removed
        self.after = [0]  # operations before a point of the old trace -> of the new one
        for one in lists:
            self._find_uses(one)
        self._refuse_others()
        left = {ref for one in lists for ref in one.own}
        for position in self.changes.keys() - {p for p, made in self.changes.items() if made is not None}:
            left.update(ref.number for ref in old.events[position].outs)  # type: ignore[union-attr]
        self.kept = [number for number in range(len(old.tensors)) if number not in left]
        added = [number for one in lists for number in (self.given[one.number], self.given[one.number] + 1)]
        self.numbers = {number: new for new, number in enumerate((*self.kept, *added))}

    def _made_rows(self, one: _OutputList) -> TensorRef:
        """Return the rows of the list."""
        return TensorRef(self.given[one.number] + 1)

    def _find_uses(self, one: _OutputList) -> None:
        """Record the new operations that use the whole list."""
        events = self.old.events
        for position, event in enumerate(events):
            if not isinstance(event, Op) or position in self.changes:
                continue
            if event.func is added_up and tuple(ref.number for ref in event.args[0]) == one.refs:
                adding = sum_from if len(event.args) > 1 else sum_of_rows
                self._becomes(position, event, adding, (self._made_rows(one), *event.args[1:]))
            elif takes_all(event, one.refs):
                func: Any = torch.clone if event.name == "torch.stack" else concatenated_rows
                self._becomes(position, event, func, (self._made_rows(one),))
            elif (chain := _chain(events, position, one.refs)) is not None:
                self.changes.update(dict.fromkeys(chain[:-1]))
                last = events[chain[-1]]
                assert isinstance(last, Op)
                begun = [arg for arg in event.args if isinstance(arg, TensorRef) and arg.number != one.refs[0]]
                func = sum_from if begun else sum_of_rows
                self._becomes(chain[-1], last, func, (self._made_rows(one), *begun))

    def _becomes(self, position: int, op: Op, func: Any, args: tuple[TensorRef, ...]) -> None:
        self.changes[position] = replace(op, func=func, name=func.__name__, args=args, kwargs={})

    # -- refusals -----------------------------------------------------------------------------------------------

    def _refuse_others(self) -> None:
        """Raise Refused if the step uses single elements."""
        own = frozenset(ref for one in self.lists for ref in one.own)
        for position, event in enumerate(self.old.events):
            if isinstance(event, Op) and position not in self.changes and not isinstance(event, InvokeOp):
                if any(ref.number in own for ref in event.inputs):
                    raise _refused(event.place, "uses single elements of a list to which recursive calls append")
            elif isinstance(event, InvokeOp) and any(ref.number in own for ref in event.args):
                raise _refused(event.place, "passes on elements of a list to which recursive calls append")
            elif isinstance(event, TensorPredicate) and event.ref.number in own:
                raise _refused(event.place, "asks elements of a list to which recursive calls append")
            for expr in (event.expr,) if hasattr(event, "expr") else ():
                if any(isinstance(leaf, Fetch | Size) and leaf.ref in own for leaf in leaves(expr)):
                    raise _refused(event.place, "reads elements of a list to which recursive calls append")
        if any(token[0] in ("fetch", "size") and token[1] in own for token in self.old.fetched):
            raise _refused(self.lists[0].place, "reads elements of a list to which recursive calls append")
        self._refuse_changed()
        self._refuse_leaving(own)

    def _refuse_changed(self) -> None:
        """Raise Refused if an element is changed in place before a use, which must see it as appended."""
        memory, met = self.old.memory, set(self.old.access_paths)
        changed: dict[int, int] = {}  # which memory is changed, and where first
        for position, event in enumerate(self.old.events):
            if isinstance(event, Op):
                for ref in event.outs:
                    if ref.number in met:
                        changed.setdefault(memory[ref.number], position)
                met.update(ref.number for ref in event.outs)
            for one in self.lists:
                made = self.changes.get(position)
                used = made is not None and made.args[:1] == (self._made_rows(one),)
                if used and any(changed.get(memory[ref], position) < position for ref in one.refs):
                    raise _refused(event.place, "changes what recursive calls append to a list")
        for _, recipe in self._leaving():
            for part in parts_of(recipe):
                whole = self._whole(part) if isinstance(part, NewObject) else None
                if whole is not None and any(memory[ref] in changed for ref in whole.refs):
                    raise _refused(whole.place, "changes what recursive calls append to a list")

    def _leaving(self) -> Iterator[tuple[Place, Any]]:
        """Yield the recipes of values that leave the step, with their places."""
        old = self.old
        if old.result is not None:
            yield NOWHERE, old.result
        for event in old.events:
            yield from ((event.place, recipe) for recipe in old.recipes.get(id(event), ()))

    def _whole(self, build: NewObject) -> _OutputList | None:
        """Return the list of which this is a full copy, or None."""
        refs = tuple(part.ref.number if isinstance(part, TensorOf) else -1 for part in build.items)
        known = (one for one in self.lists if one.refs == refs)
        return next(known, None) if build.cls in (list, tuple) and build.make is None else None

    def _refuse_leaving(self, own: frozenset[int]) -> None:
        """Raise Refused if single elements leave the step, or elements that alias other values."""
        memory = self.old.memory
        alone: list[int] = []  # memory of what leaves other than in a full list
        whole: list[_OutputList] = []

        def look(place: Place, recipe: Any) -> None:
            if isinstance(recipe, NewObject) and (one := self._whole(recipe)) is not None:
                whole.append(one)
                return
            if isinstance(recipe, TensorOf | TensorAt):
                if recipe.ref.number in own:
                    raise _refused(place, "lets out single elements of a list to which recursive calls append")
                alone.append(memory[recipe.ref.number])
            elif isinstance(recipe, NewObject):
                for part in inner_recipes(recipe):
                    look(place, part)

        for place, recipe in self._leaving():
            look(place, recipe)
        for n, one in enumerate(whole):
            places = [memory[ref] for ref in one.refs]
            others = {*alone, *(memory[ref] for other in whole[n + 1 :] for ref in other.refs)}
            others |= {memory[number] for number in self.old.access_paths}
            if len(set(places)) < len(places) or not others.isdisjoint(places):
                raise _refused(one.place, "lets out what shares its memory with what recursive calls append")

    # -- the new trace ------------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """Return the new trace."""
        old = self.old
        events: list[Event] = []
        places: list[int] = []
        operations = 0
        values: dict[int, torch.Tensor] = {}
        lengths = {AccessPath.grown(one.number).then(Step.SIZE, 0): one for one in self.lists}
        for position, event in enumerate(old.events):
            places.append(len(events))
            if position in self.gone:
                continue
            if isinstance(event, HeapRead) and event.access_path in lengths:
                if event.value != len(lengths[event.access_path].refs):
                    raise _refused(event.place, "asks how long a list is while recursive calls append to it")
                continue
            if position in self.changes:
                made = self.changes[position]
                events += [] if made is None else [made]
            elif isinstance(event, InvokeOp):
                events.append(replace(event, grown=tuple((number, ()) for number, _ in event.grown)))
            else:
                events.append(event)
            if isinstance(event, Op):
                operations += self.changes.get(position, event) is not None
            for one in self.lists:
                if one.after == position:
                    found = self._found(one)
                    values[self.given[one.number]] = found[0].value
                    events += found
                    operations += 1
            if isinstance(event, Op):
                self.after.append(operations)
        places.append(len(events))
        records = [
            loop_record.elsewhere(
                [places[n] for n in loop_record.starts], None if loop_record.end is None else places[loop_record.end]
            )
            for loop_record in old.loop_records
        ]
        instances = [
            replace(one, starts=tuple(places[n] for n in one.starts), end=places[one.end])
            for one in old.loop_instances
            if not any(n in self.changes for n in range(one.starts[0], one.end))
        ]
        tensors = [old.tensors[number] for number in self.kept]
        access_paths = {self.numbers[number]: access_path for number, access_path in old.access_paths.items()}
        for one in self.lists:
            tensors += [values[self.given[one.number]], None]
            access_paths[self.numbers[self.given[one.number]]] = AccessPath.grown(one.number)
        return self.made(
            [self.event(event, 0) for event in events],
            tensors=tensors,
            memory=[*(old.memory[number] for number in self.kept), *(0 for _ in range(2 * len(self.lists)))],
            access_paths=access_paths,
            loop_instances=instances,
            loop_records=records,
            loops=[
                replace(loop, starts=tuple(places[n] for n in loop.starts), end=places[loop.end]) for loop in old.loops
            ],
            plain=[replace(plain, position=places[plain.position]) for plain in old.plain],
            changed={places[position]: names for position, names in old.changed.items()},
            measured=places[old.measured] if old.measured >= 0 else old.measured,
        )  # fmt: skip

    def _found(self, one: _OutputList) -> list[Any]:
        """Return the facts of the row numbers and of their count, and the operation that gives the rows."""
        access_path, call = AccessPath.grown(one.number), self.old.events[one.after]
        assert isinstance(call, InvokeOp)
        value = torch.zeros(len(one.refs), dtype=torch.int64)
        detail = ("Tensor", "int64", tuple(value.shape), value.stride(), "cpu", False, True)
        which = TensorRef(self.given[one.number])
        return [
            HeapRead(access_path, value, "tensor", detail, place=one.place),
            HeapRead(access_path.then(Step.SIZE, 0), len(one.refs), "number", place=one.place),
            Op(_rows, "rows", (which,), {}, (self._made_rows(one),), call.modes, one.place),
        ]

    def operation(self, op: Op, after: int) -> Op:
        made = super().operation(op, after)
        if not isinstance(made, InvokeOp):
            return made
        given = ((name, passed_on(recipe, self.paths)) for name, recipe in made.given)
        return replace(made, given=tuple((name, self.recipe(recipe)) for name, recipe in given))

    def recipe(self, recipe: Any) -> Any:
        one = self._whole(recipe) if isinstance(recipe, NewObject) else None
        if one is None:
            return super().recipe(recipe)
        count = Read(AccessPath.grown(one.number).then(Step.SIZE, 0))
        rows = TensorRef(self.numbers[self._made_rows(one).number])
        return replace(recipe, items=(CollectedItems(RowOf(rows, alone=True), count),))


def _chain(events: Sequence[Event], start: int, refs: Sequence[int]) -> list[int] | None:
    """Return the positions of additions from ``start`` on that sum the elements in order, as ``sum`` does, or None."""
    first = events[start]
    if not isinstance(first, Op) or not _adds(first) or len(first.args) != 2:
        return None
    others = [arg for arg in first.args if arg != TensorRef(refs[0])]
    if len(others) != 1 or (others[0] != 0 and not isinstance(others[0], TensorRef)):
        return None
    if isinstance(others[0], TensorRef) and others[0].number in refs:
        return None
    found, total = [start], first.outs[0]
    waiting = list(refs[1:])
    for position in range(start + 1, len(events)):
        event = events[position]
        if not waiting:
            break
        if not isinstance(event, Op):
            continue
        if not _adds(event) or event.args != (total, TensorRef(waiting[0])):
            return None
        found.append(position)
        total = event.outs[0]
        waiting.pop(0)
    return None if waiting else found


def _adds(event: Op) -> bool:
    return event.name in _ADDITIONS and not event.kwargs and len(event.outs) == 1

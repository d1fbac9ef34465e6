"""The effects of a folded trace: operations that stack columns, and one event for all iterations of a loop.

In: the trace and its aligned loops. Out: the events to insert and to omit, in the tensor numbers of the old trace, with
unused numbers for what is inserted. ``truncation`` writes the folded trace.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.loops.analysis.effects import EffectMerger
from torchjanus.trace.actions import Extern, HostLoop, Op
from torchjanus.trace.events import Effectful, Trace
from torchjanus.trace.facts import HeapRead, HostComputation
from torchjanus.trace.loops.records import KEPT
from torchjanus.trace.recipes import (
    CollectedItems,
    NewObject,
    Number,
    ObjectReference,
    Recipe,
    RowOf,
    inner_recipes,
    map_recipe,
)
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch

__all__ = ["MergeableLoop", "MergedTrace"]


class MergeableLoop(Protocol):
    """A loop. ``events``: per iteration. ``made``: tensor -> (iteration, index within the iteration). ``end``: the
    position of the event before which the last iteration ended. ``trains``: its iterations compute gradients."""

    events: list[list[Any]]
    made: dict[int, tuple[int, int]]
    count: int
    trains: bool
    modes: Any

    @property
    def effect_merger(self) -> EffectMerger | None: ...

    @property
    def end(self) -> int: ...


class MergedTrace:
    """The recipes of a trace with the effects of its loops merged, and what has to be inserted. Raises NotMergeable."""

    def __init__(self, trace: Trace, loops: Sequence[MergeableLoop]) -> None:
        self.trace = trace
        self.loops = [loop for loop in loops if loop.effect_merger is not None]
        self.omitted: set[int] = set()  # effects of iterations, which are merged, by id
        self.recipes: dict[int, tuple[Recipe, ...]] = {}
        for loop in self.loops:
            assert loop.effect_merger is not None
            self.omitted.update(id(e) for events in loop.events for e in events if isinstance(e, Effectful))
            self.recipes.update(loop.effect_merger.recipes)
        outside = [e for e in trace.events if isinstance(e, Effectful) and id(e) not in self.omitted]
        for event in outside:
            self.recipes[id(event)] = tuple(map(self._recipe, trace.recipes.get(id(event), ())))
        self.computed: dict[int, HostComputation] = {}  # computations after the loops that may raise, by id
        ends = max((loop.end for loop in self.loops), default=0)
        for later in trace.events[ends:]:
            if isinstance(later, HostComputation):
                self.computed[id(later)] = replace(later, expr=self._after(later.expr))
        self.result = None if trace.result is None else self._recipe(trace.result)
        merged = [*(recipe for event in outside for recipe in self.recipes[id(event)])]
        self._check([*merged, *([] if self.result is None else [self.result])])

    def _check(self, outside: Sequence[Recipe]) -> None:
        """Check that objects of iterations are used nowhere else, and that no later call waits for one in an
        iteration."""
        built = set().union(*(loop.effect_merger.built for loop in self.loops if loop.effect_merger is not None))
        for recipe in outside:
            if any(isinstance(part, ObjectReference) and part.number in built for part in _without_iterations(recipe)):
                raise NotMergeable("loop-results", "an object that an iteration has made is used after the loop")
        leaving = self.trace.leaving()
        for loop in self.loops:
            assert loop.effect_merger is not None
            loop.effect_merger.check_memory(leaving)
            if loop.trains and any(self._has_graph(number) for number in leaving & loop.made.keys()):
                raise NotMergeable("loop-training", "a tensor with a backward graph leaves a loop that trains")
        calls = [e.number for loop in self.loops for e in loop.events[0] if isinstance(e, Extern)]
        given = (e.access_path.waits_for for e in self.trace.events if isinstance(e, HeapRead))
        if calls and any(number > min(calls) for number in given):
            raise NotMergeable("loop-native-call", "a later call needs the result of a call that iterations make")

    def _has_graph(self, number: int) -> bool:
        kind = self.trace.kinds.get(number)
        return kind is None or kind[4]

    # -- recipes --------------------------------------------------------------------------------------------------

    def _recipe(self, recipe: Any) -> Any:
        """Return the recipe of a value that leaves the call outside of the loops."""
        if isinstance(recipe, Number):
            expr = self._after(recipe.expr)
            return recipe if expr is recipe.expr else Number(expr)
        if isinstance(recipe, CollectedItems):
            return recipe
        if isinstance(recipe, NewObject) and recipe.cls in (list, tuple) and recipe.make is None:
            recipe = replace(recipe, items=tuple(self._items(recipe.items)))
        return map_recipe(recipe, self._recipe)

    def _after(self, expr: Any) -> Any:
        for loop in self.loops:
            assert loop.effect_merger is not None
            expr = loop.effect_merger.exprs.after(expr)
        return expr

    def _items(self, items: Sequence[Any]) -> Sequence[Any]:
        for loop in self.loops:
            assert loop.effect_merger is not None
            if len(items) >= loop.count:
                items = loop.effect_merger.items(items)
        return items

    def row_of(self, tensor: int) -> RowOf | None:
        """Return the recipe for a tensor of the last iteration as the last row of a column, if it is one; else None."""
        for loop in self.loops:
            assert loop.effect_merger is not None
            number, order = loop.made.get(tensor, (-1, -1))
            for column, stack in loop.effect_merger.exprs.columns.items():
                if (column.order, column.taken, number) == (order, -1, loop.count - 1):
                    return RowOf(TensorRef(stack), True)
        return None

    # -- inserted -------------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Return the numbers of the inserted tensors."""
        stacks = [stack for loop in self.loops for stack in self._columns(loop).values()]
        return [number for stack in sorted(stacks) for number in range(stack, stack + 1 + KEPT)]

    @staticmethod
    def _columns(loop: MergeableLoop) -> dict[Any, int]:
        assert loop.effect_merger is not None
        return loop.effect_merger.exprs.columns

    @functools.cached_property
    def inserted(self) -> dict[int, list[Op]]:
        """Copies of tensors that iterations pass out, made when they do so, by the number of operations before each."""
        found: dict[int, list[Op]] = {}
        for loop in self.loops:
            assert loop.effect_merger is not None
            by_place = {place: tensor for tensor, place in loop.made.items()}
            ends = loop.effect_merger.exprs.positions
            for column, stack in self._columns(loop).items():
                own = column.taken < 0
                for number in range(KEPT):
                    after = ends[number + 1] if own else ends[number] + column.taken
                    given, made = TensorRef(by_place[number, column.order]), TensorRef(stack + 1 + number)
                    modes = replace(loop.modes, grad=own)
                    place = loop.events[0][0].place
                    found.setdefault(after, []).append(
                        Op(torch.clone, "torch.clone", (given,), {}, (made,), modes, place)
                    )
        return found

    def after(self, loop: MergeableLoop) -> Iterator[Op | HostComputation | HostLoop]:
        """Yield what is inserted after the iterations of a loop."""
        if loop.effect_merger is None:
            return
        place = loop.events[0][0].place
        for column, stack in self._columns(loop).items():
            rows = [TensorRef(stack + 1 + number) for number in range(KEPT)]
            modes = replace(loop.modes, grad=column.taken < 0)
            yield Op(torch.stack, "torch.stack", (rows,), {}, (TensorRef(stack),), modes, place)
        yield from (HostComputation(expr, place) for expr in loop.effect_merger.exprs.risky)
        if loop.effect_merger.each is not None:
            yield loop.effect_merger.each

    def fetched(self) -> Iterator[tuple[Fetch, list[Any]]]:
        """Yield the fetch of each column, with what the iterations of this run fetched."""
        for loop in self.loops:
            assert loop.effect_merger is not None
            exprs = loop.effect_merger.exprs
            for fetch in exprs.listed:
                yield fetch, exprs.values(fetch, self.trace.fetched)


def _without_iterations(recipe: Recipe) -> Iterator[Recipe]:
    """Yield the parts of a recipe, except those that are merged for all iterations."""
    if not isinstance(recipe, CollectedItems):
        yield recipe
        for part in inner_recipes(recipe):
            yield from _without_iterations(part)

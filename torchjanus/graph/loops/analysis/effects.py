"""Merges the writes and extern calls of a loop's iterations into one description for all iterations.

The values of the iterations are compared: where each has a tensor of its own, there is a column with one row per
iteration; where an untraced integer follows the iteration, there is an induction variable. Loop-carried numbers are
merged by ``host_recurrences``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.loops.analysis.host_recurrences import ExpressionMerger
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, HostLoop
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.recurrences import Form, kind_of
from torchjanus.trace.recipes import (
    CollectedItems,
    ConditionalItem,
    Constant,
    ExistingObject,
    NewObject,
    Number,
    ObjectReference,
    Recipe,
    RowOf,
    TensorAt,
    TensorOf,
    parts_of,
)
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr, Traced, plain, trace_value

__all__ = ["EffectMerger"]

# Mutations whose effect does not depend on earlier iterations.
_GROWING = frozenset({"append", "appendleft", "add", "extend", "discard"})
_WRITES = frozenset({"item", "field", "cell"})
_Effect = HeapWrite | ContainerMutation | Extern


class EffectMerger:
    """The merged effects of one loop. Its methods raise NotMergeable where the iterations differ."""

    def __init__(
        self,
        trace: Trace,
        exprs: ExpressionMerger,
        effects: Sequence[Sequence[_Effect]],
        form: Callable[[Sequence[Any], Sequence[_Effect]], Form | None] = lambda values, at: None,
    ) -> None:
        """``effects``: the writes and extern calls of each iteration. ``form``: returns the closed form of untraced
        numbers that iterations have computed before the given events, or None."""
        self.trace = trace
        self.form = form
        self._row: Sequence[_Effect] = ()  # the effects that are being merged
        self.exprs = exprs
        # Per iteration: number of a new object -> its index within the iteration.
        self._known: list[dict[int, int]] = [{} for _ in effects]
        self.built: set[int] = set()  # numbers of all new objects
        self.recipes: dict[int, tuple[Recipe, ...]] = {}  # recipes of the merged events, by their id
        self.each: HostLoop | None = None
        if any(len(row) != len(effects[0]) for row in effects):
            raise NotMergeable("loop-effects", "iterations write or print different numbers of times")
        if effects[0]:
            events = tuple(self._event(row) for row in zip(*effects, strict=True))
            self.each = HostLoop(exprs.count, events, events[0].place)

    # -- events ---------------------------------------------------------------------------------------------------

    def _event(self, row: Sequence[_Effect]) -> _Effect:
        """Return one event for the same effect of all iterations."""
        first = row[0]
        if any(type(event) is not type(first) for event in row):
            raise NotMergeable("loop-effects", "the iterations write or print differently")
        self._row = row
        recipes = [list(self.trace.recipes.get(id(event), ())) for event in row]
        if len({len(some) for some in recipes}) > 1:
            raise NotMergeable("loop-effects", "iterations write or print different numbers of values")
        merged = first
        if isinstance(first, Extern):
            same = {(token_of(e.func), len(e.args), tuple(e.kwargs), e.draws) for e in row if isinstance(e, Extern)}
            if len(same) > 1 or first.draws or any(e.handled for e in row if isinstance(e, Extern)):
                raise NotMergeable(
                    "loop-native-call", "iterations make different extern calls, or draw, or handle their errors"
                )
        elif isinstance(first, ContainerMutation):
            if len({event.token for event in row}) > 1 or first.method not in _GROWING:
                raise NotMergeable("loop-effects", "iterations change a container in a way other than appending")
        else:
            merged, key = self._stored(first, row)
            if key is not None:
                for some, event in zip(recipes, row, strict=True):
                    assert isinstance(event, HeapWrite)
                    if not isinstance(event.key, Traced):
                        some.append(Constant(event.key))
        values = tuple(self.recipe(column) for column in zip(*recipes, strict=True))
        self._row = ()
        if merged is first:
            merged = replace(first)  # a copy, since recipes are found by the id
        self.recipes[id(merged)] = values
        return merged

    def _stored(self, first: HeapWrite, row: Sequence[Any]) -> tuple[HeapWrite, Any]:
        """Return the write, and its key if the iterations have different ones."""
        if first.how not in _WRITES or len({(e.how, e.base.token) for e in row}) > 1:
            raise NotMergeable("loop-effects", "iterations write to different objects")
        keys = [event.key for event in row]
        if len({(type(key).__name__, token_of(plain(key))) for key in keys}) == 1 and not isinstance(keys[0], Traced):
            return first, None
        if len({type(key) for key in keys}) > 1:
            raise NotMergeable("loop-effects", "iterations write under keys of different kinds")
        expr = self.exprs.merged([key.expr if isinstance(key, Traced) else key for key in keys])
        return replace(first, key=trace_value(plain(keys[0]), expr)), expr

    # -- values ---------------------------------------------------------------------------------------------------

    def recipe(self, row: Sequence[Recipe]) -> Recipe:
        """Return one recipe for the recipes of all iterations."""
        first = row[0]
        if any(type(one) is not type(first) for one in row):
            raise NotMergeable("loop-effects", "iterations write values of different kinds")
        match first:
            case TensorOf():
                refs = [one.ref.number for one in row]  # type: ignore[union-attr]
                return self._tensor(refs, -1, first)
            case TensorAt():
                refs = [one.ref.number for one in row]  # type: ignore[union-attr]
                taken = {self.exprs.taken(k, one.after) for k, one in enumerate(row)}  # type: ignore[union-attr]
                if len(taken) > 1:
                    raise NotMergeable("loop-effects", "iterations write tensors as they are at different places")
                return self._tensor(refs, taken.pop(), first)
            case Number():
                return Number(self.exprs.merged([one.expr for one in row]))  # type: ignore[union-attr]
            case Constant() if type(first.value) is int:
                merged = self.exprs.merged([one.value for one in row])  # type: ignore[union-attr]
                return Number(merged) if isinstance(merged, Expr) else first
            case Constant() if type(first.value) is float and len({one.token for one in row}) > 1:
                form = self.form([one.value for one in row], self._row) if self._row else None  # type: ignore[union-attr]
                if form is None or kind_of(form) is not float:
                    raise NotMergeable("loop-numbers", "iterations write floats that follow no formula")
                return Number(self.exprs.recurrence(form))
            case Constant() | ExistingObject():
                if len({one.token for one in row}) > 1:
                    raise NotMergeable("loop-effects", "iterations write different constants or objects")
                return first
            case NewObject():
                return self._build(row)
            case ObjectReference():
                return self._again(row)
            case ConditionalItem():
                items, whens = zip(*((one.item, one.when) for one in row), strict=True)  # type: ignore[union-attr]
                return ConditionalItem(self.recipe(items), Number(self.exprs.merged([one.expr for one in whens])))
        raise NotMergeable("loop-effects", "iterations write a value that cannot be made for each of them")

    def _tensor(self, refs: Sequence[int], taken: int, first: Recipe) -> Recipe:
        if self.exprs.is_outside(refs):
            return first
        return RowOf(TensorRef(self.exprs.column(refs, taken)))

    def _build(self, row: Sequence[Any]) -> NewObject:
        first = row[0]
        alike = {
            (
                *(id(one.cls), id(one.make), one.maxlen, len(one.items)),
                *(name for name, _ in one.attributes),
                *(id(descriptor) for descriptor, _ in one.fields),
            )
            for one in row
        }
        if len(alike) > 1:
            raise NotMergeable("loop-effects", "iterations make objects of different shapes")
        for known, built in zip(self._known, row, strict=True):
            known[built.number] = len(known)
            self.built.add(built.number)
        items = tuple(self._item(column) for column in zip(*(b.items for b in row), strict=True))
        attributes = zip(*(b.attributes for b in row), strict=True)
        fields = zip(*(b.fields for b in row), strict=True)
        return NewObject(
            first.number,
            first.cls,
            maxlen=first.maxlen,
            make=first.make,
            items=items,
            attributes=tuple((column[0][0], self.recipe([one for _, one in column])) for column in attributes),
            fields=tuple((column[0][0], self.recipe([one for _, one in column])) for column in fields),
        )

    def _item(self, column: Sequence[Any]) -> Any:
        if isinstance(column[0], tuple):  # a key and a value
            return tuple(self.recipe(part) for part in zip(*column, strict=True))
        return self.recipe(column)

    def _again(self, row: Sequence[Any]) -> Recipe:
        made = [known.get(one.number) for known, one in zip(self._known, row, strict=True)]
        if None in made:
            if len({one.number for one in row}) > 1 or row[0].number in self.built:
                raise NotMergeable("loop-effects", "iterations write an object that others have made")
        elif len(set(made)) > 1:
            raise NotMergeable("loop-effects", "iterations write different objects of their own")
        return row[0]  # type: ignore[no-any-return]

    # -- values after the loop ----------------------------------------------------------------------------------------

    def items(self, items: Sequence[Any]) -> list[Any]:
        """Return the items of a list or tuple, with those that the iterations have put there merged into one."""
        iterations = len(self._known)
        self._known = [{} for _ in self._known]  # an object shared with other effects is not merged here
        for start in range(len(items) - iterations + 1):
            if self._is_of(items[start], 0) and self._is_of(items[start + iterations - 1], iterations - 1):
                merged = self.recipe(items[start : start + iterations])
                return [*items[:start], CollectedItems(merged, self.exprs.count), *items[start + iterations :]]
        return list(items)

    def _is_of(self, recipe: Any, number: int) -> bool:
        """Whether the recipe contains a tensor or number of this iteration."""
        if isinstance(recipe, tuple):
            return False
        for part in parts_of(recipe):
            if isinstance(part, TensorOf | TensorAt) and self.exprs.iteration_of(part.ref.number) == number:
                return True
            if isinstance(part, Number) and self.exprs.latest(part.expr) == number:
                return True
        return False

    def check_memory(self, leaving: frozenset[int]) -> None:
        """Check that no tensor that leaves the call shares memory with a row: rows leave it as separate tensors.
        ``leaving``: all tensors that leave the call. Raises NotMergeable."""
        memory = self.trace.memory
        given = {memory[number] for number in self.trace.access_paths}
        for refs in self.exprs.own():
            rows = [memory[number] for number in refs]
            others = {memory[number] for number in leaving.difference(refs)}
            if len(set(rows)) < len(rows) or not (given | others).isdisjoint(rows):
                raise NotMergeable(
                    "loop-results",
                    "a tensor that an iteration writes shares its memory with another that leaves the step",
                )

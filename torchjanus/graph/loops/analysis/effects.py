"""What the iterations of a loop write and call, and the lists that grow in them, told once for all iterations.

The iterations' values are compared with one another: where each speaks of a tensor of its own there is a column, in
which each iteration has a row; where a plain integer counts iterations there is a InductionVariable. Numbers that are
handed on from iteration to iteration are ``loop_scan``'s. Knows traces, not how they are rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.graph.loops.analysis.host_recurrences import Exprs, NotMergeable
from torchjanus.trace.actions import Each, Extern, Mutation, Stored
from torchjanus.trace.events import Trace
from torchjanus.trace.recipes import (
    Again,
    Build,
    Constant,
    FoundAt,
    Number,
    Perhaps,
    Recipe,
    Repeat,
    RowOf,
    TensorAt,
    TensorOf,
    parts_of,
)
from torchjanus.trace.recurrences import Form, kind_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr, Traced, plain, trace_value

__all__ = ["Telling"]

# Mutations that do the same in each iteration, whatever the iterations before have done.
_GROWING = frozenset({"append", "appendleft", "add", "extend", "discard"})
_WRITES = frozenset({"item", "field", "cell"})
_Effect = Stored | Mutation | Extern


class Telling:
    """One loop's iterations. Its methods raise NotMergeable where the iterations do not do the same."""

    def __init__(
        self,
        trace: Trace,
        exprs: Exprs,
        effects: Sequence[Sequence[_Effect]],
        form: Callable[[Sequence[Any], Sequence[_Effect]], Form | None] = lambda values, at: None,
    ) -> None:
        """``effects``: what each iteration writes and calls. ``form``: how iterations have made plain numbers by
        then."""
        self.trace = trace
        self.form = form
        self._row: Sequence[_Effect] = ()  # which of them are being told
        self.exprs = exprs
        # The new objects of each iteration by their number: in which order the iteration makes them.
        self._known: list[dict[int, int]] = [{} for _ in effects]
        self.built: set[int] = set()  # all of them
        self.recipes: dict[int, tuple[Recipe, ...]] = {}  # of the events that are told, by their id
        self.each: Each | None = None
        if any(len(row) != len(effects[0]) for row in effects):
            raise NotMergeable
        if effects[0]:
            events = tuple(self._event(row) for row in zip(*effects, strict=True))
            self.each = Each(exprs.count, events, events[0].place)

    # -- events ---------------------------------------------------------------------------------------------------

    def _event(self, row: Sequence[_Effect]) -> _Effect:
        first = row[0]
        if any(type(event) is not type(first) for event in row):
            raise NotMergeable
        self._row = row
        recipes = [list(self.trace.recipes.get(id(event), ())) for event in row]
        if len({len(some) for some in recipes}) > 1:
            raise NotMergeable
        merged = first
        if isinstance(first, Extern):
            same = {(token_of(e.func), len(e.args), tuple(e.kwargs), e.draws) for e in row if isinstance(e, Extern)}
            if len(same) > 1 or first.draws or any(e.handled for e in row if isinstance(e, Extern)):
                raise NotMergeable
        elif isinstance(first, Mutation):
            if len({event.token for event in row}) > 1 or first.method not in _GROWING:
                raise NotMergeable
        else:
            merged, key = self._stored(first, row)
            if key is not None:
                for some, event in zip(recipes, row, strict=True):
                    assert isinstance(event, Stored)
                    if not isinstance(event.key, Traced):
                        some.append(Constant(event.key))
        values = tuple(self.recipe(column) for column in zip(*recipes, strict=True))
        self._row = ()
        if merged is first:
            merged = replace(first)  # an event of its own: recipes are found by the id
        self.recipes[id(merged)] = values
        return merged

    def _stored(self, first: Stored, row: Sequence[Any]) -> tuple[Stored, Any]:
        """The write, and its key if that is another one in each iteration."""
        if first.how not in _WRITES or len({(e.how, e.base.token) for e in row}) > 1:
            raise NotMergeable
        keys = [event.key for event in row]
        if len({(type(key).__name__, token_of(plain(key))) for key in keys}) == 1 and not isinstance(keys[0], Traced):
            return first, None
        if len({type(key) for key in keys}) > 1:
            raise NotMergeable
        expr = self.exprs.merged([key.expr if isinstance(key, Traced) else key for key in keys])
        return replace(first, key=trace_value(plain(keys[0]), expr)), expr

    # -- values ---------------------------------------------------------------------------------------------------

    def recipe(self, row: Sequence[Recipe]) -> Recipe:
        """What the iterations' recipes have in common: one of any iteration."""
        first = row[0]
        if any(type(one) is not type(first) for one in row):
            raise NotMergeable
        match first:
            case TensorOf():
                refs = [one.ref.number for one in row]  # type: ignore[union-attr]
                return self._tensor(refs, -1, first)
            case TensorAt():
                refs = [one.ref.number for one in row]  # type: ignore[union-attr]
                taken = {self.exprs.taken(k, one.after) for k, one in enumerate(row)}  # type: ignore[union-attr]
                if len(taken) > 1:
                    raise NotMergeable
                return self._tensor(refs, taken.pop(), first)
            case Number():
                return Number(self.exprs.merged([one.expr for one in row]))  # type: ignore[union-attr]
            case Constant() if type(first.value) is int:
                merged = self.exprs.merged([one.value for one in row])  # type: ignore[union-attr]
                return Number(merged) if isinstance(merged, Expr) else first
            case Constant() if type(first.value) is float and len({one.token for one in row}) > 1:
                form = self.form([one.value for one in row], self._row) if self._row else None  # type: ignore[union-attr]
                if form is None or kind_of(form) is not float:
                    raise NotMergeable
                return Number(self.exprs.reckoned(form))
            case Constant() | FoundAt():
                if len({one.token for one in row}) > 1:
                    raise NotMergeable
                return first
            case Build():
                return self._build(row)
            case Again():
                return self._again(row)
            case Perhaps():
                items, whens = zip(*((one.item, one.when) for one in row), strict=True)  # type: ignore[union-attr]
                return Perhaps(self.recipe(items), Number(self.exprs.merged([one.expr for one in whens])))
        raise NotMergeable

    def _tensor(self, refs: Sequence[int], taken: int, first: Recipe) -> Recipe:
        if self.exprs.is_outside(refs):
            return first
        return RowOf(TensorRef(self.exprs.column(refs, taken)))

    def _build(self, row: Sequence[Any]) -> Build:
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
            raise NotMergeable
        for known, built in zip(self._known, row, strict=True):
            known[built.number] = len(known)
            self.built.add(built.number)
        items = tuple(self._item(column) for column in zip(*(b.items for b in row), strict=True))
        attributes = zip(*(b.attributes for b in row), strict=True)
        fields = zip(*(b.fields for b in row), strict=True)
        return Build(
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
                raise NotMergeable
        elif len(set(made)) > 1:
            raise NotMergeable
        return row[0]  # type: ignore[no-any-return]

    # -- what comes after the iterations ------------------------------------------------------------------------------

    def items(self, items: Sequence[Any]) -> list[Any]:
        """The items of a list or tuple, with those that the iterations have put there as one."""
        iterations = len(self._known)
        self._known = [{} for _ in self._known]  # what they hold together with others is nowhere made for both
        for start in range(len(items) - iterations + 1):
            if self._speaks_of(items[start], 0) and self._speaks_of(items[start + iterations - 1], iterations - 1):
                merged = self.recipe(items[start : start + iterations])
                return [*items[:start], Repeat(merged, self.exprs.count), *items[start + iterations :]]
        return list(items)

    def _speaks_of(self, recipe: Any, number: int) -> bool:
        if isinstance(recipe, tuple):
            return False
        for part in parts_of(recipe):
            if isinstance(part, TensorOf | TensorAt) and self.exprs.iteration_of(part.ref.number) == number:
                return True
            if isinstance(part, Number) and self.exprs.latest(part.expr) == number:
                return True
        return False

    def check_memory(self, leaving: frozenset[int]) -> None:
        """Rows leave the call as tensors of their own: nothing else that does may lie in the memory of one.
        ``leaving``: all tensors that leave the call."""
        memory = self.trace.memory
        given = {memory[number] for number in self.trace.access_paths}
        for refs in self.exprs.own():
            rows = [memory[number] for number in refs]
            others = {memory[number] for number in leaving.difference(refs)}
            if len(set(rows)) < len(rows) or not (given | others).isdisjoint(rows):
                raise NotMergeable

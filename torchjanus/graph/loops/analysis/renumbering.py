"""Renumbers events, expressions and recipes of a trace of which loops are cut down: tensors, operations and objects.

Knows nothing of which events are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import map_parts
from torchjanus.graph.loops.analysis.alignment import AlignedLoop
from torchjanus.graph.loops.analysis.merged_effects import MergedTrace
from torchjanus.trace.actions import Extern, HeapWrite, HostLoop, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HostComputation, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.loops.records import KEPT
from torchjanus.trace.recipes import (
    CollectedItems,
    Constant,
    NewObject,
    Number,
    ObjectReference,
    RowOf,
    TensorAt,
    TensorOf,
    map_recipe,
)
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, Size, Traced, plain, traced_key

__all__ = ["RenumberedRef", "RenumberedTrace"]


class RenumberedRef(TensorRef):
    """A tensor that already has its new number."""


@dataclass(slots=True)
class RenumberedTrace:
    """The new numbers, from a trace ``old`` and the loops that are cut down in it. ``inside``: the loop to which what
    is renumbered belongs."""

    old: Trace
    loops: list[AlignedLoop]
    numbers: dict[int, int] = field(default_factory=dict)  # old tensor -> new
    after: list[int] = field(default_factory=list)  # old number of operations before a position -> new number
    within: dict[tuple[int, int], int] = field(default_factory=dict)  # the same for a loop's last iteration, by its id
    recipes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    fetched: dict[Any, Any] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # tensor of the last iteration -> that of the last kept one
    gone: set[int] = field(default_factory=set)  # tensors of the other iterations
    counted: dict[int, list[Any]] = field(default_factory=dict)  # last value of induction variables -> expressions
    lost: set[int] = field(default_factory=set)  # rows of a tensor that only dropped iterations use
    inside: AlignedLoop | None = None
    merged: MergedTrace = field(init=False)
    builds: dict[int, int] = field(default_factory=dict)  # old number of a new object -> new one
    externs: int = 0  # extern calls of dropped iterations so far

    def number(self, tensor: int) -> int:
        """Return the new number of a tensor. Raises NotMergeable."""
        if self.inside is None or tensor not in self.inside.made:
            if tensor in self.gone:
                raise NotMergeable("loop-results", "what an iteration before the last has made is used after the loop")
            tensor = self.last.get(tensor, tensor)
        if tensor not in self.numbers:
            raise NotMergeable("loop-results", "a tensor of the loop is used where it is not known")
        return self.numbers[tensor]

    def event(self, event: Any) -> Any:
        """Return an event, renumbered."""
        made = event
        if isinstance(event, Op):
            made = replace(
                event, args=self._values(event.args), kwargs=self._values(event.kwargs), outs=self._outs(event)
            )
        elif isinstance(event, TensorPredicate):
            made = replace(event, ref=TensorRef(self.number(event.ref.number)), after=self._position(event.after))
        elif isinstance(event, NumberPredicate | Specialization | HostComputation):
            made = replace(event, expr=self.expr(event.expr))
        elif isinstance(event, Extern):
            made = replace(event, after=self._position(event.after), number=event.number - self.externs)
        elif isinstance(event, HostLoop):
            made = replace(event, count=self.expr(event.count), events=tuple(map(self.event, event.events)))
        elif isinstance(event, HeapWrite) and isinstance(event.key, Traced):
            made = replace(event, key=traced_key(plain(event.key), self.expr(event.key.expr)))
        if id(event) in self.merged.recipes:
            self.recipes[id(made)] = tuple(map(self.recipe, self.merged.recipes[id(event)]))
        return made

    def _outs(self, op: Op) -> tuple[TensorRef, ...]:
        """Return the outputs: an unbinding whose rows the iterations use keeps the rows of the kept iterations."""
        return tuple(
            ref if isinstance(ref, RenumberedRef) else TensorRef(self.number(ref.number))
            for ref in op.outs
            if isinstance(ref, RenumberedRef) or ref.number not in self.lost
        )

    def _position(self, after: int) -> int:
        inside = self.within.get((id(self.inside), after))
        return self.after[after] if inside is None else inside

    def _values(self, value: Any) -> Any:
        if isinstance(value, TensorRef):
            return TensorRef(value.number if isinstance(value, RenumberedRef) else self.number(value.number))
        if isinstance(value, list | tuple) and value and all(isinstance(part, TensorRef) for part in value):
            value = self._all_iterations(value)
        made = map_parts(value, self._values)
        return self.expr(value) if made is value else made

    def _all_iterations(self, value: Any) -> Any:
        """Replace, within a sequence of tensors, the tensors of all iterations (first to last, or last to first) by
        those of the kept iterations. There may be more before and after them (``[y, *rows]``)."""
        found = list(value)
        for loop in self.loops:
            at = 0 if loop.until is None else len(found)
            while at + loop.count <= len(found):
                number, order = loop.made.get(found[at].number, (-1, -1)) if type(found[at]) is TensorRef else (-1, -1)
                numbers = range(loop.count) if not number else range(loop.count - 1, -1, -1)
                refs, whole = found[at : at + loop.count], [(n, order) for n in numbers]
                if [loop.made.get(ref.number) for ref in refs if type(ref) is TensorRef] == whole:
                    rows = refs[-KEPT:] if number else refs[:KEPT]
                    found[at : at + loop.count] = [RenumberedRef(self.numbers[ref.number]) for ref in rows]
                    at += KEPT
                else:
                    at += 1
        return type(value)(found)

    def expr(self, expr: Any) -> Any:
        """Return an expression, renumbered."""
        if isinstance(expr, Fetch):
            return replace(expr, ref=self.number(expr.ref), after=self._position(expr.after))
        if isinstance(expr, Size) and self.inside is not None and expr.ref in self.inside.made:
            return self.old.fetched[expr.token]
        if isinstance(expr, Size) and self.inside is not None and expr.ref in self.inside.rows:
            return self._of_row(expr, self.inside)
        if isinstance(expr, Size):
            return replace(expr, ref=self.number(expr.ref), after=self._position(expr.after))
        if isinstance(expr, Apply):
            args = tuple(self.expr(arg) for arg in expr.args)
            known = self.inside is not None and not any(isinstance(arg, Expr) for arg in args)
            return expr.func(*args) if known else Apply(expr.func, args)
        return expr

    def outside(self, expr: Expr) -> Any:
        """Return an expression over values from outside of the loops, renumbered."""
        self.inside = None
        return self.expr(expr)

    def _of_row(self, expr: Size, inside: AlignedLoop) -> Size:
        """Return the size of a row as a size of the tensor that was unbound."""
        source = self.old.events[inside.rows[expr.ref][0]]
        assert isinstance(source, Op)
        along = source.args[1] if len(source.args) > 1 else source.kwargs.get("dim", 0)
        if along != 0 or expr.dim < 0:
            raise NotMergeable("loop-sizes", "the size of a row is asked for that is not one along the first dimension")
        made = Size(self.number(source.args[0].number), expr.dim + 1, self._position(inside.positions[0]))
        self.fetched[made.token] = self.old.fetched[expr.token]
        return made

    def fetch(self, token: Any, value: Any) -> None:
        """Record a fetched number or size under its new name."""
        try:
            if token[0] == "fetch":
                self.fetched["fetch", self.number(token[1]), self._position(token[2]), *token[3:]] = value
            elif token[0] == "size":
                self.fetched["size", self.number(token[1]), token[2], self._position(token[3])] = value
        except NotMergeable:
            return  # it is unused, or the expression that uses it raises as well

    def recipe(self, recipe: Any) -> Any:
        """Return a recipe, renumbered."""
        if isinstance(recipe, TensorOf) and (row := self.merged.row_of(recipe.ref.number)) is not None:
            recipe = row
        if isinstance(recipe, TensorOf):
            return replace(recipe, ref=TensorRef(self.number(recipe.ref.number)))
        if isinstance(recipe, RowOf):
            return replace(recipe, ref=TensorRef(self.number(recipe.ref.number)))
        if isinstance(recipe, ObjectReference):
            return ObjectReference(self._build(recipe.number))
        if isinstance(recipe, TensorAt):
            return TensorAt(TensorRef(self.number(recipe.ref.number)), self._position(recipe.after))
        if isinstance(recipe, Constant) and type(recipe.value) is int and recipe.value in self.counted:
            found = {expr.token: expr for expr in self.counted[recipe.value]}
            if len(found) > 1:
                raise NotMergeable(
                    "loop-count-used", "it is not known which loop has counted a number that leaves the step"
                )
            return Number(*found.values())
        if isinstance(recipe, Number):
            return Number(self.expr(recipe.expr))
        made = map_recipe(recipe, self.recipe)
        if isinstance(made, NewObject):
            return replace(made, number=self._build(made.number))
        return replace(made, count=self.expr(made.count)) if isinstance(made, CollectedItems) else made

    def _build(self, number: int) -> int:
        """Return the new number of a new object: the number of new objects changes with the trip count."""
        return self.builds.setdefault(number, len(self.builds))

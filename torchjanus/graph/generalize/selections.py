"""Move selections (``x[mask]``, ``nonzero``) from host calls at cuts into the graph: a rewrite of traces.

This is possible where Python does not need the number of selected elements before the commit. Then the graph is not
cut. Knows nothing of how a graph is made.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.graph.generalize.schedule import Schedule
from torchjanus.graph.ir.passes import Part, Pass, PassList, Stage
from torchjanus.graph.ir.repetition import begin_iterations
from torchjanus.graph.operators.data_sizes import count, finding, found
from torchjanus.trace.actions import BatchedExtern, ContainerMutation, Extern, HeapWrite, HostLoop, InvokeOp, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.expressions import map_expr
from torchjanus.trace.facts import HeapRead, HostComputation, KeyLookup, NumberPredicate, Specialization
from torchjanus.trace.operands import expressions_in, refs_in
from torchjanus.trace.operations import ops_of
from torchjanus.trace.recipes import ExistingObject, TensorAt, TensorOf, parts_of
from torchjanus.trace.rewriting import AddingRewriter
from torchjanus.trace.terms import TensorRef, symbol_token
from torchjanus.trace.values import Apply, Expr, Fetch, Read, Size, Traced, leaves

_RESIZING = ("resize_", "set_", "data.__set__")

__all__ = ["SELECT", "SELECTIONS", "as_read", "finds", "made_sizes", "with_selections"]


def with_selections(traces: Sequence[Trace], plan: Schedule) -> list[Trace] | None:
    """Return the runs with selections in the graph where ``plan`` cuts it for them; None where there are none."""
    last = traces[-1]
    # Selections within iterations and recursive calls are not supported.
    if any(isinstance(e, HostLoop | BatchedExtern | InvokeOp) or _begins_iterations(e) for e in last.events):
        return None
    cut = [event for stage in plan.stages[1:] for event in stage if finding(event.func)]
    chosen = {one.number: one for event in cut if (one := _selection(last, event)) is not None}
    late = _late(last, plan)
    for number in _known_to_python(last, late):
        chosen.pop(number, None)
    return [_SelectionRewriter(trace, chosen, _late(trace, plan)).trace() for trace in traces] if chosen else None


SELECT = Pass(
    "select_in_graph",
    Stage.TRACE,
    with_selections,
    "Lets the graph select (`x[mask]`, `nonzero`) where Python need not know how many elements there are.",
    contextual=True,
)
SELECTIONS = PassList(Part.SELECTIONS, (SELECT,))


def _late(trace: Trace, plan: Schedule) -> frozenset[int]:
    """Return the ids of events (and of the run itself, for its result) whose values are needed only after the graph has
    run. Empty where tensors may be resized."""
    if any(event.name.endswith(_RESIZING) for event in ops_of(trace.events)):
        return frozenset()
    externs = (event for event in trace.events if isinstance(event, Extern) and event.number not in plan.early)
    return frozenset(
        map(
            id,
            (
                trace,
                *(e for e in trace.events if isinstance(e, HeapWrite | ContainerMutation | HostComputation)),
                *externs,
            ),
        )
    )


def finds(op: Op) -> bool:
    """Whether the operation is such a selection."""
    return op.func is found


def as_read(expr: Any, trace: Trace) -> Any:
    """Return an expression with each size of a selection as the host would read it, had it made the selection.
    ``trace``: the run before the rewrite."""

    def read(part: Any) -> Any:
        access_path = trace.access_paths.get(part.ref) if isinstance(part, Size) else None
        return part if access_path is None else Read(access_path.then(Step.SIZE, part.dim))

    return map_expr(expr, read)


def made_sizes(ops: Sequence[Op]) -> Iterator[tuple[Any, Size]]:
    """Yield the sizes of selections, each with a key that is equal for equal sizes: under masks that are computed
    alike. The graph checks that no alias has changed a mask in between."""
    known: dict[int, int] = {}  # tensor number -> value number: equal where tensors are computed alike
    numbers: dict[Any, int] = {}

    def merged(value: Any) -> Any:
        return ("computed", known.get(value.number, -1 - value.number)) if isinstance(value, TensorRef) else value

    for after, op in enumerate(ops, 1):
        if not all(map(_is_plainly_given, op.args)) or op.kwargs or op.draws or len(op.outs) != 1:
            known.update((ref.number, numbers.setdefault((after, ref), len(numbers))) for ref in op.outs)
            continue
        what = (op.name, *(symbol_token(part) if part is merged(part) else merged(part) for part in op.args))
        known[op.outs[0].number] = numbers.setdefault(what, len(numbers))
        if finds(op):
            yield what, Size(op.outs[0].number, 0, after)


def _is_plainly_given(value: Any) -> bool:
    """Whether the argument is a tensor, or contains none."""
    return isinstance(value, TensorRef) or not any(True for _ in refs_in(value))


@dataclass(frozen=True, slots=True)
class _Selection:
    """Extern call ``number`` that selects, the operation ``marked`` that makes its argument, and its ``result``."""

    number: int
    how: str
    marked: int  # index among the operations of the run
    least: int
    result: int


def _begins_iterations(event: Any) -> bool:
    return isinstance(event, Op) and event.func is begin_iterations


def _selection(trace: Trace, event: Extern) -> _Selection | None:
    """Return the selection that an extern call makes, or None where the graph cannot make it."""
    access_path = AccessPath.extern(event.number, "")
    results = [number for number, where in trace.access_paths.items() if where == access_path]
    ops = ops_of(trace.events)
    recipes = trace.recipes.get(id(event), ())
    least = event.kwargs.get("minlength", 0)
    plain = event.kwargs.keys() <= {"minlength"} and type(least) is int and len(event.args) == 1
    if not plain or not event.after or len(results) != 1 or not recipes or not isinstance(recipes[0], TensorAt):
        return None
    marked, given = ops[event.after - 1], recipes[0].ref
    used = sum(ref == given for op in ops for ref in op.inputs)
    if marked.func is not torch.Tensor.detach or given not in marked.outs or used:
        return None
    return _Selection(event.number, finding(event.func), event.after - 1, least, results[0])


def _known_to_python(trace: Trace, late: Container[int]) -> Iterator[int]:
    """Yield the extern calls whose results Python uses other than in operations. Events that are ``late`` may use the
    number of selected elements."""
    for event in trace.events:
        match event:
            case NumberPredicate() | Specialization() | HostComputation():
                yield from _read_by(event.expr, id(event) in late)
            case KeyLookup() | HeapWrite() if isinstance(event.key, Traced):
                yield from _read_by(event.key.expr)
            case HeapRead(access_path=access_path):
                if not _is_plain(event):
                    yield access_path.waits_for - 1
                continue
        for name in ("base", "access_path", "first", "second"):
            if isinstance(path := getattr(event, name, None), AccessPath):
                yield path.waits_for - 1
    yield from _known_to(trace.result, id(trace) in late, False)
    for event in trace.events:
        for recipe in trace.recipes.get(id(event), ()):
            yield from _known_to(recipe, id(event) in late, isinstance(event, Extern))


def _known_to(recipe: Any, late: bool, native: bool) -> Iterator[int]:
    """Yield the extern calls whose results a recipe uses other than as tensors. ``native``: native code takes it."""
    for expr in expressions_in(recipe):
        yield from _read_by(expr, late)
    for part in parts_of(recipe):
        if isinstance(part, ExistingObject) and (
            part.access_path.step is not Step.EXTERN or (native and part is not recipe)
        ):
            yield part.access_path.waits_for - 1


def _is_count(access_path: AccessPath) -> bool:
    """Whether the access path is the number of elements that an extern call has selected."""
    return (
        access_path.step is Step.SIZE
        and access_path.key == 0
        and access_path.base is not None
        and access_path.base.step is Step.EXTERN
    )


def _is_plain(event: HeapRead) -> bool:
    """Whether the read is the tensor that a call returns, or a size of it."""
    step, base = event.access_path.step, event.access_path.base
    if step is Step.EXTERN:
        return event.kind == "tensor"
    return base is not None and base.step is Step.EXTERN and step is Step.SIZE


def _read_by(expr: Expr, late: bool = False) -> Iterator[int]:
    read = (leaf.access_path for leaf in leaves(expr) if isinstance(leaf, Read))
    yield from (access_path.waits_for - 1 for access_path in read if not (late and _is_count(access_path)))


class _SelectionRewriter(AddingRewriter):
    """Rewrites a run: operations of the graph replace the host's selections. Where a ``late`` event needs the number of
    elements, the graph counts them at the end and the event fetches that."""

    def __init__(self, old: Trace, chosen: Mapping[int, _Selection], late: Container[int]) -> None:
        super().__init__(old)
        self._late = late
        self._leaving = False  # whether the values rewritten now leave the call
        self._ops = ops_of(old.events)
        self._counts: dict[tuple[int, int], Fetch] = {}
        self._fetched: dict[Any, int] = {}
        self._selected = {one.result for one in chosen.values()}
        for op in self._ops:  # and what is computed from them
            if any(ref.number in self._selected for ref in op.inputs):
                self._selected.update(ref.number for ref in op.outs)
        self._marked = {one.marked: one for one in chosen.values()}
        self._access_paths = {AccessPath.extern(number, ""): one for number, one in chosen.items()}

    def _selection(self, access_path: AccessPath) -> _Selection | None:
        return self._access_paths.get(access_path)

    def operation(self, op: Op, after: int) -> Op:
        one = self._marked.get(after)
        if one is None:
            return super().operation(op, after)
        args = (one.how, *self.values(op.args[:1], after), one.least)
        return replace(op, func=found, name=found.__name__, args=args, kwargs={}, outs=(TensorRef(one.result),))

    def expr(self, expr: Any) -> Any:
        if isinstance(expr, Read) and expr.access_path.step is Step.SIZE and expr.access_path.base is not None:
            one = self._selection(expr.access_path.base)
            if one is not None:
                dim = expr.access_path.key
                if self._leaving:
                    return self._count(one.result, dim, self._sizes_of(one)[dim])
                return Size(one.result, 0, one.marked + 1) if dim == 0 else self._sizes_of(one)[dim]
        if self._leaving and isinstance(expr, Size) and expr.ref in self._selected:
            return self._count(expr.ref, expr.dim, self.old.fetched[expr.token])
        if isinstance(expr, Apply):
            args = tuple(map(self.expr, expr.args))
            if not any(isinstance(arg, Expr) for arg in args):
                return expr.func(*args)
            if self._leaving:  # elsewhere the base class rewrites it
                return Apply(expr.func, args)
        return super().expr(expr)

    def _count(self, ref: int, dim: int, value: int) -> Fetch:
        """Return the fetch of a size that the graph counts at the end."""
        known = self._counts.get((ref, dim))
        if known is None:
            known = Fetch(self.new((), torch.int64), len(self._ops) + len(self._counts) + 1, int)
            self._counts[ref, dim], self._fetched[known.token] = known, value
        return known

    def _sizes_of(self, one: _Selection) -> tuple[int, ...]:
        access_path = self.old.access_paths[one.result]
        found_here = (
            event for event in self.old.events if isinstance(event, HeapRead) and event.access_path == access_path
        )
        return tuple(next(found_here).detail[2])

    def recipe(self, recipe: Any) -> Any:
        one = self._selection(recipe.access_path) if isinstance(recipe, ExistingObject) else None
        return super().recipe(recipe) if one is None else TensorOf(TensorRef(one.result))

    def event(self, event: Any, after: int) -> Any:
        self._leaving = id(event) in self._late
        made = super().event(event, after)
        self._leaving = False
        if isinstance(event, Extern) and id(made) in self.recipes:
            self.recipes[id(made)] = tuple(self._argument_recipe(r, event.after) for r in self.recipes[id(made)])
        return made

    def _argument_recipe(self, recipe: Any, after: int) -> Any:
        """Return the recipe of an argument of native code: a tensor that the graph selects, as it is at that point."""
        results = {one.result for one in self._access_paths.values()}
        if isinstance(recipe, TensorOf) and recipe.ref.number in results:
            return TensorAt(recipe.ref, after)
        return recipe

    def trace(self) -> Trace:
        """Return the rewritten run."""
        numbers = {access_path.key for access_path in self._access_paths}

        def step(at: int, event: Any, after: int) -> Iterator[Any]:
            selects = isinstance(event, Extern) and event.number in numbers
            if not selects and not (isinstance(event, HeapRead) and event.access_path.waits_for - 1 in numbers):
                yield self.event(event, after)

        events, _, begins = self.walk(step)
        self._leaving = id(self.old) in self._late
        result = None if self.old.result is None else self.recipe(self.old.result)
        modes = self._ops[-1].modes
        for (ref, dim), fetch in self._counts.items():
            events.append(Op(count, count.__name__, (TensorRef(ref), dim), {}, (TensorRef(fetch.ref),), modes))
        gone = {one.result for one in self._access_paths.values()}
        access_paths = {number: where for number, where in self.old.access_paths.items() if number not in gone}
        made = replace(self.made(events, access_paths=access_paths, **self.moved(begins)), result=result)
        made.fetched.update(self._fetched)
        for one in self._access_paths.values():
            made.fetched[Size(one.result, 0, one.marked + 1).token] = self._sizes_of(one)[0]
        return made

"""Conditions for merging loops over trees into calls: nothing may depend on the trip count.

In: the trace and its loops. Out: what the calls of their iterations share. Raises NotMergeable where they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.recursion.entry_loops.columns import only_numbers
from torchjanus.graph.recursion.entry_loops.finding import EntryCallLoop
from torchjanus.graph.recursion.entry_loops.iterations import items_of
from torchjanus.trace.actions import InvokeOp, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.recipes import parts_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, Read, Size, leaves

__all__ = ["only_read", "own_of", "passed_along", "refuse_counted", "used_outside"]


def only_read(old: Trace, access_path: AccessPath, recipes: Sequence[Any]) -> bool:
    """Whether iterations only read numbers of the list's elements, and its length decides nothing else."""
    users = (event for event in old.events if not isinstance(event, HeapRead))
    pins = old.pins.get(Read(access_path.then(Step.LEN)).token, 0)
    return (
        pins <= 1
        and only_numbers(old, access_path.token, recipes)
        and not any(items_of(event, {access_path.token: 0}) for event in users)
    )


def refuse_counted(old: Trace, loops: Sequence[EntryCallLoop], columns: Sequence[Any]) -> None:
    """Raise NotMergeable if the trip count matters but for lengths of lists. ``columns``: tokens of collected lists."""
    for loop in loops:
        for access_path in loop.over:
            token = Read(access_path.then(Step.LEN)).token
            if not any(isinstance(e, HeapRead) and e.access_path == access_path.then(Step.LEN) for e in old.events):
                continue
            known = sum(access_path in other.over for other in loops)
            known += sum(access_path.token == token for token in columns)
            if old.pins.get(token, 0) != known:
                raise NotMergeable("recursion-entry-loop", "the number of trees decides something else")
    counts = {len(loop.starts) for loop in loops}
    picks = frozenset[tuple[int, int]]().union(*(loop.picks for loop in loops))
    for loop_record in old.loop_records:
        if loop_record.end is not None and len(loop_record.starts) in counts:
            inside = (one for one in old.plain if loop_record.starts[0] <= one.position <= loop_record.end)
            if not all(one.where in picks for one in inside):
                raise NotMergeable(
                    "recursion-entry-loop", "an iteration computes with its index, beyond looking up elements"
                )


def used_outside(old: Trace, loops: Sequence[EntryCallLoop], inside: frozenset[int]) -> set[int]:
    """Return the tensors of iterations that are live-out."""
    found = set[int]()
    for position, event in enumerate(old.events):
        if any(loop.holds(position) for loop in loops):
            continue
        if isinstance(event, Op):
            found.update(ref.number for ref in event.inputs)
            found.update(ref.number for ref in event.outs)
            exprs: Any = expressions_in((event.args, event.kwargs))
        else:
            exprs = [event.expr] if hasattr(event, "expr") else []
            if hasattr(event, "ref"):
                found.add(event.ref.number)
        found.update(x.ref for expr in exprs for x in leaves(expr) if isinstance(x, Fetch | Size))
    for recipe in old.all_recipes():
        for part in parts_of(recipe):
            if hasattr(part, "ref"):
                found.add(part.ref.number)
            if hasattr(part, "expr"):
                found.update(x.ref for x in leaves(part.expr) if isinstance(x, Fetch | Size))
    return found & inside


def passed_along(calls: Sequence[InvokeOp]) -> dict[int, tuple[TensorRef, ...]]:
    """Return the step's lists to which the calls of iterations append, with all that they append."""
    counted = {tuple((number, start.token) for number, start in event.counted) for event in calls}
    if len(counted) > 1 or len({tuple(number for number, _ in event.grown) for event in calls}) > 1:
        raise NotMergeable("recursion-entry-loop", "the iterations count or append differently")
    found: dict[int, tuple[TensorRef, ...]] = {}
    for event in calls:
        for number, refs in event.grown:
            found[number] = (*found.get(number, ()), *refs)
    return found


def own_of(calls: Sequence[InvokeOp]) -> dict[AccessPath, TensorRef]:
    """Return the step's own tensors that the calls of iterations read, which are the same for all."""
    found: dict[AccessPath, TensorRef] = {}
    for event in calls:
        for access_path, ref in zip(event.own, event.kwargs.get("own", ()), strict=True):
            if found.setdefault(access_path, ref) != ref:
                raise NotMergeable("recursion-entry-loop", "iterations find different tensors at the same place")
    return found

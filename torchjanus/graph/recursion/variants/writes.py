"""What a variant of a recursive function writes to objects, lists of the step and counters.

Knows neither stages nor segments.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

from torchjanus.core.errors import Place, Refused
from torchjanus.graph.generalize.generalize import EntryPlan
from torchjanus.graph.ir.program import Ref
from torchjanus.graph.recursion.variants.reads import class_of
from torchjanus.trace.actions import ContainerMutation, HeapWrite, InvokeOp, place_of
from torchjanus.trace.events import Trace
from torchjanus.trace.recipes import Number, Recipe, TensorOf
from torchjanus.trace.values import Fetch, Size, leaves

__all__ = ["Write", "writes_of"]


@dataclass(frozen=True, slots=True)
class Write:
    """A write to an object. ``before``: how many calls eager makes before it; ``ref``: the tensor written; ``value``:
    the recipe of any other value; ``name``: the name by which nothing may read it in the same step (see
    ``names_read``); ``list``: the step's list to which it is appended, if any; ``counts``: whether it is computed from
    the old value."""

    event: HeapWrite | ContainerMutation
    before: int
    ref: Ref | None
    value: Recipe
    name: tuple[type | None, Any]
    list: int | None = None
    counts: bool = False


def writes_of(
    trace: Trace, plan: EntryPlan, counted: Container[Any], not_followed: Callable[[str, Place], Refused]
) -> Iterator[Write]:
    """Yield the writes of a trace. ``counted``: the places of counters; ``not_followed`` makes the error for a reason
    and a place. Raises Refused."""
    calls, program = 0, plan.program
    for event in trace.events:
        calls += isinstance(event, InvokeOp)
        if not isinstance(event, HeapWrite | ContainerMutation):
            continue
        (value,) = trace.recipes[id(event)]
        if isinstance(event, ContainerMutation) and event.method == "count":
            yield Write(event, calls, None, value, (None, event.base.token), event.base.key, True)
            continue
        ref = program.outputs[plan.outputs["tensor", value.ref.number]] if isinstance(value, TensorOf) else None
        if event.base.is_grown:
            yield Write(event, calls, ref, value, (None, event.base.token), event.base.key)
            continue
        fetched = isinstance(value, Number) and any(isinstance(x, Fetch | Size) for x in leaves(value.expr))
        if fetched or (ref is not None and ref.index < len(program.inputs)):
            raise not_followed(f"it stores {event.value if isinstance(event, HeapWrite) else event.args}", event.place)
        known = (class_of(trace, event.base), event.key) if isinstance(event, HeapWrite) else (None, event.base.token)
        counts = isinstance(event, HeapWrite) and isinstance(value, Number) and place_of(event).token in counted
        yield Write(event, calls, ref, value, known, None, counts)

"""A trace as text: inputs, events under the lines of the user's file, and what the call returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchjanus.graph.printing.recipes import recipe_text
from torchjanus.graph.printing.terms import Sources, call_text, tensor_type, type_text
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, HostLoop, Op, name_of
from torchjanus.trace.events import FunctionEntry, FunctionExit, Trace
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.operations import op_count
from torchjanus.trace.terms import text_of

__all__ = ["event_lines", "trace_text"]


def trace_text(trace: Trace) -> str:
    """Return the run, an event a line."""
    return "\n".join(_lines(trace)) + "\n"


def _lines(trace: Trace) -> Iterator[str]:
    operations = op_count(trace.events)
    yield f"trace: {len(trace.events)} events, {operations} operations, {len(trace.tensors)} tensors"
    if trace.access_paths:
        yield "inputs"
    for number, access_path in trace.access_paths.items():
        yield f"  %{number}: {_type_of(trace, number)}  {access_path}"
    yield "events"
    sources, depth = Sources(), 0
    for event in trace.events:
        if isinstance(event, FunctionExit):
            depth -= 1
        indent = "  " * depth
        yield from (f"  {indent}# {line}" for line in sources.heading(event.place))
        yield from (f"    {indent}{line}" for line in _event(trace, event))
        if isinstance(event, FunctionEntry):
            depth += 1
    if trace.result is not None:
        yield f"  return {recipe_text(trace.result)}"
    yield from (f"refused: {refusal}" for refusal in trace.refusals)


def _event(trace: Trace, event: Any) -> Iterator[str]:
    if isinstance(event, Op):
        outs = (f"%{ref.number}: {_type_of(trace, ref.number)}" for ref in event.outs)
        yield call_text(outs, event.name, event.args, event.kwargs)
    elif isinstance(event, HostLoop):
        recipes = [recipe for part in event.events for recipe in trace.recipes.get(id(part), ())]
        yield from event_lines(event, recipes)
    else:
        yield from event_lines(event, trace.recipes.get(id(event), ()))


def event_lines(event: Any, recipes: Sequence[Any]) -> Iterator[str]:
    """Yield an event that is no operation. ``recipes``: those of what it lets out; of several writes one after the
    other."""
    given = recipes[:-1] if getattr(event, "chosen", False) else recipes
    if isinstance(event, HeapRead) and isinstance(event.value, torch.Tensor):
        yield f"read   {event.access_path} -> {tensor_type(event.value)}"
    elif isinstance(event, HostLoop):
        yield f"in each of {event.count} iterations:"
        for part in event.events:
            yield f"  {part}"
    elif isinstance(event, HeapWrite) and given:
        yield f"write   {event.base}[{text_of(event.key)}] = {recipe_text(given[0])}{_condition(event, recipes)}"
    elif isinstance(event, ContainerMutation) and given:
        yield f"write   {event.base}.{event.method}({', '.join(map(recipe_text, given))}){_condition(event, recipes)}"
    elif isinstance(event, Extern) and given:
        yield f"extern  {name_of(event.func)}({', '.join(map(recipe_text, given))}){_condition(event, recipes)}"
    else:
        yield str(event)


def _condition(event: Any, recipes: Sequence[Any]) -> str:
    return f" if {recipe_text(recipes[-1])}" if event.chosen else ""


def _type_of(trace: Trace, number: int) -> str:
    kind = trace.kinds.get(number)
    if kind is not None:
        return type_text(kind[0], kind[2])
    tensor = trace.tensors[number] if number < len(trace.tensors) else None
    return tensor_type(tensor) if isinstance(tensor, torch.Tensor) else "tensor"

"""One speculated function at each stage, as text: source, rewritten source, trace, tree, graph, guards, commit."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch

from torchjanus.core.errors import NOWHERE, SourceUnavailable, Unsupported
from torchjanus.graph.ir.lowered import NoGradient
from torchjanus.graph.printing.recipes import recipe_text
from torchjanus.graph.printing.traces import event_lines
from torchjanus.host.assumption import Assumption
from torchjanus.rewrite import rewritten_source
from torchjanus.runtime.entries.entry import Entry
from torchjanus.semantics.protocols.virtualize import underlying
from torchjanus.trace.events import Trace
from torchjanus.tracegraph.record import tree_of
from torchjanus.tracegraph.text.printing import print_graph
from torchjanus.tracegraph.verify import verify

__all__ = ["commit_text", "guards_text", "rewritten_text", "source_text", "tree_text"]


def source_text(fn: Any) -> str:
    """Return the function as it is written."""
    try:
        return textwrap.dedent(inspect.getsource(_function(fn)))
    except (OSError, TypeError, Unsupported) as error:
        return f"no source: {error}\n"


def rewritten_text(fn: Any) -> str:
    """Return the function with a hook at each construct, as Python would write it."""
    try:
        return rewritten_source(_function(fn)) + "\n"
    except (SourceUnavailable, SyntaxError, Unsupported) as error:
        return f"not rewritten: {error}\n"


def _function(fn: Any) -> Any:
    return underlying(fn.forward if isinstance(fn, torch.nn.Module) else fn)[0]


def tree_text(trace: Trace, name: str) -> str:
    """Return the run as a tree, or why it is none: it is shown beside what graphs are made of."""
    try:
        graph = tree_of(trace, name)
        verify(graph)
        return print_graph(graph)
    except Exception as error:
        return f"; no tree: {type(error).__name__}: {error}\n"


def guards_text(assumptions: tuple[Assumption, ...]) -> str:
    """Return the assumptions that are checked before the graph runs, one a line, each with the line that relies on
    it."""
    lines = []
    for one in assumptions:
        place = "" if one.place == NOWHERE else f"  # {one.place}"
        lines.append(f"{one}{place}")
    return "\n".join(lines) + "\n"


def commit_text(entry: Entry) -> str:
    """Return what is written when all assertions hold, one write a line."""
    return "\n".join(_commit(entry)) + "\n"


def _commit(entry: Entry) -> Iterator[str]:
    lowered, plan = entry.lowered, entry.plan
    for assertion in lowered.assertions:
        yield f"check   a tensor is {assertion.expected}  # {assertion.place}"
    names = [str(access_path) for access_path in plan.access_paths]
    for position, index in enumerate(lowered.mutated, lowered.updates):
        yield f"update  {names[index]} in place, to value {position} of the graph"
    for leaf in lowered.leaves:
        if leaf.changed:
            source = "None" if isinstance(leaf.result.source, NoGradient) else f"{leaf.result.source} of the graph"
            yield f"write   {names[leaf.index]}.grad = {source}"
    for one in lowered.replaced:
        yield f"write   {names[one.index]}.data = {one.result.source} of the graph"
    for index, flag in lowered.requires_grad_set:
        yield f"write   {names[index]}.requires_grad = {flag}"
    for effect in plan.effects:
        yield from event_lines(effect.event, effect.recipes)
    if lowered.random:
        yield "update  torch's random generator, as eager would have left it"
    yield f"return  {recipe_text(plan.result)}"
    for key, position in plan.outputs.items():
        what = f"%{key[1]}" if key[0] == "tensor" else f"%{key[0]} as after {key[1]} operations"
        yield f"where   {what} is {lowered.outputs[position].source} of the graph"

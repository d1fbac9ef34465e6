"""Effects of the two halves of an iteration: a backward graph must not repeat them, nor a forward graph lose them.

In: joint, forward and backward graphs. Out: how many of their calls have an effect, and whether one can be repeated.
"""

from __future__ import annotations

import torch

from torchjanus.graph.aten import clean_up
from torchjanus.graph.aten.may_fail import may_fail

__all__ = ["effects_of", "effects_of_inputs", "is_repeatable"]


def effects_of(graph: torch.fx.GraphModule) -> int:
    """Return how many calls of a graph have an effect."""
    return sum(map(clean_up.has_effect, _calls(graph)))


def effects_of_inputs(graph: torch.fx.GraphModule) -> int:
    """Return how many calls of a joint graph that depend on no tangent have an effect.

    Indexing in the backward graph raises no more than the same indexing in the forward graph."""
    behind = {node for node in graph.graph.nodes if str(node.target).startswith("tangents_")}
    for node in _calls(graph):
        if not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)
    return sum(clean_up.has_effect(node) for node in _calls(graph) if node not in behind)


def is_repeatable(graph: torch.fx.GraphModule) -> bool:
    """Whether a backward graph may run again. A call that may only raise has succeeded before."""
    calls = _calls(graph)
    effects = (node for node in calls if clean_up.has_effect(node) and not may_fail(node))
    return not any(map(clean_up.is_random, calls)) and next(effects, None) is None


def _calls(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "call_function"]

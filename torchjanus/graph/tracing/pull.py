"""Runs autograd backward and collects the gradient of each use of an input by itself, in the order of the engine.

Where an input has other uses outside of a graph, autograd adds all gradients one after another. Their sum has eager's
bits only if no part of it was added beforehand. Knows nothing of programs; works on fake and on real tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

__all__ = ["nodes_of", "pull"]


def pull(
    results: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    *,
    create_graph: bool = False,
) -> list[tuple[int, torch.Tensor]]:
    """Return the gradients of the uses of ``wanted`` tensors, with their positions there. The graph is kept."""
    found: list[tuple[int, torch.Tensor]] = []
    targets = {_target(tensor): place for place, tensor in reversed([*enumerate(wanted)])}
    handles = []
    for node in nodes_of(results, targets):
        uses = {number: targets[edge] for number, edge in enumerate(node.next_functions) if edge in targets}
        if uses:
            handles.append(node.register_hook(partial(_collect, found, uses)))
    try:
        torch.autograd.grad(
            results, [*wanted], [*tangents], retain_graph=True, create_graph=create_graph, allow_unused=True
        )
    finally:
        for handle in handles:
            handle.remove()
    return found


def _collect(
    found: list[tuple[int, torch.Tensor]], uses: dict[int, int], given: Sequence[torch.Tensor | None], _: Any
) -> None:
    found += [(place, grad) for number, place in uses.items() if (grad := given[number]) is not None]


def _target(tensor: torch.Tensor) -> tuple[Any, int]:
    """Return where autograd hands in the gradient of a tensor: a node and the number of its input."""
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def nodes_of(results: Sequence[torch.Tensor], targets: Any = ()) -> list[Any]:
    """Return the nodes of the backward graph of ``results``, up to the edges in ``targets``."""
    found: dict[Any, None] = {}
    pending: list[Any] = [torch.autograd.graph.get_gradient_edge(result).node for result in results]
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            edges = (edge for edge in node.next_functions if edge[0] is not None and edge not in targets)
            pending += (function for function, _ in edges)
    return [*found]

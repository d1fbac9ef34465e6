"""Finds autograd's state of a run's results by a trial backward on the fake tensors, outside of the trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from torchjanus.graph.ir.lowered import GradState

__all__ = ["grad_states"]


def grad_states(tensors: Sequence[torch.Tensor | None]) -> list[GradState]:
    """Return the state of each tensor in autograd's graph."""
    states = []
    for tensor in tensors:
        if tensor is None or not tensor.requires_grad:
            states.append(GradState.PLAIN)
        elif tensor.grad_fn is None:
            states.append(GradState.LEAF)
        else:
            states.append(GradState.FREED if _freed(tensor) else GradState.LIVE)
    return states


def _freed(tensor: torch.Tensor) -> bool:
    with disable_proxy_modes_tracing():
        seed = torch.empty_like(tensor)
        try:
            edge = torch.autograd.graph.get_gradient_edge(tensor)
            torch.autograd.grad([edge], _sources(edge), [seed], retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "second time" in str(error):
                return True
            if isinstance(error, DynamicOutputShapeException | DataDependentOutputException):
                return False  # it got as far as a formula that needs real data: nothing before it was freed
            if "modified by an inplace operation" not in str(error):  # raised later, when gradients are computed
                raise
    return False


def _sources(edge: Any) -> list[Any]:
    """Return an edge to each function without inputs (the leaves), so that a trial backward accumulates nothing."""
    found, pending, seen = [], [edge.node], set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        following = [(function, number) for function, number in node.next_functions if function is not None]
        if not following:
            found.append(torch.autograd.graph.GradientEdge(node, 0))
        pending.extend(function for function, _ in following)
    return found

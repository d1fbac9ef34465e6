"""Hooks on the nodes of autograd that add to a leaf's gradient: how libraries of data parallelism hook in.

No graph calls them, and no tensor shows them. Knows nothing of traces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

__all__ = ["has_node_hooks"]


def has_node_hooks(leaf: torch.Tensor) -> bool:
    """Whether Python functions have been registered as hooks of the node that adds to the gradient of ``leaf``.

    Torch shows the dictionary that a node keeps its hooks in only to those who register one, so one is registered and
    removed. Nobody else's handle gets another number by that.
    """
    if not RemovableHandle.next_id:
        return False  # none has ever been registered
    node = _accumulator(leaf)
    if node is None:
        return False
    before = RemovableHandle.next_id
    handles = [node.register_prehook(_nothing), node.register_hook(_nothing)]
    try:
        return any(len(handle.hooks_dict_ref() or ()) > 1 for handle in handles)
    finally:
        for handle in handles:
            handle.remove()
        if RemovableHandle.next_id == before + len(handles):
            RemovableHandle.next_id = before


def _accumulator(leaf: torch.Tensor) -> Any:
    """The node, which is there as long as somebody holds it; None where the leaf gets no gradient."""
    if type(leaf) not in (torch.Tensor, torch.nn.Parameter) or not (leaf.requires_grad and leaf.is_leaf):
        return None
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableFuncTorch(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        view = leaf.view_as(leaf).grad_fn
    return None if view is None else view.next_functions[0][0]


def _nothing(*_: Any) -> None:
    """A hook that is never called."""

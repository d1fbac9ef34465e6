"""Finds hooks on the autograd nodes that accumulate a leaf's gradient, which libraries for data parallelism use.

No graph calls them, and no attribute of a tensor shows them. This module does not know traces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

__all__ = ["has_node_hooks"]


def has_node_hooks(leaf: torch.Tensor) -> bool:
    """Whether the node that accumulates the gradient of ``leaf`` has hooks that are Python functions.

    Torch exposes the dictionary of a node's hooks only when one is registered, so one is registered and removed. That
    does not change the numbers of other handles.
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
    """Return the node, which exists as long as something holds it; None where the leaf gets no gradient."""
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

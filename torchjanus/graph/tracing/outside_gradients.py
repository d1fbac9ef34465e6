"""Refuses backward passes that go on through a backward graph made before the step: of that, no graph knows anything.

A tensor from before the step that has a backward graph is a leaf while the program is traced. So a backward pass ends
at it there, where eager's goes on to whatever it was computed of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.errors import refused
from torchjanus.core.trees import map_leaves
from torchjanus.graph.ir.loop_matching import is_training
from torchjanus.graph.ir.program import Input, Node, Ref

__all__ = ["OutsideGraphs"]


class OutsideGraphs:
    """The inputs of one program that have a backward graph from before the step."""

    def __init__(self, inputs: Sequence[Input], tensors: Sequence[torch.Tensor]) -> None:
        self._inputs = {id(tensor) for tensor in tensors}
        self._names = {
            id(tensor): entry.name or f"input {number}"
            for number, (entry, tensor) in enumerate(zip(inputs, tensors, strict=True))
            if entry.requires_grad and not entry.is_leaf
        }

    def require_apart(self, node: Node, values: Mapping[int, torch.Tensor]) -> None:
        """Raise Refused if ``node`` is a backward pass that eager may take into one of these graphs."""
        if not self._names or not is_training(node.func):
            return

        def tensor(value: Any) -> Any:
            return values[value.index] if isinstance(value, Ref) else value

        args, kwargs = map_leaves(node.args, tensor), map_leaves(node.kwargs, tensor)
        reached = {id(leaf) for leaf in _leaves(_tensors(args[0] if args else kwargs))} & self._names.keys()
        if not reached:
            return
        wanted = args[1] if node.func is torch.autograd.grad and len(args) > 1 else kwargs.get("inputs")
        if wanted is not None:  # autograd goes no further than to these; what the step has made is in no older graph
            asked = {id(one) for one in _tensors(wanted)} & self._inputs
            reached = {one for one in reached if asked - {one}}
        if reached:
            name = min(self._names[one] for one in reached)
            why = "Its backward graph was made before the step, and a graph has only what the step itself computes."
            remedy = "Compute it within the step; or give the step its detach(), if no gradient is wanted beyond it."
            raise refused("gradient-outside", f"gradients flow into {name}", why, remedy, node.place)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [part for part in pytree.tree_leaves(value) if isinstance(part, torch.Tensor)]


def _leaves(roots: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the leaves that gradients of ``roots`` flow into."""
    waiting = []
    for root in roots:
        if root.grad_fn is not None:
            waiting.append(root.grad_fn)
        elif root.requires_grad:
            yield root
    seen = set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if (variable := getattr(one, "variable", None)) is not None:
            yield variable
        waiting += [following for following, _ in one.next_functions if following is not None]

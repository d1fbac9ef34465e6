"""Makes autograd's own nodes for a forward pass that a graph has made, with what was saved then.

The program runs once more on its inputs, for its nodes only: they take what the graph saved, not what is computed now,
so random numbers and inputs that have changed do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from torchjanus.core.trees import map_leaves
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Ref, Slot
from torchjanus.graph.operators import stand_ins
from torchjanus.graph.tracing.ambient import Ambient
from torchjanus.graph.tracing.trace_program import FETCHES

__all__ = ["results_again"]


def results_again(
    lowered: Lowered,
    saved: Sequence[torch.Tensor],
    wanted: Mapping[int, torch.Tensor],
    slots: Sequence[float | int],
    *,
    attached: bool,
) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
    """Return the results of ``Saves.results`` with eager's backward graph, and the tensors in it that stand for the
    ``wanted`` inputs. ``attached``: these lead on to the inputs' own backward graphs."""
    program, saves = lowered.program, lowered.saves
    assert saves is not None
    places = dict(saves.packs)
    count = 0

    def save(tensor: torch.Tensor) -> Any:
        nonlocal count
        count += 1
        place = places.get(count - 1)
        return tensor if place is None else saved[place]

    given: dict[int, torch.Tensor] = {}
    values: dict[int, torch.Tensor] = {}
    with torch.enable_grad():
        for index, entry in enumerate(program.inputs):
            tensor = wanted.get(index)
            if tensor is None:
                values[index] = torch.zeros_like(entry.example).requires_grad_(entry.requires_grad)
            else:
                values[index] = given[index] = tensor.view_as(tensor) if attached else tensor.detach().requires_grad_()

    def leaf(value: Any) -> Any:
        if isinstance(value, Ref):
            return values[value.index]
        return slots[value.index] if isinstance(value, Slot) else value

    devices = [*range(torch.cuda.device_count())] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices), Ambient() as ambient, saved_tensors_hooks(save, lambda packed: packed):
        for node in program.nodes:
            ambient.switch(node.modes)
            if getattr(node.func, "__name__", "") in FETCHES and not node.outs:
                continue
            made = stand_ins.rounding(node)(*map_leaves(node.args, leaf), **map_leaves(node.kwargs, leaf))
            parts = [part for part in pytree.tree_leaves(made) if isinstance(part, torch.Tensor)]
            if node.outs:
                values.update(zip((ref.index for ref in node.outs), parts, strict=True))
    return [values[program.outputs[place].index] for place in saves.results], given

"""Makes autograd's own nodes for a forward pass that a graph has made, with what was saved then.

The program runs once more on its inputs, for its nodes only: they take what the graph saved, not what is computed now,
so random numbers and inputs that have changed do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torchjanus.core.errors import InternalFault
from torchjanus.core.trees import map_leaves
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Ref, Slot
from torchjanus.graph.operators import stand_ins
from torchjanus.graph.operators.dynamic_index import pick, picked_by
from torchjanus.graph.tracing.ambient import Ambient
from torchjanus.graph.tracing.node_tracing import FETCHES
from torchjanus.graph.tracing.pull import pull
from torchjanus.trace.blanks import like

__all__ = ["require_same_saves", "results_again"]


def results_again(
    lowered: Lowered,
    saved: Sequence[torch.Tensor],
    wanted: Mapping[int, torch.Tensor],
    others: Mapping[int, torch.Tensor],
    slots: Sequence[float | int],
    *,
    attached: bool,
    inner: Mapping[int, torch.Tensor] | None = None,
) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
    """Return the results of ``Saves.results`` with eager's backward graph, and the tensors in it that stand for the
    ``wanted`` inputs. ``others``: inputs without gradients whose values operations check; the rest is zeros.
    ``attached``: wanted inputs lead on to their own backward graphs. ``inner``: tensors to go on with in place of
    what the program computes, by number."""
    given: dict[int, torch.Tensor] = {}
    values: dict[int, torch.Tensor] = {}
    with torch.enable_grad():
        for index, entry in enumerate(lowered.program.inputs):
            tensor = wanted.get(index)
            # The program changes these in place, and has done so when the call was made.
            changed = index in lowered.mutated
            if index in others:
                values[index] = others[index].clone() if changed else others[index]
            elif tensor is None:
                values[index] = torch.zeros_like(entry.example).requires_grad_(entry.requires_grad)
            elif attached:
                values[index] = given[index] = tensor.clone() if changed else tensor.view_as(tensor)
            else:
                values[index] = given[index] = (tensor.clone() if changed else tensor).detach().requires_grad_()
    return _run(lowered, saved, values, slots, inner or {}), given


def require_same_saves(lowered: Lowered, saved: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    """Raise InternalFault unless the program, run once more, saves tensors like ``saved``, in the order of the trace:
    tracing runs some operations by others (an index that is a number of the host becomes a tensor)."""
    slots = [slot.seen[-1] for slot in lowered.program.slots]
    assert lowered.saves is not None
    inner: list[tuple[int, ...]] = []
    results = [lowered.program.outputs[place].index for place in lowered.saves.results]
    with _disable_current_modes(), FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        examples = [entry.example for entry in lowered.program.inputs]

        def run(inner: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
            values = {k: like(one).requires_grad_(one.requires_grad) for k, one in enumerate(examples)}
            return _run(lowered, saved, values, slots, inner)

        made = run({})
        for place, within in enumerate(lowered.saves.inner):
            given = {results[k]: made[k].detach().requires_grad_() for k in within}
            result = run(given)[place] if given else made[place]
            uses = pull([result], [torch.empty_like(result)], [*given.values()]) if given else []
            inner.append(tuple(within[k] for k, _ in uses))
    return tuple(inner)


def _run(
    lowered: Lowered,
    saved: Sequence[torch.Tensor],
    values: dict[int, torch.Tensor],
    slots: Sequence[float | int],
    inner: Mapping[int, torch.Tensor],
) -> list[torch.Tensor]:
    """Run the program on ``values``, the inputs by number, and return ``Saves.results``. Autograd saves the tensors in
    ``saved`` in place of those that are computed."""
    program, saves = lowered.program, lowered.saves
    assert saves is not None
    places = dict(saves.packs)
    count = 0

    def save(tensor: torch.Tensor) -> Any:
        nonlocal count
        count += 1
        place = places.get(count - 1)
        if place is None:
            return tensor
        if tensor.dtype is not saved[place].dtype or tensor.size() != saved[place].size():
            raise InternalFault("an operation saves other tensors than it did when it was traced")
        return saved[place]

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
            made: Any
            if any(number not in lowered.pinned for number in picked_by(node)):
                made = pick(values[node.args[0].index], node.args[1], slots, lowered.pinned)
            else:
                made = stand_ins.rounding(node)(*map_leaves(node.args, leaf), **map_leaves(node.kwargs, leaf))
            parts = [part for part in pytree.tree_leaves(made) if isinstance(part, torch.Tensor)]
            if node.outs:
                numbers = [ref.index for ref in node.outs]
                values.update(zip(numbers, parts, strict=True))
                values.update((number, inner[number]) for number in numbers if number in inner)
    if count <= max(places, default=-1):
        raise InternalFault("operations save fewer tensors than they did when they were traced")
    return [values[program.outputs[place].index] for place in saves.results]

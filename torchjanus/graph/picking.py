"""Subscripts by Python numbers that change from call to call: ``x[k]`` with ``k`` as data of the graph.

Eager gives a view, whose place is burnt into whatever is traced with it. Here it is a copy taken at an index that is a
tensor. That is the same as long as the view does not leave the step and is not used when the whole has been changed,
and what changes it is put back into the whole: whoever traces has to see to that. Knows nothing of tracing.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from typing import Any

import torch

from torchjanus.graph.program import Node, Slot
from torchjanus.graph.standing_in import SUBSCRIPTS

__all__ = ["pick", "picked_by", "put", "put_by", "windows_by"]

_PLAIN = (int, slice, type(None), type(Ellipsis))


def picked_by(node: Node) -> tuple[int, ...]:
    """The slots that are integer subscripts in this call; () if it is no such call, or has other subscripts as well."""
    return _by_slots(node) if node.func in SUBSCRIPTS and len(node.args) == 2 else ()


def put_by(node: Node) -> tuple[int, ...]:
    """The slots that are integer subscripts in this assignment; () if it is none, or has other subscripts as well."""
    return _by_slots(node) if node.func == torch.Tensor.__setitem__ and len(node.args) == 3 else ()


def _by_slots(node: Node) -> tuple[int, ...]:
    if node.kwargs:
        return ()
    index = node.args[1]
    parts = index if isinstance(index, tuple) else (index,)
    found = []
    for part in parts:
        if isinstance(part, Slot):
            found.append(part.index)
        elif not isinstance(part, _PLAIN) or isinstance(part, bool):
            return ()
        elif isinstance(part, slice) and not {*map(type, (part.start, part.stop, part.step))} <= {int, type(None)}:
            return ()
    return tuple(found)


def windows_by(node: Node) -> tuple[int, ...]:
    """The slots that are places of windows in this call: ``x[:n]``. Some torches leave a window out that is as large as
    the tensor is, and so would a graph that is traced with a large number in the place of ``n``."""
    if (node.func not in SUBSCRIPTS and node.func != torch.Tensor.__setitem__) or len(node.args) < 2:
        return ()
    index = node.args[1]
    windows = [part for part in (index if isinstance(index, tuple) else (index,)) if isinstance(part, slice)]
    places = itertools.chain.from_iterable((part.start, part.stop, part.step) for part in windows)
    return tuple(place.index for place in places if isinstance(place, Slot))


def pick(tensor: torch.Tensor, index: Any, numbers: Sequence[float | int], held: Container[int]) -> torch.Tensor:
    """``tensor[index]``, where slots stand in ``index``; those ``held`` are constants. Raises nothing for a number
    out of range: that is for the graph to do."""
    dim = 0
    for part in _parts(tensor, index):
        if isinstance(part, Slot) and part.index not in held:
            tensor = _Pick.apply(tensor, dim, int(numbers[part.index]))  # type: ignore[no-untyped-call]
        elif isinstance(part, Slot | int):
            tensor = tensor.select(dim, int(numbers[part.index]) if isinstance(part, Slot) else part)
        elif part is None:
            tensor = tensor.unsqueeze(dim)
            dim += 1
        else:
            if part != slice(None):
                tensor = tensor[(*(slice(None),) * dim, part)]
            dim += 1
    return tensor


def _parts(tensor: torch.Tensor, index: Any) -> list[Any]:
    """One part for each dimension that is there or made new, as far as there are any."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        taken = sum(part is not None for part in parts) - 1
        parts[place : place + 1] = [slice(None)] * (tensor.dim() - taken)
    return parts


def put(tensor: torch.Tensor, index: Any, value: Any, numbers: Sequence[float | int]) -> None:
    """``tensor[index] = value``, where slots stand in ``index``. Raises nothing for a number out of range: that is for
    the graph to do."""
    places: dict[int, torch.Tensor] = {}
    for dim, part in enumerate(_parts(tensor, index)):
        if isinstance(part, Slot | int):
            number = int(numbers[part.index]) if isinstance(part, Slot) else part
            places[dim] = torch.full((), number, dtype=torch.int64, device=tensor.device)
        elif part is None:
            tensor = tensor.unsqueeze(dim)
        elif part != slice(None):
            tensor = tensor[(*(slice(None),) * dim, part)]
    if isinstance(value, torch.Tensor):
        while value.dim() > tensor.dim() - len(places) and value.size(0) == 1:
            value = value.squeeze(0)
        value = value.to(tensor.dtype)
    else:
        value = torch.full((), value, dtype=tensor.dtype, device=tensor.device)
    where = [places.get(number) for number in range(max(places) + 1)]
    torch.ops.aten.index_put_(tensor, where, value)


class _Pick(torch.autograd.Function):
    """One place along a dimension. Backward gives zeros everywhere else, and keeps a zero's sign, as eager does."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dim: int, number: int) -> torch.Tensor:
        where = torch.full((), number, dtype=torch.int64, device=tensor.device)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(where)
        ctx.dim, ctx.size = dim, tensor.size(dim)
        index: list[Any] = [None] * dim + [where]
        return torch.ops.aten.index.Tensor(tensor, index)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        if gradient is None:
            return None, None, None
        (where,) = ctx.saved_tensors
        places = torch.arange(ctx.size, device=gradient.device)
        chosen = places == torch.where(where < 0, where + ctx.size, where)
        chosen = chosen.reshape(-1, *(1,) * (gradient.dim() - ctx.dim))
        zero = torch.zeros((), dtype=gradient.dtype, device=gradient.device)
        return torch.where(chosen, gradient.unsqueeze(ctx.dim), zero), None, None

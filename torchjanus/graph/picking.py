"""Subscripts by Python numbers that change from call to call: ``x[k]`` with ``k`` as data of the graph.

Eager gives a view, whose place is burnt into whatever is traced with it. Here it is a copy taken at an index that is a
tensor. That is the same as long as nobody writes through either side and the view does not leave the step: Picks sees
to that. Knows nothing of tracing.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.graph.changing import Changes, memory_of
from torchjanus.graph.lowered import Pin
from torchjanus.graph.program import Node, Slot
from torchjanus.graph.standing_in import SUBSCRIPTS

__all__ = ["Picks", "windows_by"]

_PLAIN = (int, slice, type(None), type(Ellipsis))


@dataclass(frozen=True, slots=True)
class _Picked:
    """What was made, of what, and the versions of both by then."""

    made: torch.Tensor
    version: tuple[int, ...]
    base: torch.Tensor
    base_version: tuple[int, ...]
    slots: tuple[int, ...]


class Picks:
    """Those of one run, with these numbers in the slots; those ``held`` are constants."""

    def __init__(self, numbers: Sequence[float | int], held: Container[int], changes: Changes) -> None:
        self._numbers = numbers
        self._held = held
        self._changes = changes
        self._made: list[_Picked] = []

    def slots(self, node: Node) -> tuple[int, ...]:
        """The slots by which this call picks. Raises Pin where one is the place of a window."""
        if places := [number for number in windows_by(node) if number not in self._held]:
            raise Pin(dict.fromkeys(places, "it is the place of a window"))
        return tuple(number for number in _picked_by(node) if number not in self._held)

    def make(self, base: torch.Tensor, node: Node, slots: tuple[int, ...]) -> torch.Tensor:
        """What the call picks of ``base``."""
        made, changes = _pick(base, node.args[1], self._numbers, self._held), self._changes
        self._made.append(_Picked(made, changes.of(made), base, changes.of(base), slots))
        return made

    def check(self, results: Iterable[torch.Tensor], moved: bool) -> None:
        """What was picked stands for a view: nobody may be able to tell. ``moved``: tensors may have been put on other
        memory, which no version shows. Raises Pin."""
        seen = {memory_of(tensor) for tensor in results}
        wrong: dict[int, str] = {}
        for picked in self._made:
            if memory_of(picked.made) in seen:
                wrong.update(dict.fromkeys(picked.slots, "it picks a view that leaves the step"))
            elif moved or not all(
                self._changes.are_as(one, before)
                for one, before in ((picked.made, picked.version), (picked.base, picked.base_version))
            ):
                wrong.update(dict.fromkeys(picked.slots, "it picks a view, and what that shows is changed in place"))
        if wrong:
            raise Pin(wrong)


def _picked_by(node: Node) -> tuple[int, ...]:
    """The slots that are integer subscripts in this call; () if it is no such call, or has other subscripts as well."""
    if node.func not in SUBSCRIPTS or len(node.args) != 2 or node.kwargs:
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


def _pick(tensor: torch.Tensor, index: Any, numbers: Sequence[float | int], held: Container[int]) -> torch.Tensor:
    """``tensor[index]``, where slots stand in ``index``; those ``held`` are constants. Raises nothing for a number
    out of range: that is for the graph to do."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        taken = sum(part is not None for part in parts) - 1
        parts[place : place + 1] = [slice(None)] * (tensor.dim() - taken)
    dim = 0
    for part in parts:
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

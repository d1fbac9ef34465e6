"""Subscripts by Python numbers that change from call to call: ``x[k]`` with ``k`` as an input of the graph.

Eager returns a view, whose offset would be constant in a trace. Here the result is a copy, taken at an index that is a
tensor. That is equivalent if the view does not leave the step, is not used after its base has changed, and changes to
it are written back to the base; ``DynamicSubscripts`` checks and does that.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.graph.ir.lowered import Pin
from torchjanus.graph.ir.program import Node, Program, Slot
from torchjanus.graph.ir.tensor_versions import Changes, memory_of
from torchjanus.graph.operators.stand_ins import SUBSCRIPTS

__all__ = ["DynamicSubscripts", "pick", "picked_by", "put", "put_by", "windows_by"]

_BACKWARD = frozenset({"backward", "grad"})
_PLAIN = (int, slice, type(None), type(Ellipsis))


@dataclass(frozen=True, slots=True)
class _DynamicCopy:
    """A copy, its base and index, and the versions of both when it was made."""

    made: torch.Tensor
    version: tuple[int, ...]
    base: torch.Tensor
    base_version: tuple[int, ...]
    slots: tuple[int, ...]
    index: Any


class DynamicSubscripts:
    """The dynamic subscripts of one traced run, with these numbers in the slots; slots in ``held`` are constants."""

    def __init__(self, numbers: Sequence[float | int], held: Container[int], changes: Changes) -> None:
        self._numbers = numbers
        self._held = held
        self._changes = changes
        self._made: list[_DynamicCopy] = []
        self._wrong: dict[int, str] = {}  # slots that must become constants -> reason

    def slots(self, node: Node) -> tuple[int, ...]:
        """Return the dynamic slots that subscript in this call. Raises Pin where one is a bound of a slice."""
        if places := [number for number in windows_by(node) if number not in self._held]:
            raise Pin(dict.fromkeys(places, "it is the place of a window"))
        return tuple(number for number in picked_by(node) if number not in self._held)

    def puts(self, node: Node) -> bool:
        """Whether this is an assignment to a dynamic subscript."""
        return any(number not in self._held for number in put_by(node))

    def make(self, base: torch.Tensor, node: Node, slots: tuple[int, ...]) -> torch.Tensor:
        """Return the copy that the call takes of ``base``."""
        made, changes = pick(base, node.args[1], self._numbers, self._held), self._changes
        self._made.append(_DynamicCopy(made, changes.of(made), base, changes.of(base), slots, node.args[1]))
        return made

    def put(self, tensor: torch.Tensor, index: Any, value: Any) -> None:
        """``tensor[index] = value``; nothing where it ends ``tensor[index] += 1``, since ``put_back`` has done it."""
        meant = (one for one in self._made if one.made is value and one.base is tensor and one.index == index)
        if not any(map(self._is_fresh, meant)):
            put(tensor, index, value, self._numbers)

    def put_back(self) -> None:
        """Write back to the base what a node has changed in a copy."""
        for number in reversed(range(len(self._made))):
            picked = self._made[number]
            if not picked.version or self._changes.are_as(picked.made, picked.version):
                continue
            # Gradients would be added in another order than in eager, which changes signs of zeros.
            graded = torch.is_grad_enabled() and (picked.made.requires_grad or picked.base.requires_grad)
            if graded or not self._changes.are_as(picked.base, picked.base_version):
                self._hold(picked)
            else:
                put(picked.base, picked.index, picked.made, self._numbers)
                versions = self._changes.of(picked.made), self._changes.of(picked.base)
                self._made[number] = replace(picked, version=versions[0], base_version=versions[1])

    def use(self, node: Node, name: str, values: Mapping[int, torch.Tensor]) -> None:
        """Check the operands of a node before it runs, or all copies before autograd uses saved tensors."""
        if not self._made:
            return
        if name in _BACKWARD:
            self._look([picked.made for picked in self._made])
            return
        refs = node.inputs
        self._look([values[ref.index] for ref in refs if ref.index in values])

    def ask(self, program: Program, position: int, values: Mapping[int, torch.Tensor]) -> None:
        """Check what the host fetches at this position, and the tensors of assertions there."""
        if not self._made:
            return
        outputs = zip(program.outputs, program.output_after, strict=True)
        fetched = [ref for n, (ref, after) in enumerate(outputs) if after == position and n in program.fetched]
        asserted = [assertion.ref for assertion in program.assertions if assertion.after == position]
        self._look([values[ref.index] for ref in (*fetched, *asserted)])

    def check(self, results: Iterable[torch.Tensor], moved: bool) -> None:
        """Check that no result shares memory with a copy that represents a view. Raises Pin.

        ``moved``: tensors may have been moved to other memory, which no version shows."""
        seen = {memory_of(tensor) for tensor in results}
        for picked in self._made:
            if memory_of(picked.made) in seen:
                self._wrong.update(dict.fromkeys(picked.slots, "it picks a view that leaves the step"))
            elif moved:
                self._hold(picked)
        if self._wrong:
            raise Pin(self._wrong)

    def _is_fresh(self, picked: _DynamicCopy) -> bool:
        as_before = (picked.made, picked.version), (picked.base, picked.base_version)
        return all(self._changes.are_as(one, before) for one, before in as_before)

    def _look(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make constant the slots of copies in the memory of ``tensors`` if the copy or its base has changed since."""
        seen = {memory_of(one) for one in tensors if not torch._C._functorch.is_functorch_wrapped_tensor(one)}
        for picked in self._made if seen else ():
            if memory_of(picked.made) in seen and not self._is_fresh(picked):
                self._hold(picked)

    def _hold(self, picked: _DynamicCopy) -> None:
        self._wrong.update(dict.fromkeys(picked.slots, "it picks a view, and what that shows is changed in place"))


def picked_by(node: Node) -> tuple[int, ...]:
    """Return the slots that are integer subscripts in this call; () for other calls and unsupported subscripts."""
    return _by_slots(node) if node.func in SUBSCRIPTS and len(node.args) == 2 else ()


def put_by(node: Node) -> tuple[int, ...]:
    """Return the slots that are integer subscripts in this assignment; () for other nodes or subscripts."""
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
    """Return the slots that are bounds of slices in this call: ``x[:n]``.

    Some versions of torch drop a slice that spans the whole dimension, and so would a graph traced with a large ``n``.
    """
    if (node.func not in SUBSCRIPTS and node.func != torch.Tensor.__setitem__) or len(node.args) < 2:
        return ()
    index = node.args[1]
    windows = [part for part in (index if isinstance(index, tuple) else (index,)) if isinstance(part, slice)]
    places = itertools.chain.from_iterable((part.start, part.stop, part.step) for part in windows)
    return tuple(place.index for place in places if isinstance(place, Slot))


def pick(tensor: torch.Tensor, index: Any, numbers: Sequence[float | int], held: Container[int]) -> torch.Tensor:
    """``tensor[index]`` with slots in ``index``; those in ``held`` are constants.

    A number out of range raises in the graph, not here."""
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
    """Return one part for each dimension, existing or new; trailing full slices may be missing."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        taken = sum(part is not None for part in parts) - 1
        parts[place : place + 1] = [slice(None)] * (tensor.dim() - taken)
    return parts


def put(tensor: torch.Tensor, index: Any, value: Any, numbers: Sequence[float | int]) -> None:
    """``tensor[index] = value`` with slots in ``index``. A number out of range raises in the graph, not here."""
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
    """Selects one index of a dimension. Its gradient is zero elsewhere and keeps a zero's sign, as in eager."""

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

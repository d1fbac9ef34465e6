"""A recursion partitioned into forward and backward: its cells as functional ATen graphs for any number of calls.

Independent of schedules and of how graphs run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchjanus.core.errors import refused
from torchjanus.graph.operators.loop_op import new_key
from torchjanus.graph.recursion.cells.batch import batched, outputs_of
from torchjanus.graph.recursion.cells.split import CellParts, split_cell
from torchjanus.graph.recursion.variants.plan import Buffer, Cell, Recursion

__all__ = ["Partition", "TracedCells", "partition_of"]


class TracedCells:
    """A cache of traced cells. To trace one takes half a second, and a new variant leaves the other cells unchanged."""

    def __init__(self) -> None:
        # Each entry keeps its cell alive: forms identify functions by their address.
        self._parts: dict[Any, tuple[Cell, CellParts]] = {}
        self._flowing: dict[Any, tuple[Cell, tuple[bool, ...]]] = {}

    def parts(self, cell: Cell, recursion: Recursion, shared: Sequence[bool], active: Sequence[bool]) -> CellParts:
        """Return the batched cell, split into parts. Raises Refused."""
        key = _key_of(cell, recursion, shared, active)
        known = self._parts.get(key)
        if known is None:
            known = cell, split_cell(cell, batched(cell, recursion, shared, active))
            self._parts[key] = known
        return replace(known[1], cell=cell)

    def keep(self, parts: CellParts, recursion: Recursion, shared: Sequence[bool], active: Sequence[bool]) -> CellParts:
        """Return these parts, or those cached for an equal cell."""
        known = self._parts.setdefault(_key_of(parts.cell, recursion, shared, active), (parts.cell, parts))
        return replace(known[1], cell=parts.cell)

    def flowing(
        self, cell: Cell, recursion: Recursion, shared: Sequence[bool], active: Sequence[bool]
    ) -> tuple[bool, ...]:
        """Return for each output of the cell whether gradients flow back through it. Raises Refused."""
        key = _key_of(cell, recursion, shared, active)
        known = self._flowing.get(key)
        if known is None:
            known = cell, tuple(out.requires_grad for out in outputs_of(cell, recursion, shared, active))
            self._flowing[key] = known
        return known[1]


def _key_of(cell: Cell, recursion: Recursion, shared: Sequence[bool], active: Sequence[bool]) -> Any:
    """Return what the traced graph of a cell depends on."""
    buffers = recursion.buffers
    return (
        id(cell) if cell.form is None else cell.form,
        tuple(
            (one.size(), one.stride(), one.dtype, asked) for one, asked in zip(recursion.shared, shared, strict=True)
        ),
        tuple((buffers[index].shape, buffers[index].dtype, active[index]) for index in cell.takes),
        cell.columns,
        tuple((buffers[index].shape, buffers[index].dtype) for index in cell.gives),
    )


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Partition:
    """A recursion in both directions, for given gradient requirements of shared tensors and seeds. ``active``: the
    buffers that gradients flow through. ``tangents``: the results that have tangents. ``wanted`` and ``wanted_seeds``:
    the shared tensors and seeds whose gradients the backward returns, in this order."""

    owner: object
    key: int
    recursion: Recursion
    cells: tuple[CellParts, ...]
    active: tuple[bool, ...]
    tangents: tuple[int, ...]
    wanted: tuple[int, ...]
    wanted_seeds: tuple[int, ...]

    @property
    def result_buffers(self) -> list[Buffer]:
        """The buffers of the results."""
        return [self.recursion.buffers[index] for index in self.recursion.results]


def partition_of(
    owner: object, recursion: Recursion, shared: Sequence[bool], seeds: Sequence[bool], traced: TracedCells
) -> Partition:
    """Return the partition, where ``shared`` and ``seeds`` say which tensors require gradients. Raises Refused."""
    everything = [*(tensor.device for tensor in recursion.shared), *(buffer.device for buffer in recursion.buffers)]
    if any(device.type != "cpu" for device in everything):
        raise refused(
            "recursion-device", "a recursion works on another device than the processor", "That has not been tried."
        )
    active = _active(recursion, shared, seeds, traced)
    cells = [traced.parts(cell, recursion, shared, active) for cell in recursion.cells]
    return Partition(
        owner=owner,
        key=new_key(),
        recursion=recursion,
        cells=tuple(cells),
        active=tuple(active),
        tangents=tuple(place for place, index in enumerate(recursion.results) if active[index]),
        wanted=tuple(sorted({index for cell in cells for index in cell.wanted})),
        wanted_seeds=tuple(place for place, index in enumerate(recursion.seeds) if seeds[place] and active[index]),
    )


def _active(recursion: Recursion, shared: Sequence[bool], seeds: Sequence[bool], traced: TracedCells) -> list[bool]:
    """Return for each buffer whether gradients flow through it. Raises Refused."""
    active = [False] * len(recursion.buffers)
    for place, index in enumerate(recursion.seeds):
        active[index] |= seeds[place] and recursion.buffers[index].differentiable
    changed = True
    while changed:
        changed = False
        for cell in recursion.cells:
            for index, flows in zip(cell.gives, traced.flowing(cell, recursion, shared, active), strict=True):
                if not flows or active[index]:
                    continue
                if not recursion.buffers[index].differentiable:
                    what = f"{cell.name} gives gradients to a value that had none when it was watched"
                    raise refused("recursion-unseen", what, "They would be lost.")
                active[index] = changed = True
        for total in recursion.totals:
            flows = total.grad and (active[total.items] or (total.start is not None and active[total.start]))
            if flows and not active[total.gives]:
                active[total.gives] = changed = True
    return active

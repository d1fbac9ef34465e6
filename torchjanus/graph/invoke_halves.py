"""The cells of a recursion as functional ATen graphs for any number of calls at once, and what each is given.

Knows nothing of forests, nor of how graphs are run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.graph.invoke_batch import batched, outputs_of
from torchjanus.graph.invoke_cut import CellParts, cut
from torchjanus.graph.invoke_op import new_key
from torchjanus.graph.recursion import Buffer, Recursion

__all__ = ["Halves", "halves_of"]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Halves:
    """A recursion in both directions, for shared tensors and seeds of which some require gradients.

    ``active``: the buffers that gradients flow through. ``tangents``: the results that have them. ``wanted`` and
    ``wanted_seeds``: the shared tensors and seeds of which the backward gives gradients, in this order.
    """

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
        """The buffers of which the step takes rows."""
        return [self.recursion.buffers[index] for index in self.recursion.results]


def halves_of(owner: object, recursion: Recursion, shared: Sequence[bool], seeds: Sequence[bool]) -> Halves:
    """Both directions, where ``shared`` and ``seeds`` say what requires gradients. Raises Refused."""
    everything = [*(tensor.device for tensor in recursion.shared), *(buffer.device for buffer in recursion.buffers)]
    if any(device.type != "cpu" for device in everything):
        raise Refused(
            Refusal(NOWHERE, "a recursion works on another device than the processor", "That has not been tried.", "")
        )
    active = _active(recursion, shared, seeds)
    cells = [cut(cell, batched(cell, recursion, shared, active)) for cell in recursion.cells]
    return Halves(
        owner=owner,
        key=new_key(),
        recursion=recursion,
        cells=tuple(cells),
        active=tuple(active),
        tangents=tuple(place for place, index in enumerate(recursion.results) if active[index]),
        wanted=tuple(sorted({index for cell in cells for index in cell.wanted})),
        wanted_seeds=tuple(place for place, index in enumerate(recursion.seeds) if seeds[place] and active[index]),
    )


def _active(recursion: Recursion, shared: Sequence[bool], seeds: Sequence[bool]) -> list[bool]:
    """Which buffers gradients flow through. Raises Refused."""
    active = [False] * len(recursion.buffers)
    for place, index in enumerate(recursion.seeds):
        active[index] |= seeds[place] and recursion.buffers[index].differentiable
    changed = True
    while changed:
        changed = False
        for cell in recursion.cells:
            for index, out in zip(cell.gives, outputs_of(cell, recursion, shared, active), strict=True):
                if not out.requires_grad or active[index]:
                    continue
                if not recursion.buffers[index].differentiable:
                    what = f"{cell.name} gives gradients to a value that had none when it was watched"
                    raise Refused(Refusal(NOWHERE, what, "They would be lost.", ""))
                active[index] = changed = True
        for total in recursion.totals:
            flows = total.grad and (active[total.items] or (total.start is not None and active[total.start]))
            if flows and not active[total.gives]:
                active[total.gives] = changed = True
    return active

"""Keeps what a program asks for at positions of a run: results, assertion flags, sizes, numbers of draws.

Later operations may change tensors in place, so values are copied at their position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from torchjanus.graph.aten.clean_up import is_random
from torchjanus.graph.aten.symbolic_sizes import geometry, key
from torchjanus.graph.ir.program import Program
from torchjanus.graph.ir.tensor_versions import Changes

__all__ = ["Snapshots"]


class Snapshots:
    """The snapshots of one run with these ``values``. ``moves``: see ``Replacing``."""

    def __init__(self, program: Program, values: Mapping[int, torch.Tensor], changes: Changes, moves: bool) -> None:
        self.measured: dict[int, Any] = {}  # the program's measures
        self.flags: list[torch.Tensor] = []  # whether its assertions hold
        self.drawn: list[int] = []  # random operations before each cut
        self._program = program
        self._values = values
        self._changes = changes
        self._moves = moves
        # The tensor, a copy, and the tensor's version when it was copied.
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]] = {}

    def take(self, position: int) -> None:
        """Keep what is asked for at this position."""
        program, values = self._program, self._values
        for number, measure in enumerate(program.measures):
            if measure.after == position:
                self.measured[number] = values[measure.ref.index].size(measure.dim)
        at_cut = {number for cut in program.cuts if cut.after == position for number in cut.outputs}
        for cut in program.cuts:
            if cut.after == position:
                tracer = get_proxy_mode().tracer  # type: ignore[union-attr]
                self.drawn.append(sum(is_random(node) for node in tracer.graph.nodes))
        with torch.no_grad():
            for number, (ref, after) in enumerate(zip(program.outputs, program.output_after, strict=True)):
                if after == position and (after < len(program.nodes) or number in at_cut):
                    value = values[ref.index]
                    # Values that the host needs at a cut must not depend on updates that are not committed yet.
                    held = number in at_cut or self._moves  # several aliases have several versions
                    version = () if held else self._changes.of(value)
                    self._kept[number] = (value, _copied(value.detach()), version)
            for assertion in program.assertions:
                if assertion.after == position:
                    value = values[assertion.ref.index].detach()
                    truth = value.reshape(()) if value.dtype == torch.bool else value.reshape(()) != 0
                    self.flags.append(truth if assertion.expected else truth.logical_not())

    def finals(self) -> list[torch.Tensor]:
        """Return the outputs as they were at their positions: a copy only where the tensor has changed since."""
        found = []
        for number, ref in enumerate(self._program.outputs):
            if number in self._kept:
                live, copy, version = self._kept[number]
                found.append(live if self._changes.are_as(live, version) else copy)
            else:
                found.append(self._values[ref.index])
        return found


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the layout of the tensor, gaps included: native code sees strides."""
    copy = tensor.clone()
    if geometry(copy) == geometry(tensor) or tensor.is_conj() or tensor.is_neg():
        return copy
    if key(tensor.numel()) == 0:
        return copy
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,)).clone().as_strided(tensor.size(), tensor.stride())

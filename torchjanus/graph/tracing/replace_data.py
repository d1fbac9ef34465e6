"""``x.data = y``: from then on tensor x uses the memory of y, and its old memory is released.

Optimizers that step aside and back (SAM, adversarial training) restore parameters like this, and averages and target
networks are made so. In a trace, the fake of x moves to the memory of y's fake and maps to the same node: changes of
one are changes of both, and x stays the leaf in autograd's graph. The commit moves the real tensor to the memory of a
value that the graph made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, set_proxy_slot

from torchjanus.core.errors import refused
from torchjanus.graph.aten.symbolic_sizes import geometry
from torchjanus.graph.ir.lowered import FromInput, Replaced, Result, Source, ViewOf
from torchjanus.graph.ir.program import Node

__all__ = ["SET_DATA", "DataReplacements"]

SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _OriginalMemory:
    """A tensor, an alias of the memory it had at first, and its version then."""

    tensor: torch.Tensor
    memory: torch.Tensor
    version: int


class DataReplacements:
    """The replacements in one run of a program on fake tensors."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._kept: dict[int, _OriginalMemory] = {}
        self.expected = any(node.func == SET_DATA for node in nodes)

    def put(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """``tensor.data = other``. Raises Refused."""
        content = other.detach()
        if geometry(tensor) != geometry(content):
            what = "'x.data = y' replaces a tensor's storage, and the two differ in size or strides"
            raise refused("data-assignment", what, "A graph takes tensors of the sizes they had.", "Use x.copy_(y).")
        if _place(content) == _place(tensor):
            return  # x.data -= y
        mode = get_proxy_mode()
        assert mode is not None
        if id(tensor) not in self._kept:
            self._kept[id(tensor)] = _OriginalMemory(tensor, tensor.detach(), tensor._version)
        tensor.data = content
        set_proxy_slot(tensor, mode.tracer, get_proxy_slot(content, mode.tracer))

    def before(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return aliases of these tensors' memory at the start of the run."""
        return [self._kept[id(t)].memory if id(t) in self._kept else t for t in tensors]

    def moved(self, inputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Return the inputs that moved, with their memory now. An object that is several inputs counts once."""
        first = {id(tensor): index for index, tensor in reversed([*enumerate(inputs)])}
        return {first[key]: kept.tensor.detach() for key, kept in self._kept.items() if key in first}

    def replaced(self, inputs: Sequence[torch.Tensor], sources: dict[int, Source]) -> tuple[Replaced, ...]:
        """Return what the commit has to move. ``sources``: those of ``moved``'s tensors, by input. Raises Refused."""
        found = []
        for index, source in sources.items():
            if isinstance(source, ViewOf) and isinstance(source.base, FromInput):
                if source.base.index == index:
                    continue  # it was restored
                what = "'x.data = y' leaves a tensor in the memory of another that was there before"
                raise refused("data-assignment", what, "A change of one would be one of both.", "Use x.copy_(y).")
            kept = self._kept[id(inputs[index])]
            found.append(Replaced(index, Result(source), kept.tensor._version != kept.version))
        return tuple(found)


def _place(tensor: torch.Tensor) -> tuple[int, object]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset()

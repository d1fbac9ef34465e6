"""Whether a tensor of a run is still what it was, as torch counts its changes in place.

Tensors that share memory share a count, but for ``x.data``, which has one of its own: what is changed under that name
is not counted for ``x``. So all counts that there are of one memory are asked. Knows nothing of graphs.
"""

from __future__ import annotations

import torch

__all__ = ["GET_DATA", "Changes", "memory_of"]

GET_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def memory_of(tensor: torch.Tensor) -> int:
    """The same number for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)


class Changes:
    """Of one run."""

    def __init__(self) -> None:
        self._counted: dict[int, list[torch.Tensor]] = {}  # tensors with counts of their own, by their memory

    def part(self, tensor: torch.Tensor, data: torch.Tensor) -> None:
        """``data`` is ``tensor.data``: from now on each counts for itself."""
        self._counted.setdefault(memory_of(tensor), []).extend((tensor, data))

    def of(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """How often it has been changed up to now; nothing of what was made in inference mode, which does not count."""
        counted = (tensor, *self._counted.get(memory_of(tensor), ()))
        return () if any(one.is_inference() for one in counted) else tuple(one._version for one in counted)

    def are_as(self, tensor: torch.Tensor, before: tuple[int, ...]) -> bool:
        """Whether it is known to be what it was when this was how often it had been changed."""
        return bool(before) and self.of(tensor) == before

"""A device that captures on the CPU: calls of ATen are recorded, and a launch repeats them in the same memory.

It stands in for CUDA where there is none, and is as strict. Numbers and decisions of the host are those of the capture.
While work is captured it is not done, and the host cannot read a value. Each launch writes to the memory of the
capture. What is fetched arrives later. This module knows nothing of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torchjanus.execute.cuda_graph.device import Captured, Fetched
from torchjanus.ops.aten import operator_of

__all__ = ["Recorded", "RecordedFetch"]

T = TypeVar("T")
_HOST = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2"})


class Recorded:
    """See the device's interface. ``lag``: how many launches after it was begun a fetch is ready without waiting."""

    name = "recorded"

    def __init__(self, holds: Callable[[torch.Tensor], bool] = lambda tensor: True, lag: int = 0) -> None:
        self.holds = holds
        self.lag = lag
        self.launches = self.captures = self.waits = 0

    def free(self) -> bool:
        """See Device.free."""
        return True

    def pool(self) -> object:
        """See Device.pool: the captures that are in it. A launch of one spoils what the others have written."""
        return list[_Repeated]()

    def capture(self, work: Callable[[], T], pool: Any) -> tuple[Captured, T]:
        """See Device.capture."""
        before, tape = torch.get_rng_state(), _Tape()
        try:
            with torch.no_grad(), tape:
                made = work()
        finally:
            torch.set_rng_state(before)
            tape.undo()
        self.captures += 1
        pool.append(repeated := _Repeated(self, tape.calls, pool))
        return repeated, made

    def fetch(self, tensors: list[torch.Tensor]) -> Fetched:
        """See Device.fetch."""
        return RecordedFetch(self, [tensor.clone() for tensor in tensors])

    def finish(self) -> None:
        """See Device.finish: launches are done at once here."""


class RecordedFetch:
    """Tensors that arrive when the device has made ``lag`` more launches, or somebody waits."""

    def __init__(self, device: Recorded, tensors: list[torch.Tensor]) -> None:
        self._device, self._tensors = device, tensors
        self._due = device.launches + device.lag

    def ready(self) -> bool:
        """See Fetched.ready."""
        return self._device.launches >= self._due

    def wait(self) -> list[torch.Tensor]:
        """See Fetched.wait."""
        if not self.ready():
            self._device.waits += 1
        return self._tensors


class _Tape(TorchDispatchMode):
    """Records calls. ``undo`` puts back what they wrote to memory from before, and spoils what they made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, list[tuple[torch.Tensor, int]]]] = []
        self._own: dict[int, torch.Tensor] = {}  # by storage: what was made here
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = operator_of(func)
        if known.name in _HOST or torch.Tag.dynamic_output_shape in func.tags:
            raise RuntimeError(f"{func}: operation not permitted when stream is capturing")
        given = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if func._schema.is_mutable:
            for tensor in given:
                self._save(tensor)
        made = func(*args, **kwargs)
        shared = {_memory(tensor) for tensor in given}
        fresh = [
            (tensor, place)
            for place, tensor in enumerate(pytree.tree_leaves(made))
            if isinstance(tensor, torch.Tensor) and _memory(tensor) not in shared
        ]
        self._own.update((_memory(tensor), tensor) for tensor, _ in fresh)
        if fresh or func._schema.is_mutable:  # views stay where they are
            self.calls.append((func, args, kwargs, fresh))
        return made

    def _save(self, tensor: torch.Tensor) -> None:
        key = _memory(tensor)
        if key not in self._own and key not in self._saved:
            whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            self._saved[key] = whole, whole.clone()

    def undo(self) -> None:
        for whole, before in self._saved.values():
            whole.copy_(before)
        _spoil(self._own.values())


class _Repeated:
    def __init__(self, device: Recorded, calls: Any, pool: list[_Repeated]) -> None:
        self._device, self._calls, self._pool = device, calls, pool

    def launch(self) -> None:
        self._device.launches += 1
        for other in self._pool:
            if other is not self:
                _spoil(tensor for *_, fresh in other._calls for tensor, _ in fresh)
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            for func, args, kwargs, fresh in self._calls:
                made = pytree.tree_leaves(func(*args, **kwargs))
                for tensor, place in fresh:
                    tensor.copy_(made[place])


def _spoil(tensors: Iterable[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor in tensors:
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).fill_(float("nan"))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]

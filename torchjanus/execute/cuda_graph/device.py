"""What captures and launches: the interface of a device, and CUDA's.

Knows neither steps nor their graphs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch.utils import _pytree as pytree

__all__ = ["Captured", "Cuda", "Device", "Fetched", "device_of", "substituted"]

T = TypeVar("T")


class Fetched(Protocol):
    """Tensors on their way to the host."""

    def ready(self) -> bool:
        """Whether they have arrived. Does not wait."""
        ...

    def wait(self) -> list[torch.Tensor]:
        """Return them, in the host's memory."""
        ...


class Captured(Protocol):
    """Captured work."""

    def launch(self) -> None:
        """Do it all once more, in the memory that it was captured with. Returns before it is done."""
        ...


class Device(Protocol):
    """One device. Its methods are called with that device's work in the order of the calls."""

    name: str

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether captured work may use this tensor (a fake one, too)."""
        ...

    def free(self) -> bool:
        """Whether something can be launched here now. What is launched next comes after what was launched before, even
        if the program has changed streams."""
        ...

    def pool(self) -> object:
        """Return a memory pool. Captures of one pool share memory: each may overwrite what another one has written."""
        ...

    def capture(self, work: Callable[[], T], pool: object) -> tuple[Captured, T]:
        """Capture what ``work`` does, without doing it. Returns it, and the result of ``work``: tensors
        whose contents each launch writes anew. Raises RuntimeError where something cannot be captured."""
        ...

    def fetch(self, tensors: list[torch.Tensor]) -> Fetched:
        """Begin to copy tensors to the host."""
        ...

    def finish(self) -> None:
        """Wait until all work is done."""
        ...


class Cuda:
    """A CUDA device. Captures are made on a stream of their own; launches go to the program's current stream."""

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        self._device = torch.device("cuda", index)
        self._side = torch.cuda.Stream(self._device)
        self._last: torch.cuda.Stream | None = None

    def holds(self, tensor: torch.Tensor) -> bool:
        """See Device.holds."""
        return tensor.device.type == "cuda" and (tensor.device.index or 0) == self._device.index

    def free(self) -> bool:
        """See Device.free: not while the program itself captures."""
        if torch.cuda.is_current_stream_capturing():
            return False
        current = torch.cuda.current_stream(self._device)
        if self._last is not None and current != self._last:
            current.wait_stream(self._last)
        self._last = current
        return True

    def pool(self) -> object:
        """See Device.pool."""
        return torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], T], pool: object) -> tuple[Captured, T]:
        """See Device.capture. Random operations of a launch draw by the offsets that the generator has then, and
        advance it as they do uncaptured: PyTorch registers the default generator with each capture."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            with torch.cuda.device(self._device), self._capturing(graph, pool):
                made = work()
        except Exception:
            torch.cuda.set_stream(current)  # a capture that cannot end stays on its own
            self._recover()
            raise
        return _CudaGraph(graph, self._device), made

    def _capturing(self, graph: torch.cuda.CUDAGraph, pool: Any) -> torch.cuda.graph:
        # Other threads (one that pins a loader's memory) may allocate meanwhile.
        return torch.cuda.graph(graph, pool=pool, stream=self._side, capture_error_mode="thread_local")

    def _recover(self) -> None:
        """After a capture that failed: the generator still counts as captured, until another capture has ended."""
        torch.cuda.synchronize(self._device)
        nothing = torch.zeros(1, device=self._device)
        with torch.cuda.device(self._device), self._capturing(torch.cuda.CUDAGraph(), self.pool()):
            nothing.add_(1)

    def fetch(self, tensors: list[torch.Tensor]) -> Fetched:
        """See Device.fetch."""
        return _CudaFetched(tensors)

    def finish(self) -> None:
        """See Device.finish."""
        torch.cuda.synchronize(self._device)


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
        self._graph, self._device = graph, device

    def launch(self) -> None:
        with torch.cuda.device(self._device):
            self._graph.replay()


class _CudaFetched:
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._made = [torch.empty(t.size(), dtype=t.dtype, pin_memory=True) for t in tensors]
        for made, tensor in zip(self._made, tensors, strict=True):
            made.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def ready(self) -> bool:
        return self._event.query()  # type: ignore[no-any-return]

    def wait(self) -> list[torch.Tensor]:
        self._event.synchronize()
        return self._made


_CUDA: dict[int, Cuda] = {}
_OTHER: list[Device] = []
_ONE = threading.Lock()


def device_of(graph: torch.fx.Graph) -> Device | None:
    """Return the device on which a graph works, if it is one that can capture, and the only one beside the host."""
    if not _OTHER and not torch.cuda.is_initialized():  # large graphs have thousands of nodes
        return None
    values = (value for node in graph.nodes for value in pytree.tree_leaves(node.meta.get("val")))
    found = [value for value in values if isinstance(value, torch.Tensor)]
    if _OTHER:
        return _OTHER[-1] if any(map(_OTHER[-1].holds, found)) else None
    indices = {tensor.device.index or 0 for tensor in found if tensor.device.type == "cuda"}
    if len(indices) != 1 or torch.version.hip is not None:
        return None
    (index,) = indices
    with _ONE:
        if index not in _CUDA:
            _CUDA[index] = Cuda(index)
        return _CUDA[index]


@contextmanager
def substituted(device: Device) -> Iterator[None]:
    """Capture and launch by this device instead, for tests and for benchmarks of the host's part."""
    _OTHER.append(device)
    try:
        yield
    finally:
        _OTHER.remove(device)

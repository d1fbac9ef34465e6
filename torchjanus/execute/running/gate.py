"""The gate before a commit: a run's ambient state, its flags, and the generators to restore. It knows no executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.default_device import without_function_modes
from torchjanus.execute.running.base import Violated
from torchjanus.graph.aten.clean_up import is_random
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["Ambience", "Generators", "State", "below_autograd", "failed"]


class Ambience:
    """The state in which ATen code runs: no gradients, no autocast, no function modes, the program's default dtype. Use
    it once."""

    __slots__ = ("_autocast", "_dtype", "_grad", "_modes", "_wanted")

    def __init__(self, lowered: Lowered) -> None:
        self._wanted = lowered.default_dtype
        self._autocast: list[str] = []
        self._modes: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        if torch._C._len_torch_function_stack():
            self._modes = without_function_modes()
            self._modes.__enter__()
        self._grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        self._dtype = torch.get_default_dtype()
        if self._dtype is not self._wanted:
            torch.set_default_dtype(self._wanted)
        if torch._C._is_any_autocast_enabled():
            self._autocast = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
            for device in self._autocast:
                torch.set_autocast_enabled(device, False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for device in self._autocast:
            torch.set_autocast_enabled(device, True)
        self._autocast = []
        if self._dtype is not self._wanted:
            torch.set_default_dtype(self._dtype)
        torch._C._set_grad_enabled(self._grad)
        if self._modes is not None:
            modes, self._modes = self._modes, None
            modes.__exit__(None, None, None)


State = list[torch.Tensor]

# Nothing is recorded: no backward graph, no versions of tensors, no view relations. A new result may be changed in
# place like any other tensor.
below_autograd: Callable[[], AbstractContextManager[None]] = getattr(
    torch._C, "_AutoDispatchBelowADInplaceOrView", torch._C._AutoDispatchBelowAutograd
)


class Generators:
    """The default generators that a graph draws from; none if it draws nothing."""

    __slots__ = ("_generators",)

    def __init__(self, lowered: Lowered) -> None:
        self._generators: list[torch.Generator] = []
        if lowered.random:
            devices = {device.index or 0 for device in _devices(lowered.graph.graph) if device.type == "cuda"}
            on_devices = (torch.cuda.default_generators[index] for index in sorted(devices))
            self._generators = [torch.default_generator, *on_devices]

    def save(self) -> State:
        """Return their current states."""
        return [generator.get_state() for generator in self._generators]

    def restore(self, states: State) -> None:
        """Restore every generator."""
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def _devices(graph: torch.fx.Graph) -> Iterator[torch.device]:
    """Yield the devices of what the graph draws."""
    for node in filter(is_random, graph.nodes):
        made = pytree.tree_leaves(node.meta.get("val"))
        yield from (value.device for value in made if isinstance(value, torch.Tensor))


def failed(flags: torch.Tensor) -> Violated | None:
    """Return the assertions that do not hold; None if all hold."""
    if bool(flags.all()):
        return None
    return Violated(tuple(number for number, holds in enumerate(flags.tolist()) if not holds))

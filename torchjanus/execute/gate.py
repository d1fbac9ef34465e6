"""The gate before a commit: the ambient state of a run, its flags, and the generators to put back. Knows no executor."""

from __future__ import annotations

from types import TracebackType

import torch

from torchjanus.execute.base import Violated
from torchjanus.graph.lowered import Lowered

__all__ = ["Ambience", "Generators", "failed"]


class Ambience:
    """Under which ATen code runs: no gradients, no autocast, the program's default dtype. Reusable, not reentrant."""

    __slots__ = ("_autocast", "_dtype", "_grad", "_wanted")

    def __init__(self, lowered: Lowered) -> None:
        self._wanted = lowered.default_dtype
        self._autocast: list[str] = []

    def __enter__(self) -> None:
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


class Generators:
    """The default generators that a graph draws from, as they were. Empty where it draws nothing."""

    __slots__ = ("_states",)

    def __init__(self, lowered: Lowered) -> None:
        self._states: list[tuple[torch.Generator, torch.Tensor]] = []
        if lowered.random:
            self._states.append((torch.default_generator, torch.default_generator.get_state()))
            devices = {entry.example.device for entry in lowered.program.inputs if entry.example.device.type == "cuda"}
            for device in devices:
                generator = torch.cuda.default_generators[device.index or 0]
                self._states.append((generator, generator.get_state()))

    def restore(self) -> None:
        """Put every generator back."""
        for generator, state in self._states:
            generator.set_state(state)

    def same(self, other: Generators) -> bool:
        """Whether the generators were in the same states when ``other`` was made."""
        return all(torch.equal(mine[1], theirs[1]) for mine, theirs in zip(self._states, other._states, strict=True))


def failed(flags: torch.Tensor) -> Violated | None:
    """Which assertions do not hold; None where all do."""
    if bool(flags.all()):
        return None
    return Violated(tuple(number for number, holds in enumerate(flags.tolist()) if not holds))

"""The replay executor: the graph as straight-line Python over ATen calls. Bitwise eager, and nothing to compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchjanus.execute.base import Numbers, Violated
from torchjanus.execute.gate import Ambience, Generators, failed
from torchjanus.execute.invoke import ready_calls
from torchjanus.execute.loop import ready
from torchjanus.execute.printing import ReplaySource
from torchjanus.graph.lowered import Lowered

__all__ = ["Replay"]

Compute = Callable[[Sequence[torch.Tensor], Numbers], list[torch.Tensor]]


class Replay:
    """Runs a lowered graph by calling ATen, operator by operator, with eager's kernels in eager's order."""

    name = "replay"

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        source = ReplaySource(lowered.graph, len(lowered.program.inputs))
        self.source = source.generate()
        self._compute: Compute = source.compute(self.source)
        self._loops = ready(lowered.program)
        self._calls = ready_calls(lowered.program)
        self._generators = Generators(lowered)

    def compute(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor]:
        """All flat values of the graph (see Lowered). Changes nothing but the generators."""
        # Below autograd, which would only find that there is nothing to record: a fifth of the time of small steps.
        with Ambience(self.lowered), torch._C._AutoDispatchBelowAutograd():
            return self._compute(inputs, slots)

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """See Executable.fits: always."""
        return True

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """See Executable.run."""
        lowered = self.lowered
        states = self._generators.save()
        try:
            values = self.compute(inputs, slots)
            violated = None if lowered.flags is None else failed(values[lowered.flags])
        except BaseException:
            self._generators.restore(states)
            raise
        if violated is not None:
            self._generators.restore(states)
            return violated
        self.commit(inputs, values)
        del values[lowered.fresh :]
        return values

    def commit(self, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Write the updates among ``values`` into the mutated inputs."""
        lowered = self.lowered
        if lowered.mutated:
            with torch.no_grad():
                torch._foreach_copy_([inputs[index] for index in lowered.mutated], list(values[lowered.updates :]))

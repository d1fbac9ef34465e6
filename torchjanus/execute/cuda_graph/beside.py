"""Runs the host's half of a graph, and then the device's by whatever executor that has.

Knows no device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Numbers, Updating, Violated
from torchjanus.execute.running.gate import Ambience, Generators, below_autograd
from torchjanus.execute.running.printing import ReplaySource
from torchjanus.graph.aten.host_part import HostPart
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["Beside"]

Run = Callable[[Sequence[torch.Tensor], Numbers], "list[torch.Tensor] | Violated"]


class Beside:
    """Runs a lowered graph in two halves (see HostPart): first the host's, which changes nothing; then the device's,
    which commits; then the host's updates are written."""

    name = "replay"

    def __init__(self, lowered: Lowered, part: HostPart) -> None:
        self.lowered, self.part = lowered, part
        source = ReplaySource(part.graph, len(lowered.program.inputs))
        self._compute = source.compute(source.generate())
        self._generators = Generators(lowered)
        self._run: Run | None = None
        self._there = [number for number, (there, _) in enumerate(part.flags) if there]
        self._here = [number for number, (there, _) in enumerate(part.flags) if not there]

    def use(self, run: Run) -> None:
        """Run the device's half by ``run`` from the next call on."""
        self._run = run

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """See Executable.run."""
        part, states = self.part, self._generators.save()
        assert self._run is not None
        try:
            with Ambience(self.lowered), below_autograd():
                made = self._compute(inputs, slots)
        except Exception:  # nothing has changed; the whole graph finds out why
            self._generators.restore(states)
            return Replay.of(self.lowered).run(inputs, slots)
        live, rest = made[: part.live], made[part.live :]
        fresh = rest[: len(rest) - len(self._here) - len(part.mutated)]
        flags = rest[len(fresh) : len(fresh) + len(self._here)]
        if broken := [number for number, flag in zip(self._here, flags, strict=True) if not bool(flag)]:
            self._generators.restore(states)
            return Violated(tuple(broken))
        try:
            found = self._run([*(inputs[number] for number in part.given), *live], slots)
        except Updating:
            raise
        except BaseException:
            self._generators.restore(states)
            raise
        if isinstance(found, Violated):
            self._generators.restore(states)
            return Violated(tuple(self._there[number] for number in found.assertions))
        try:
            if part.mutated:
                with torch.no_grad():
                    torch._foreach_copy_(
                        [inputs[number] for number in part.mutated], rest[len(rest) - len(part.mutated) :]
                    )
        except Exception as error:  # the device has updated its inputs
            raise Updating(error) from None
        return [found[position] if there else fresh[position] for there, position in part.fresh]

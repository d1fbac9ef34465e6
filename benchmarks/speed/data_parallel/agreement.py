"""What ranks spend on agreeing: looking at flags before collectives, and an all-reduce of one number."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchjanus.execute.staged import StagedRun

__all__ = ["Cuts", "one_flag"]


@dataclass
class Cuts:
    """What the calls of graphs spend at their collectives: the seconds of each call in which flags are looked at, and
    the graph stops and goes on."""

    seconds: float = 0.0
    flags: int = 0
    _computing: float = 0.0

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Time all graphs within the context."""
        advance, compute = StagedRun.advance, StagedRun.compute

        def timed_compute(run: Any, *given: Any) -> Any:
            begun = time.perf_counter()
            flags, values = compute(run, *given)
            self._computing += time.perf_counter() - begun
            self.flags += sum(isinstance(flag, Tensor) for flag in flags or ())
            return flags, values

        def timed_advance(run: Any, inputs: Any, slots: Any, stage: int) -> Any:
            begun, self._computing = time.perf_counter(), 0.0
            found = advance(run, inputs, slots, stage)
            if stage < len(run._staged.lowered.program.cuts):
                self.seconds += time.perf_counter() - begun - self._computing
            return found

        StagedRun.advance, StagedRun.compute = timed_advance, timed_compute  # type: ignore[method-assign]
        try:
            yield
        finally:
            StagedRun.advance, StagedRun.compute = advance, compute  # type: ignore[method-assign]


def one_flag(times: int = 50) -> float:
    """Return the microseconds of an all-reduce of one number: the median."""
    taken = []
    for _ in range(times):
        flag = torch.zeros(1)
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(flag)
        taken.append(1e6 * (time.perf_counter() - begun))
    return statistics.median(taken)

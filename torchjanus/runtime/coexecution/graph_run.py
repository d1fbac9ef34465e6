"""Runs a path's graph once, stage by stage, beside a skeleton. Nobody else may draw from its generators meanwhile.

Knows neither placeholders nor what makes a path.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchjanus.execute.running.base import Violated
from torchjanus.runtime.coexecution.graph import Served
from torchjanus.semantics.torch.torch_state import generator_state

__all__ = ["GraphRun", "restored", "saved"]


def restored(states: Sequence[torch.Tensor]) -> None:
    """Put the generators into these states (see ``saved``)."""
    for generator, state in zip(_generators(), states, strict=False):
        generator.set_state(state)


def saved() -> list[torch.Tensor]:
    """Return the states of torch's generators."""
    return [generator.get_state() for generator in _generators()]


def _generators() -> list[torch.Generator]:
    return [torch.default_generator]


class GraphRun:
    """One run. Nothing is computed before ``advance``."""

    def __init__(self, served: Served) -> None:
        self.seconds = 0.0
        self._served = served
        self._run = served.begin_graph()
        self._stage = 0
        self._drawn = generator_state() if served.draws else b""  # the state that nobody else may have changed

    def advance(
        self, stage: int, values: Sequence[Any], private: Mapping[int, torch.Tensor], numbers: Sequence[Any]
    ) -> list[torch.Tensor]:
        """Run the graph to the end of this stage, and return what it gives there. ``values``: the tensors by number, of
        which those in ``private`` have copies; ``numbers``: the slots."""
        served = self._served
        inputs = served.plan.inputs
        made: list[torch.Tensor] | Violated = []
        begun = time.perf_counter()
        while self._stage <= stage:
            if self.reseeded():
                raise RuntimeError("the generator was moved by somebody else")
            given = [private.get(inputs[index], values[inputs[index]]) for index in served.inputs[self._stage]]
            slots = [numbers[index] for index in served.slots[self._stage]]
            made = self._run.advance(given, slots, self._stage)
            assert not isinstance(made, Violated)
            self._stage += 1
            self.drawn()
        assert not isinstance(made, Violated)
        self.seconds += time.perf_counter() - begun
        return made

    def reseeded(self) -> bool:
        """Whether somebody else has moved the generators that the graph draws from."""
        return self._served.draws and generator_state() != self._drawn

    def drawn(self) -> None:
        """Record the states of the generators: the graph, or the skeleton for it, has drawn."""
        if self._served.draws:
            self._drawn = generator_state()

    def abandon(self) -> None:
        """Drop the run. It has written nothing."""
        self._run.abandon()

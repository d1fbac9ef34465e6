"""What a training is: its steps one by one, what is measured of it now and then, and when it is good.

Programs are written as their users would write them: a training loop around a step, which ``jit`` decorates. They know
nothing of what ``jit`` is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

__all__ = ["PROGRAMS", "Jit", "Recipe", "Training", "training"]

Jit = Callable[[Callable[..., Any]], Callable[..., Any]]


class Training(NamedTuple):
    """``losses`` trains one step for each number that is taken from it, without end. ``metric`` says how good the model
    is, and leaves everything as it was, random numbers too. ``state``: all that is trained."""

    losses: Iterator[float]
    metric: Callable[[], float]
    state: Any


class Maker(Protocol):
    def __call__(self, jit: Jit, seed: int, small: bool = False) -> Training: ...


@dataclass(frozen=True)
class Recipe:
    """One program. ``target`` is what the metric has to reach, ``close`` how far losses of replay may be from eager's,
    relatively: 0.0 is bitwise."""

    name: str
    about: str
    metric: str
    target: float
    steps: int
    every: int  # steps between two looks at the metric
    make: Maker
    higher: bool = True  # whether higher is better
    close: float = 0.0

    def reached(self, value: float) -> bool:
        return value >= self.target if self.higher else value <= self.target


PROGRAMS: dict[str, Recipe] = {}


def training(
    name: str,
    *,
    about: str,
    metric: str,
    target: float,
    steps: int,
    every: int,
    higher: bool = True,
    close: float = 0.0,
) -> Callable[[Maker], Maker]:
    """Enters a maker in ``PROGRAMS``. Equal seeds give bitwise equal trainings."""

    def enter(make: Maker) -> Maker:
        def seeded(jit: Jit, seed: int, small: bool = False) -> Training:
            torch.manual_seed(seed)
            return make(jit, seed, small)

        PROGRAMS[name] = Recipe(name, about, metric, target, steps, every, seeded, higher, close)
        return make

    return enter

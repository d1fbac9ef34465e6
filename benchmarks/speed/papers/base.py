"""What every program of the papers is: how it is made, what is known of it, and where its data come from.

Programs are written as their users would write them; they know nothing of any compiler, and this module knows none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["PROGRAMS", "Batch", "Program", "Recipe", "images", "program", "text"]

Batch = tuple[Any, ...]


class Program(NamedTuple):
    """``step(*batch)`` trains once, for each of the endless ``batches``; ``state`` is all that it changes."""

    step: Callable[..., Any]
    batches: Iterator[Batch]
    state: Any


class Maker(Protocol):
    def __call__(self, seed: int, small: bool = False) -> Program: ...


@dataclass(frozen=True)
class Recipe:
    """One program of the papers. ``period``: after how many batches the kinds of work have all had their turn."""

    name: str
    paper: str
    dynamic: str  # what is dynamic about it
    size: str  # what it is run on, and where that is less than in the paper
    make: Maker
    period: int = 1
    static: bool = False  # one path and one set of shapes in every call: a symbolic version by hand can exist


PROGRAMS: dict[str, Recipe] = {}


def program(
    name: str, *, paper: str, dynamic: str, size: str, period: int = 1, static: bool = False
) -> Callable[[Maker], Maker]:
    """Enters a maker in ``PROGRAMS``. Equal seeds give bitwise equal programs, and leave equal generators."""

    def enter(make: Maker) -> Maker:
        def seeded(seed: int, small: bool = False) -> Program:
            torch.manual_seed(seed)
            made = make(seed, small)
            # What making took from the generator is no part of the training.
            torch.manual_seed(seed + 1)
            return made

        PROGRAMS[name] = Recipe(name, paper, dynamic, size, seeded, period, static)
        return make

    return enter


# -- data --------------------------------------------------------------------------------------------------------------


def images(
    random: np.random.Generator, count: int, channels: int, side: int, classes: int = 10
) -> tuple[Tensor, Tensor]:
    """Pictures of gratings, whose direction is their class, with noise: there is something to learn in them."""
    labels = random.integers(classes, size=count)
    angles = np.pi * labels / classes + random.normal(0.0, 0.05, count)
    rows, columns = np.mgrid[0:side, 0:side] / side
    waves = np.sin(20 * (np.cos(angles)[:, None, None] * rows + np.sin(angles)[:, None, None] * columns))
    pictures = waves[:, None] + random.normal(0.0, 0.3, (count, channels, side, side))
    return torch.from_numpy(pictures.astype(np.float32)), torch.from_numpy(labels)


def text(random: np.random.Generator, length: int, vocabulary: int) -> np.ndarray[Any, Any]:
    """Words as common as in natural language (Zipf), each followed by its favourite one in a third of all places."""
    ranks = np.arange(1, vocabulary + 1)
    words = random.choice(vocabulary, size=length, p=(1 / ranks) / (1 / ranks).sum())
    favourite = np.random.default_rng(0).permutation(vocabulary)
    follows = random.random(length) < 1 / 3
    for place in range(1, length):
        if follows[place]:
            words[place] = favourite[words[place - 1]]
    return words

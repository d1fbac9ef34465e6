"""Where the fuzzer's decisions come from: hypothesis's draws, or chance, behind a few questions."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies

__all__ = ["Choices", "RandomChoices"]

T = TypeVar("T")


@functools.cache
def _numbers(count: int) -> strategies.SearchStrategy[int]:
    return strategies.integers(0, count - 1)


class Choices:
    """Answers drawn from hypothesis. The first of several options is the plainest: that is what shrinks best."""

    def __init__(self, draw: Callable[[strategies.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def below(self, count: int) -> int:
        """A number from 0 to ``count`` - 1."""
        return self._draw(_numbers(count)) if count > 1 else 0

    def between(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """True in about so many cases of a hundred."""
        return self.below(100) >= 100 - percent

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def weighted(self, options: Sequence[tuple[int, T]]) -> T:
        """One of the options, each as often as its weight says. Those of weight 0 are out."""
        place = self.below(sum(weight for weight, _ in options))
        for weight, option in options:
            place -= weight
            if place < 0:
                return option
        raise AssertionError("weights do not add up")


class RandomChoices(Choices):
    """Answers by chance, so that no program is made from another one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return self._random.randrange(count) if count > 1 else 0

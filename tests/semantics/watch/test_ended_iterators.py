"""Iterators that native code has been given before their end are given to it as ended ones after it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchjanus


class Indexed:
    def __getitem__(self, index: int) -> int:
        if index >= 2:
            raise IndexError
        return index


class Turns:
    """Gives 1, 2, 0, 1, 2, 0, ..."""

    calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls % 3


@pytest.mark.parametrize("make", [lambda: iter(Indexed()), lambda: iter(Turns(), 0)])
def test_an_iterator_may_be_pickled_before_its_end_and_after_it(make: Callable[[], Any]) -> None:
    def step(x: torch.Tensor) -> tuple[list[int], list[int], torch.Tensor]:
        iterator = make()
        begun = pickle.loads(pickle.dumps((iterator, 0)))[0]
        while next(iterator, None) is not None:
            pass
        return list(begun), list(pickle.loads(pickle.dumps((iterator, 0)))[0]), x * 2

    x = torch.ones(2)
    fast = torchjanus.speculate(step, executor="replay")
    for _ in range(4):
        (*expected, doubled), (*found, other) = step(x), fast(x)
        assert found == expected
        assert torch.equal(other, doubled)

"""Generators and iterators that leave a watched call: the caller takes what is left of them, as in eager."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torchjanus
from tests.sampling import every


def changing(values: Any) -> Iterator[Any]:
    for value in values:
        yield value, value


def delegating(values: Any) -> Iterator[Any]:
    yield from values


def begun(iterator: Iterator[Any]) -> Iterator[Any]:
    next(iterator)
    return iterator


MADE: dict[str, Callable[[Any], Iterator[Any]]] = {
    "expression": lambda held: (value for value in held),
    "expression begun": lambda held: begun(value for value in held),
    "function": changing,
    "function begun": lambda held: begun(changing(held)),
    "delegating begun": lambda held: begun(delegating(held)),
    "iterator begun": lambda held: begun(iter(held)),
}
HELD: dict[str, Callable[[], Any]] = {
    "list": lambda: [0.5, 1.5, 2.5],
    "tuple": lambda: (0.5, 1.5, 2.5),
    "deque": lambda: collections.deque((0.5, 1.5)),
    "dict": lambda: {"a": 0.5, "b": 1.5},
    "OrderedDict": lambda: collections.OrderedDict(a=0.5, b=1.5),
    "set": lambda: {1, 2, 3},
}


def grow(held: Any) -> None:
    if isinstance(held, dict):
        held["z"] = 1.0
    elif isinstance(held, set):
        held.add(99)
    elif not isinstance(held, tuple):
        held[1] = 7.5
        held.append(8.5)


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("container", HELD)
@pytest.mark.parametrize("how", every(2, MADE))
def test_what_is_left_is_eagers(how: str, container: str, changed: bool) -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, Iterator[Any]]:
        return x * 2, MADE[how](held)

    met = []
    for fn in (step, torchjanus.speculate(step, executor="replay")):
        held = HELD[container]()
        taken: list[Any] = []
        for _ in range(3):
            _, left = fn(torch.ones(2))
            if changed:
                grow(held)
            try:
                taken.append([(type(value), value) for value in left])
            except RuntimeError as error:
                taken.append(str(error))
        met.append(taken)
    assert met[0] == met[1]

"""What Python names after the module of its caller is named after the program's module, also while it is watched."""

from __future__ import annotations

import collections
import enum
import typing
from typing import Any

import torch

import torchjanus


def made() -> list[Any]:
    return [
        typing.TypeVar("T"),
        typing.ParamSpec("P"),
        typing.TypeVarTuple("Ts"),
        typing.NewType("Number", int),
        typing.NamedTuple("Pair", [("a", int)]),
        typing.TypedDict("Named", {"a": int}),
        collections.namedtuple("Row", "a b"),
        enum.Enum("Kind", "A B"),
    ]


def test_the_module_is_the_programs() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        return x * 2, [one.__module__ for one in made()]

    fast = torchjanus.speculate(step, executor="replay")
    for _ in range(4):
        assert fast(torch.ones(2))[1] == [__name__] * 8

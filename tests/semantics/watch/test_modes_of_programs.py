"""A mode of the program's that a step enters sees the same calls of torch in a watched call as in eager."""

import copy
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import torchjanus


class Calls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__qualname__", str(func)))
        return func(*args, **(kwargs or {}))


def calls_of(step: Any, seen: Calls, times: int = 3) -> list[list[str]]:
    made = []
    for _ in range(times):
        seen.names = []
        step(torch.randn(5, 4))
        made.append(seen.names)
    return made


def test_training() -> None:
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1)), Calls()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)

    def step(x: torch.Tensor) -> float:
        with seen:
            optimizer.zero_grad()
            loss = model(x).abs().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            model.zero_grad()
            return loss.item()

    calls_of(step, seen, 2)
    eager = calls_of(step, seen)
    assert calls_of(torchjanus.speculate(step, executor="replay"), seen) == eager


def test_what_is_replaced_while_it_is_watched() -> None:
    seen = Calls()

    def step(x: torch.Tensor) -> Any:
        with seen:
            same = torch.allclose(x, x * 1), torch.equal(x, x), x.equal(x), len(x), [row + 1 for row in x]
            made = torch.Tensor([1.0, 2.0]), x.new_zeros(2), copy.deepcopy(x), copy.copy(x)
            first, *rest = x
            return same, made, first, max(first), sum(first), f"{x.sum():.2f}", x.tolist(), bool(x.sum() > 0), len(rest)

    eager = calls_of(step, seen)
    assert calls_of(torchjanus.speculate(step, executor="replay"), seen) == eager

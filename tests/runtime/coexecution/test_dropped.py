"""A step that drops a tensor which a weak reference observes is Python's: a skeleton would hold it."""

from __future__ import annotations

import weakref
from typing import Any

import torch

import torchjanus


def test_a_tensor_that_is_observed_and_dropped() -> None:
    held: list[Any] = []
    gone: list[int] = []
    step = torchjanus.speculate(lambda x: held.pop().sum() + (x * 2).sum(), executor="coexecute")
    for number in range(8):
        tensor = torch.full((3,), float(number))
        weakref.finalize(tensor, gone.append, number)
        held.append(tensor)
        del tensor
        assert step(torch.ones(2)).item() == 3.0 * number + 4.0
    assert step.coexecution.served == 0
    assert {refusal.reason for refusal in step.refusals} == {"coexecution-tensor"}
    assert gone == [*range(8)]


def test_a_tensor_that_is_observed_and_lives_on() -> None:
    weights = torch.ones(3)
    observed = weakref.ref(weights)
    step = torchjanus.speculate(lambda x: (x * weights).sum().item(), executor="coexecute")
    assert [step(torch.full((3,), float(number))) for number in range(8)] == [3.0 * number for number in range(8)]
    assert step.coexecution.served > 0
    assert observed() is weights

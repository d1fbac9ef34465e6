"""Python arithmetic on fetched numbers that raises: the state at that moment is eager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchjanus

Made = tuple[torch.nn.Parameter, list[Any], Callable[..., Any]]


def make(note: Callable[[torch.Tensor, int], Any]) -> Made:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    seen: list[Any] = []

    def step(x: torch.Tensor, n: int) -> float:
        optimizer.zero_grad()
        loss = (weight * x).sum()
        loss.backward()
        seen.append(note(loss, n))  # before the update: where it raises there is none
        optimizer.step()
        return loss.item()

    return weight, seen, step


NOTES: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "a division by a fetched number": lambda loss, n: 1 / loss.item(),
    "an exponential of a fetched number": lambda loss, n: math.exp(loss.item()),
    "a logarithm of a fetched number": lambda loss, n: math.log(abs(loss.item())),
    "an integer of a fetched number": lambda loss, n: int(loss.item()),
    "a division by a number that changes": lambda loss, n: loss.item() + 1 / n,
}


@pytest.mark.parametrize("name", NOTES)
def test_what_raises_before_the_update_leaves_no_update(name: str) -> None:
    eager, speculated = make(NOTES[name]), make(NOTES[name])
    run = torchjanus.speculate(speculated[2], executor="replay")
    torch.manual_seed(0)
    raised = 0
    for call in range(16):
        x, n = torch.rand(3), call + 1
        if call == 8:
            x, n = torch.zeros(3), 0
        elif call == 10:
            x = 1e5 * torch.sign(eager[0].detach())
        elif call == 12:
            x = torch.full((3,), math.nan)
        outcomes = []
        for function in (eager[2], run):
            try:
                outcomes.append(function(x, n))
            except (ArithmeticError, ValueError) as error:
                outcomes.append((type(error), str(error)))
        raised += isinstance(outcomes[0], tuple)
        assert repr(outcomes[0]) == repr(outcomes[1]), f"call {call}"
        assert repr(eager[1]) == repr(speculated[1]), f"call {call}"
        assert torch.equal(eager[0].nan_to_num(7), speculated[0].nan_to_num(7)), f"call {call}"
    assert raised >= 1
    assert run.statistics().speculated >= 5


def test_a_fault_after_the_watched_run_does_not_lose_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no recipe")

    monkeypatch.setattr("torchjanus.semantics.watch.objects.finalization.Finalization.recipe", broken)
    weight, seen, step = make(lambda loss, n: n)
    run = torchjanus.speculate(step, executor="replay")
    results = [run(torch.ones(3), n) for n in range(5)]
    assert seen == list(range(5)) and all(type(r) is float for r in results)
    other, _, eager = make(lambda loss, n: n)
    assert results == [eager(torch.ones(3), n) for n in range(5)] and torch.equal(weight, other)
    assert "no recipe" in str(torchjanus.explain(run, detail=True))

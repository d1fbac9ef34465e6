"""When a function is given up, looked at again, or left to Python for now: with eager's results all the same."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus import speculate
from torchjanus.runtime.learning import learning, policy


def test_too_many_different_calls_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MAX_WATCHED", 6)
    fast = speculate(lambda x: x * 2)
    for dims in range(1, 12):
        shape = (2,) * dims
        assert fast(torch.ones(shape)).equal(torch.full(shape, 2.0))
    assert "6 calls were watched and calls still differ" in fast.given_up
    assert fast.statistics().imperative == 5


@pytest.mark.parametrize("served_before", [False, True])
def test_a_step_that_settles_late_is_looked_at_again(monkeypatch: pytest.MonkeyPatch, served_before: bool) -> None:
    monkeypatch.setattr(policy, "MAX_WATCHED", 6)
    monkeypatch.setattr(policy, "MAX_UNSERVED", 4)
    monkeypatch.setattr(policy, "AGAIN", 60)
    names = iter(range(1000))

    def step(x: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
        return {name: x * 2}

    fast = speculate(step)
    x = torch.ones(2)
    for _ in range(4 if served_before else 0):
        fast(x, "first")
    while fast.statistics().calls < 59:
        name = str(next(names))
        assert list(fast(x, name)) == [name]
    assert "6 calls were watched and calls still differ" in fast.given_up
    assert any("until call 60 the function runs as it is" in event.text for event in fast.events)
    for at in range(12):
        assert fast(x + at, "last")["last"].equal((x + at) * 2)
    assert fast.given_up == ""
    assert fast.statistics().speculated >= 8
    assert any(event.kind == "again" and "6 calls were watched" in event.text for event in fast.events)
    while fast.statistics().calls < 150:  # and given up once more, for longer, if it does not stay so
        fast(x, str(next(names)))
    watched = fast.statistics().watched
    assert watched <= 6 + policy.WATCHED_AGAIN + 2
    assert fast.given_up or served_before


def test_a_step_refused_at_first_only_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "AGAIN", 10)

    def step(x: torch.Tensor, start: bool) -> Any:
        return x.data_ptr() if start else x * 2

    fast = speculate(step)
    for _ in range(5):
        fast(torch.ones(2), True)
    assert "data_ptr" in fast.given_up
    for at in range(12):
        assert fast(torch.ones(2) * at, False).equal(torch.ones(2) * at * 2)
    assert (
        fast.statistics().speculated == 4
    )  # from call 12 on: four times as many as when it was given up, and two runs


def test_when_no_more_graphs_are_made_those_there_are_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MAX_COMPILES", 2)
    monkeypatch.setattr(policy, "MAX_UNSERVED", 4)

    def step(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return x.sum() + torch.zeros(shape)

    fast = speculate(step, executor="replay")
    for shape in ((1,),) * 4 + ((2, 2),) * 3 + ((3, 3, 3),) * 3:
        assert torch.equal(fast(torch.ones(2), shape), step(torch.ones(2), shape))
    before = fast.statistics()
    assert before.compiles == 2
    assert "no more graphs are made" in str(torchjanus.explain(fast, detail=True))
    for _ in range(8):
        fast(torch.ones(2), (1,))
    assert fast.statistics().speculated == before.speculated + 8
    assert not fast.given_up
    for _ in range(16):
        fast(torch.ones(2), (3, 3, 3))
    assert "2 graphs were made and calls still differ" in fast.given_up


def test_graphs_are_looked_for_ever_more_rarely_while_calls_find_none() -> None:
    def step(x: torch.Tensor, names: dict[str, str]) -> torch.Tensor:
        return x * len(names[str(len(names))])

    fast = speculate(step, executor="replay")
    for _ in range(4):
        fast(torch.ones(3), {"1": "a"})
    account = fast._learning.policy
    account.budget.allows = lambda kind, *, first=False: False  # type: ignore[method-assign]
    looked = []
    for call in range(2400):
        before = fast.statistics().missed
        assert torch.equal(fast(torch.ones(3), {"0": "", "2": "ab"}), torch.full((3,), 2.0))
        if fast.statistics().missed > before:
            looked.append(call)
    assert looked[: policy.MANY_MISSES] == list(range(policy.MANY_MISSES))
    distances = [later - one for one, later in itertools.pairwise(looked[policy.MANY_MISSES :])]
    assert max(distances[:8]) <= policy.TRIED_AGAIN and distances == sorted(distances)
    assert policy.TRIED_RARELY // 2 < distances[-1] <= policy.TRIED_RARELY
    before = fast.statistics().speculated
    for _ in range(policy.TRIED_RARELY + 1):
        fast(torch.ones(3), {"1": "a"})
    assert fast.statistics().speculated >= before + 1
    assert not account.may_skip_graphs

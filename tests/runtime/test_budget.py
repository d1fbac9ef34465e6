"""Learning takes no more than its share of the time, and what it leaves out is Python's, with eager's results."""

from __future__ import annotations

import queue
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.runtime import budget, learning, patience
from torchjanus.runtime.budget import FREE_CALLS, FREE_GRAPHS, SHARE, SHARE_IN_VAIN, Budget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that a test advances; no seconds are free."""
    monkeypatch.setattr(budget, "FREE_SECONDS", 0.0)
    return Clock()


def learn(account: Budget, clock: Clock, seconds: float) -> None:
    with account.spending():
        account.made()
        clock.now += seconds


def test_the_first_graphs_are_free(clock: Clock) -> None:
    account = Budget(clock)
    for _ in range(FREE_GRAPHS):
        assert account.allows()
        learn(account, clock, 1000.0)
    assert account.seconds == 1000 * FREE_GRAPHS
    assert account.allows()  # nothing has been spent beyond them


def test_calls_that_lead_to_no_graphs_are_not_free_for_long(clock: Clock) -> None:
    account = Budget(clock)
    for _ in range(FREE_CALLS):
        assert account.allows()
        with account.spending():
            clock.now += 10.0
    with account.spending():
        clock.now += 1.0
    assert not account.allows()


def test_the_first_seconds_are_free(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "FREE_SECONDS", 10.0)
    account = Budget(clock)
    for _ in range(3 * FREE_GRAPHS):
        learn(account, clock, 1.0)
        assert account.allows()


def test_then_learning_waits_for_its_share_of_the_time(clock: Clock) -> None:
    account = Budget(clock)
    assert account.allows()
    for _ in range(FREE_GRAPHS):
        learn(account, clock, 5.0)
    learn(account, clock, 2.0)
    assert not account.allows()
    clock.now += 2.0 / SHARE - 0.1
    assert not account.allows()
    clock.now += 0.2
    assert account.allows()
    learn(account, clock, 2.0)
    assert not account.allows()


def test_what_is_within_is_counted_once(clock: Clock) -> None:
    account = Budget(clock)
    with account.spending():
        learn(account, clock, 3.0)
        clock.now += 1.0
    assert account.seconds == 4.0


def step(x: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "a":
        return x + 1
    if kind == "b":
        return x * 2
    if kind == "c":
        return x - 3
    if kind == "d":
        return x.sin()
    if kind == "e":
        return x.cos()
    return x.exp()


def test_a_function_that_makes_graph_after_graph_runs_as_it_is_meanwhile(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = learning.make_entry

    def make_entry(*args: Any) -> Any:
        clock.now += 10.0
        return real(*args)

    monkeypatch.setattr(learning, "make_entry", make_entry)
    fast = torchjanus.speculate(step, watch=2, executor="replay")
    fast._learning.patience.budget = Budget(clock)
    x = torch.tensor([0.5, 2.0])

    def call(kind: str, times: int) -> None:
        for _ in range(times):
            assert torch.equal(fast(x, kind), step(x, kind))
            clock.now += 0.1

    for kind in "abcd":
        call(kind, 6)
    spent = fast.statistics()
    assert spent.compiles == 4
    call("e", 20)
    put_off = fast.statistics()
    assert (put_off.compiles, put_off.watched) == (4, spent.watched)
    assert put_off.imperative == spent.imperative + 20
    (event,) = [event for event in fast.events if event.kind == "budget"]
    assert "4 graphs and" in event.text and "Python's until that is 5% of the time" in event.text
    assert event.place.file == __file__
    assert "pad sizes to a few" in str(torchjanus.explain(fast))
    call("a", 1)
    assert fast.statistics().speculated == put_off.speculated + 1  # graphs that there are go on
    clock.now += 10.0 / SHARE
    call("e", 6)
    assert fast.statistics().compiles == 5
    assert fast.statistics().speculated > put_off.speculated + 1


def test_where_no_graph_makes_calls_learning_takes_less_of_the_time(clock: Clock) -> None:
    def differs(x: torch.Tensor) -> float:
        clock.now += 0.01
        total = 0.0
        for value in x.tolist():
            total = total * 2 if value > total else total + value
        return total

    drawn = torch.Generator().manual_seed(0)
    fast = torchjanus.speculate(differs, executor="replay")
    fast._learning.patience.budget = account = Budget(clock)
    fast._learning.patience.may_watch = lambda: True  # type: ignore[method-assign]
    for _ in range(FREE_CALLS):
        with account.spending():
            clock.now += 1.0
    with account.spending():
        clock.now += 1.0
    begun = fast.statistics().watched
    for _ in range(round(0.9 / SHARE_IN_VAIN / 0.01)):
        fast(torch.randn(6, generator=drawn))
    assert not fast.entries and fast.statistics().watched == begun
    for _ in range(round(0.2 / SHARE_IN_VAIN / 0.01)):
        fast(torch.randn(6, generator=drawn))
    assert fast.statistics().watched > begun
    assert "until that is 1% of the time" in str(torchjanus.explain(fast))


SOURCE = queue.SimpleQueue[float]()


def taking(x: torch.Tensor) -> torch.Tensor:
    x = x * SOURCE.get()
    return x + 1 if x.sum() >= 0 else x - 1


def repeating(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """A step whose graph takes a number before it finds that it goes another way, and its watched runs."""
    fast = torchjanus.speculate(taking, watch=2, executor="replay")
    for _ in range(6):
        SOURCE.put(0.5)
        fast(torch.ones(2))
    assert fast.statistics().speculated
    watched: list[Any] = []
    real = fast._calls._watched

    def spy(*args: Any) -> Any:
        watched.append(args)
        return real(*args)

    monkeypatch.setattr(fast._calls, "_watched", spy)
    monkeypatch.setattr(patience, "MAX_WATCHED", 0)  # no other way is learnt
    return fast, watched


def same_as_eager(fast: Any, calls: int) -> None:
    for number in range(calls):
        SOURCE.put(number + 0.5)
        expected = taking(-torch.ones(2))
        SOURCE.put(number + 0.5)
        assert torch.equal(fast(-torch.ones(2)), expected)
        assert SOURCE.empty()


def test_graphs_whose_calls_have_to_be_repeated_rest_when_there_is_no_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, watched = repeating(monkeypatch)
    same_as_eager(fast, 3)
    assert len(watched) == 3  # to meet what the graph has taken
    account = fast._learning.patience.budget = Budget(clock)
    for _ in range(FREE_GRAPHS + 1):
        learn(account, clock, 1.0)
    same_as_eager(fast, 2)
    assert len(watched) == 3
    clock.now += 2.0 / SHARE
    same_as_eager(fast, 1)
    assert len(watched) == 4


def test_what_is_given_up_is_not_repeated_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, watched = repeating(monkeypatch)
    fast._learning.patience.give_up("a test")
    same_as_eager(fast, 20)
    assert len(watched) == 1  # graphs are tried now and then; one whose taking had to be repeated is not

"""What learning may cost, by a clock that the tests advance; what is deferred is Python's, with eager's results."""

from __future__ import annotations

import itertools
import math
import queue
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.execute.processes.background import Ticket
from torchjanus.runtime.learning import entry_maker, policy
from torchjanus.runtime.runs import budget
from torchjanus.runtime.runs.budget import AT_ONCE, BURST, FREE_CALLS, SHARE, TIMED, UNLIKE, WASTED, Budget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that a test advances; a second is free, as for users."""
    monkeypatch.setattr(budget, "FREE_SECONDS", 1.0)
    return Clock()


def watched(account: Budget, seconds: float, useful: bool = True) -> None:
    account.begin_learning("watch")
    account.record_call(seconds, 0.0)
    account.record_usefulness(useful)


def by_python(account: Budget, seconds: float, calls: int = 1) -> None:
    for _ in range(calls):
        account.record_python_call(seconds)
        account.record_call(seconds, seconds)


def calls_until(account: Budget, kind: str, eager: float, most: int = 100_000, **asked: bool) -> int:
    """How many calls of Python's it takes until this is allowed."""
    for count in range(most):
        if account.allows(kind, **asked):
            return count
        by_python(account, eager)
    return most


def begun(clock: Clock, eager: float = 0.01) -> Budget:
    """An account whose first second is over, of calls that take so long."""
    account = Budget(clock)
    watched(account, 5.0)
    by_python(account, eager, math.ceil(1.1 / eager))
    assert not account.is_free
    return account


def test_the_first_call_and_the_second_after_it_are_free(clock: Clock) -> None:
    account = Budget(clock)
    assert account.allows("watch")
    watched(account, 30.0)
    for _ in range(4):
        assert account.allows("watch")
        watched(account, 0.3)
    assert not account.is_free
    assert account.overhead.first == 30.0 and account.overhead.seconds == account.overhead.free == pytest.approx(1.2)


def test_what_goes_on_between_calls_does_not_matter(clock: Clock) -> None:
    account = Budget(clock)
    watched(account, 1.0)
    clock.now += 1000.0
    assert account.is_free


def test_for_steps_that_take_long_ten_calls_are_free(clock: Clock) -> None:
    account = Budget(clock)
    watched(account, 4.0)
    watched(account, 4.0)
    assert not account.is_free  # what eager would take is not known yet
    by_python(account, 1.0)
    assert account.window == FREE_CALLS and account.is_free
    watched(account, 4.0)
    watched(account, 4.0)
    assert not account.is_free
    assert account.overhead.seconds == pytest.approx(9.0)  # what it took before that was known is put right


def test_then_learning_has_a_share_of_the_time(clock: Clock) -> None:
    account = begun(clock)
    spent, eager = 0.0, 0.0
    for _ in range(200):
        count = calls_until(account, "watch", 0.01)
        eager += 0.01 * (count + 1)
        watched(account, 0.04)
        spent += 0.03
    assert eager > 20
    assert spent <= SHARE * eager + BURST
    assert account.overhead.share <= SHARE + BURST / eager


def test_short_trials_wait_for_no_debt(clock: Clock) -> None:
    account = begun(clock)
    account.charge("make", 30.0)
    by_python(account, 0.01, 200)  # the make is of another second
    assert not account.allows("watch")
    for _ in range(3):
        assert account.allows("trial")
        account.charge("trial", 0.03)
    account.charge("trial", 0.2)  # it takes long: it is saved up for, as all else
    by_python(account, 0.01, 200)
    assert not account.allows("trial")


def test_in_no_second_it_takes_more_than_15_percent(clock: Clock) -> None:
    account = begun(clock)
    calls: list[tuple[float, float]] = []  # seconds, and in eager
    for _ in range(3000):
        if account.allows("watch"):
            watched(account, 0.03)
            calls.append((0.03, 0.01))
        elif account.is_wasteful:
            by_python(account, 0.01)
            calls.append((0.01, 0.01))
        else:  # a graph is tried for nothing
            account.record_python_call(0.01)
            account.record_call(0.0105, 0.01)
            calls.append((0.0105, 0.01))
    for first in range(0, len(calls) - 120, 7):
        taken = eager = 0.0
        for seconds, native in calls[first:]:
            taken, eager = taken + seconds, eager + native
            if taken >= 1.0:
                break
        assert eager >= 0.85 * taken


def test_less_as_time_goes_on(clock: Clock) -> None:
    account = begun(clock)
    watched(account, 0.06)
    early = calls_until(account, "watch", 0.01)
    by_python(account, 0.01, 4000)
    for _ in range(20):
        watched(account, 0.06)
        late = calls_until(account, "watch", 0.01)
    assert late > 4 * early


def test_before_there_is_a_graph_one_long_call_may_overdraw_the_account_and_is_paid_back(clock: Clock) -> None:
    account, other = begun(clock), begun(clock)
    for one in (account, other):
        assert one.allows("watch", first=True)
        watched(one, 0.5, useful=False)
    overdrawn = calls_until(account, "watch", 0.01, first=True)
    assert overdrawn < calls_until(other, "watch", 0.01)
    watched(account, 0.5, useful=False)
    assert 0.01 * calls_until(account, "watch", 0.01, first=True) * SHARE > 0.4


def test_the_next_run_needed_for_a_first_graph_is_not_waited_for(clock: Clock) -> None:
    account = Budget(clock)
    watched(account, 8.0)
    watched(account, 2.0, useful=True)
    assert not account.is_free
    assert account.allows("watch", first=True)
    watched(account, 2.0, useful=True)
    assert not account.allows("watch", first=True)  # once
    assert not account.allows("make", first=True)  # not in the same second
    by_python(account, 0.01, 110)
    assert account.allows("make", first=True)
    account.charge("make", 3.0)
    by_python(account, 0.01, 200)
    assert not account.allows("watch") and not account.allows("make")
    other = Budget(clock)
    watched(other, 8.0)
    for _ in range(UNLIKE):
        watched(other, 0.5, useful=False)
    by_python(other, 0.01)
    assert not other.allows("watch", first=True)  # no two runs were alike


def test_later_on_what_is_long_is_saved_up_for(clock: Clock) -> None:
    account = begun(clock)
    account.charge("make", 0.3)
    calls_until(account, "watch", 0.01)  # what has been overdrawn
    assert 0.01 * calls_until(account, "make", 0.01) * SHARE > 0.2


def test_what_graphs_save_pays_for_learning(clock: Clock) -> None:
    account = begun(clock)
    account.charge("make", 0.3)
    assert not account.allows("make")
    account.share = 0.25
    account.unsettled_served += 600  # which save 4.5 s
    assert account.allows("make")
    for _ in range(3):
        account.charge("make", 0.3)
    account.share = 1.5  # graphs are slower: nothing is saved
    account.unsettled_served += 5
    assert not account.allows("make")


def test_what_takes_much_of_a_second_is_saved_up_for_longer_unless_graphs_save_it_in_that_second(clock: Clock) -> None:
    spent = {}
    for price in (0.5 * AT_ONCE, 0.9 * AT_ONCE, 1.1 * AT_ONCE):
        account = begun(clock)
        account.charge("make", price)
        spent[price] = 0.01 * calls_until(account, "make", 0.01)
    short, middle, long = spent.values()
    assert short < middle < 1.1 * AT_ONCE / SHARE * 2 + 1 and long > 2 * middle
    account = begun(clock)
    account.charge("make", 0.3)
    account.share = 0.25
    for _ in range(20):
        account.unsettled_served += 50
        account.allows("watch")
    account.charge("make", 0.3)
    assert account.allows("make")  # what is left of a second is worth three in eager


def test_what_takes_much_of_a_second_is_alone_in_it(clock: Clock) -> None:
    account = begun(clock)
    watched(account, 0.09)
    assert not account.allows("watch", first=True)
    by_python(account, 0.01, 110)
    assert account.allows("watch", first=True)


def test_what_graphs_have_saved_before_that_was_measured_is_not_lost(clock: Clock) -> None:
    account = begun(clock)
    account.charge("make", 0.3)
    account.unsettled_served += 200
    assert not account.allows("make")  # nobody knows whether they have saved anything
    account.share = 0.25
    account.unsettled_served += 1
    assert account.allows("make")
    assert account.overhead.seconds == pytest.approx(0.3)


def test_runs_of_which_nothing_comes_are_ever_rarer(clock: Clock) -> None:
    account = begun(clock, eager=0.1)
    distances = []
    for _ in range(6):
        distances.append(calls_until(account, "watch", 0.1))
        watched(account, 0.101, useful=False)
    assert all(2 * one <= other for one, other in itertools.pairwise(distances[2:]))
    assert distances[-1] >= 2**5 - 1
    watched(account, 0.101, useful=True)
    assert calls_until(account, "watch", 0.1) == 0


def test_graphs_that_are_tried_for_nothing_rest_until_that_is_a_small_share(clock: Clock) -> None:
    account = begun(clock)
    count = 0
    while not account.is_wasteful:
        account.record_python_call(0.01)
        account.record_call(0.015, 0.01)
        count += 1
    assert count * 0.005 <= WASTED + 0.02
    count = 0
    while account.is_wasteful:
        by_python(account, 0.01)
        count += 1
    assert count * 0.01 >= 0.2
    account.share = 0.2
    for _ in range(100):  # where graphs save more than that takes it goes on
        account.record_python_call(0.01)
        account.record_call(0.015, 0.01)
        account.unsettled_served += 2
        account.allows("watch")
    assert not account.is_wasteful


def test_graphs_that_save_much_do_not_rest_for_what_disturbs_once(clock: Clock) -> None:
    account, other = begun(clock), begun(clock)
    account.share = 0.2
    account.unsettled_served += 20
    for one in (account, other):
        one.allows("watch")
        one.record_python_call(0.01)
        one.record_call(0.01 + 1.5 * WASTED, 0.01)
    assert other.is_wasteful and not account.is_wasteful
    by_python(account, 0.01, 3000)  # they have made no call since
    by_python(account, 0.01, 10)
    account.record_call(0.01 + 2 * BURST, 0.01)
    assert account.is_wasteful


def test_graphs_that_are_slower_than_eager_rest(clock: Clock) -> None:
    account = begun(clock)
    account.share = 1.1
    before = account.overhead.seconds
    for _ in range(20):
        account.unsettled_served += 1
        account.allows("watch")
    assert account.overhead.seconds - before == pytest.approx(20 * 0.001)
    while not account.is_wasteful:
        account.unsettled_served += 1
        account.allows("watch")
    assert account.overhead.seconds - before <= WASTED + 0.02


def test_most_calls_of_pythons_are_not_timed(clock: Clock) -> None:
    account = begun(clock)
    before = account.overhead.eager
    for _ in range(TIMED):
        assert not account.times_next_call
        account.unsettled_untimed += 1
    assert account.times_next_call
    account.record_python_call(0.01)
    assert account.overhead.eager - before == pytest.approx(0.01 * (TIMED + 1))


@pytest.mark.parametrize("slow", range(3))
def test_a_first_call_that_imports_modules_says_nothing_of_the_others(clock: Clock, slow: int) -> None:
    account = Budget(clock)
    for number in range(4):
        by_python(account, 1.5 if number == slow else 0.01)
    assert account.eager == pytest.approx(0.01)
    by_python(account, 0.03)
    assert account.eager == pytest.approx(0.014)


def test_with_an_executor_that_was_named_nothing_depends_on_time(clock: Clock) -> None:
    account = Budget(clock, limited=False)
    for _ in range(100):
        assert account.allows("watch")
        watched(account, 100.0, useful=False)
    assert torchjanus.speculate(step, executor="replay")._learning.budget.limited is False
    assert torchjanus.speculate(step, executor="auto")._learning.budget.limited is True


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


def limit(fast: Any, clock: Clock) -> Budget:
    """Have what this learns limited, by this clock."""
    account: Budget = fast._learning.budget
    account.clock, account.limited = clock, True
    return account


def test_a_function_that_makes_graph_after_graph_runs_as_it_is_meanwhile(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = entry_maker.make_entry

    def make_entry(*args: Any) -> Any:
        clock.now += 10.0
        return real(*args)

    def slow(x: torch.Tensor, kind: str) -> torch.Tensor:
        clock.now += 0.1
        return step(x, kind)

    monkeypatch.setattr(entry_maker, "make_entry", make_entry)
    fast = torchjanus.speculate(slow, watch=2, executor="replay")
    account = limit(fast, clock)
    x = torch.tensor([0.5, 2.0])

    def call(kind: str, times: int) -> None:
        for _ in range(times):
            assert torch.equal(fast(x, kind), slow(x, kind))

    call("a", 6)
    made = fast.statistics()
    assert made.compiles == 1 and made.speculated == 4
    call("b", 20)
    put_off = fast.statistics()
    assert put_off.compiles == 1
    (event,) = [event for event in fast.events if event.kind == "budget"]
    assert "1 graph and" in event.text and "Python's, but for a small share of the time" in event.text
    assert "10.0 s beyond the" in str(torchjanus.explain(fast, detail=True)) and fast.overhead.seconds >= 10.0
    call("a", 1)
    assert fast.statistics().speculated == put_off.speculated + 1  # graphs that there are go on
    account.share, account.unsettled_served = 0.1, 1000
    call("b", 6)
    assert fast.statistics().compiles == 2
    assert fast.statistics().speculated > put_off.speculated + 1


def test_a_graph_that_there_is_no_time_for_is_made_later(clock: Clock) -> None:
    fast = torchjanus.speculate(step, watch=2, executor="replay")
    account = limit(fast, clock)
    x = torch.tensor([0.5, 2.0])
    fast(x, "a")
    allowed: set[str] = {"watch"}
    account.allows = lambda kind, *, first=False: kind in allowed  # type: ignore[method-assign]
    for _ in range(3):
        assert torch.equal(fast(x, "a"), x + 1)
    assert fast.statistics().watched == 2 and not fast.entries
    assert "a graph is made when there is time" in str(torchjanus.explain(fast, detail=True))
    allowed.add("make")
    for _ in range(3):
        assert torch.equal(fast(x, "a"), x + 1)
    assert fast.statistics().speculated == 2 and not fast.being_made


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
    monkeypatch.setattr(policy, "MAX_WATCHED", 0)  # no other way is learnt
    return fast, watched


def same_as_eager(fast: Any, calls: int) -> None:
    for number in range(calls):
        SOURCE.put(number + 0.5)
        expected = taking(-torch.ones(2))
        SOURCE.put(number + 0.5)
        assert torch.equal(fast(-torch.ones(2)), expected)
        assert SOURCE.empty()


def test_while_the_first_graph_is_made_elsewhere_calls_are_only_python_s(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = torchjanus.speculate(step, watch=2, executor="replay")
    x = torch.tensor([0.5, 2.0])
    fast(x, "a")
    learnt = fast._learning
    ticket = Ticket(lambda: None, "is being made", 1.0)  # type: ignore[arg-type, return-value]
    learnt.pending_graphs.remote._tickets["it"] = ticket
    learnt.pending_graphs._making = lambda: None
    monkeypatch.setattr(fast._calls, "handle_miss", None)
    for _ in range(5):
        assert torch.equal(fast(x, "a"), x + 1)
    assert fast.statistics().imperative == 5
    monkeypatch.undo()
    ticket.over = True
    for _ in range(4):
        assert torch.equal(fast(x, "a"), x + 1)
    assert fast.statistics().speculated


def test_graphs_whose_calls_have_to_be_repeated_rest_when_there_is_no_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, watched = repeating(monkeypatch)
    same_as_eager(fast, 3)
    assert len(watched) == 3  # to meet what the graph has taken
    account = limit(fast, clock)
    by_python(account, 0.01, 10)
    account.charge("repeat", 1000.0)
    account.charge("repeat", 1.0)
    same_as_eager(fast, 2)
    assert len(watched) == 3
    account.share, account.unsettled_served = 0.01, 1_000_000
    same_as_eager(fast, 1)
    assert len(watched) == 4


class Held:
    tensor: Any = torch.ones(2)


def adding(x: torch.Tensor) -> torch.Tensor:
    return x + Held.tensor


def test_a_graph_is_made_with_a_weaker_assumption_where_there_is_no_time_to_watch(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = torchjanus.speculate(adding, watch=2, executor="replay")
    x = torch.tensor([0.5, 2.0])
    for _ in range(3):
        assert torch.equal(fast(x), x + 1)
    account = limit(fast, clock)
    account.allows = lambda kind, *, first=False, odds=1: kind != "watch"  # type: ignore[method-assign]
    for number in range(2, 6):
        monkeypatch.setattr(Held, "tensor", torch.full((2,), float(number)))
        assert torch.equal(fast(x), x + number)
    counts = fast.statistics()
    assert counts.watched == 2 and counts.compiles == 2 and counts.speculated == 1 + 4
    monkeypatch.setattr(Held, "tensor", 3.0)  # that takes a watched run
    for _ in range(4):
        assert torch.equal(fast(x), x + 3)
    assert fast.statistics().watched == 2


def maybe_adding(x: torch.Tensor) -> torch.Tensor:
    return x if Held.tensor is None else x + Held.tensor


def test_a_graph_of_what_was_so_at_the_first_calls_only_does_not_count(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = torchjanus.speculate(maybe_adding, watch=2, executor="replay")
    x = torch.tensor([0.5, 2.0])
    monkeypatch.setattr(Held, "tensor", None)
    for _ in range(2):
        assert torch.equal(fast(x), x)
    account = limit(fast, clock)
    account.allows = lambda kind, *, first=False, odds=1: first  # type: ignore[method-assign]
    assert fast.statistics().compiles == 1
    monkeypatch.setattr(Held, "tensor", torch.ones(2))
    for _ in range(4):
        assert torch.equal(fast(x), x + 1)
    counts = fast.statistics()
    assert (counts.watched, counts.compiles, counts.speculated) == (4, 2, 2)
    monkeypatch.setattr(Held, "tensor", 3.0)
    for _ in range(4):
        assert torch.equal(fast(x), x + 3)
    assert fast.statistics().watched == 4  # from now on it has to be paid for


def test_the_first_call_that_may_have_to_be_repeated_is_foreseen(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = torchjanus.speculate(taking, watch=2, executor="replay")
    for sign in (1, -1, 1):
        SOURCE.put(0.5)
        fast(sign * torch.ones(2))
    assert fast.entries and not fast.statistics().speculated
    watched: list[Any] = []
    real = fast._calls._watched
    monkeypatch.setattr(fast._calls, "_watched", lambda *args: (watched.append(args), real(*args))[1])
    monkeypatch.setattr(policy, "MAX_WATCHED", 0)
    account = limit(fast, clock)
    by_python(account, 0.01, 10)
    account.charge("watch", 1000.0)
    same_as_eager(fast, 4)
    assert not watched
    assert [event.text for event in fast.events if event.kind == "budget"][-1].endswith("calls are Python's.")
    account.share, account.unsettled_served = 0.0, 10_000_000
    same_as_eager(fast, 1)
    assert len(watched) == 1


def test_what_is_given_up_is_not_repeated_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, watched = repeating(monkeypatch)
    fast._learning.policy.give_up("a test")
    same_as_eager(fast, 20)
    assert len(watched) == 1  # graphs are tried now and then; one whose taking had to be repeated is not

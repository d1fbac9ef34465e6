"""When the first graph of a long step is worth its price, by a clock that the tests advance."""

from __future__ import annotations

from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.runtime.learning import policy
from torchjanus.runtime.runs import payback
from torchjanus.runtime.runs.budget import Budget
from torchjanus.runtime.runs.experience import Experience
from torchjanus.runtime.runs.payback import LEARNED, LOWERED, Payback, Prospect

OPERATIONS = 1000


@pytest.fixture(autouse=True)
def _deferring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payback, "AT_ONCE", 2.0)
    monkeypatch.setattr(payback, "FEW", 300)
    monkeypatch.setattr(policy, "RARE", 4)


def account(calls: int, seconds: float) -> Budget:
    """Return an account of calls that took so long in eager."""
    made = Budget()
    made.record_call(1.0, 0.0)
    for _ in range(calls):
        made.record_python_call(seconds)
    return made


@pytest.mark.parametrize("full", [False, True])
def test_a_graph_is_due_once_it_would_have_saved_its_price(full: bool) -> None:
    price = OPERATIONS * (LEARNED + LOWERED * (1.0 if full else payback.BESIDE))
    saved = OPERATIONS * payback.SAVED  # a call
    calls = int(price / saved)
    for count, due in ((calls - 1, False), (calls + 1, True)):
        looked = Payback(account(count, 0.1), lambda: full)
        looked.record_watch(OPERATIONS)
        assert looked.decides
        assert looked.is_due is due


def test_what_pays_soon_named_executors_and_parts_are_not_deferred() -> None:
    short = Payback(account(1, 1e-3), lambda: False)
    short.record_watch(200)
    named = Payback(Budget(limited=False), lambda: True)
    part = Payback(Budget(account=account(1, 0.1)), lambda: True)
    for one in (named, part):
        one.record_watch(OPERATIONS)
    assert [one.is_due for one in (short, named, part)] == [True, True, True]


def test_a_few_operations_of_a_long_step_are_deferred() -> None:
    long = Payback(account(1, 0.5), lambda: False)
    long.record_watch(60)
    assert long.decides
    assert not long.is_due


def test_nothing_is_due_while_the_time_in_eager_is_unknown() -> None:
    looked = Payback(Budget(), lambda: True)
    looked.record_watch(OPERATIONS)
    assert looked.prospect() is None
    assert not looked.is_due


def test_what_an_earlier_run_has_measured_counts() -> None:
    earlier = Experience("key", made=True, share=0.6)
    looked = Payback(account(10, 0.1), lambda: True, lambda: earlier)
    looked.record_watch(OPERATIONS)
    assert looked.prospect() == Prospect(OPERATIONS * LEARNED, pytest.approx(0.4), True)


def test_experience_is_kept_for_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHJANUS_CACHE", str(tmp_path))
    code: CodeType = account.__code__
    first = Experience.of(code)
    assert (first.made, first.share) == (False, None)
    first.keep()
    assert Experience.of(code).made
    first.keep(0.5)
    first.keep()
    assert Experience.of(code).share == 0.5
    assert not Experience.of(watched_twice.__code__).made


def watched_twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def test_a_step_is_eager_until_then_and_served_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payback, "AT_ONCE", 0)
    monkeypatch.setattr(payback, "FEW", 0)
    monkeypatch.setattr("torchjanus.runtime.entries.engine.order_of", None)  # replay only
    step = torchjanus.speculate(watched_twice, executor="auto")
    learning: Any = step._learning
    monkeypatch.setattr(payback, "LEARNED", 1e6)
    for number in range(20):
        assert step(torch.full((2,), float(number))).tolist() == [2.0 * number + 1] * 2
    assert (step.statistics().watched, step.statistics().speculated) == (1, 0)
    assert "learning-not-worth-yet" in torchjanus.explain(step).codes
    monkeypatch.setattr(payback, "LEARNED", 0.0)
    monkeypatch.setattr(payback, "LOWERED", 0.0)
    assert learning.payback.is_due
    for number in range(20):
        assert step(torch.full((2,), float(number))).tolist() == [2.0 * number + 1] * 2
        step.wait()
    assert step.statistics().speculated > 10


def test_who_waits_gets_the_graph_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payback, "AT_ONCE", 0)
    monkeypatch.setattr(payback, "LEARNED", 1e6)
    step = torchjanus.speculate(watched_twice, executor="auto")
    for number in range(20):
        assert step(torch.full((2,), float(number))).tolist() == [2.0 * number + 1] * 2
        step.wait()
    assert step.statistics().speculated > 10


def test_calls_before_the_first_watched_one_count() -> None:
    step = torchjanus.speculate(watched_twice, executor="auto")
    step.record_earlier_calls(10, 2.0)
    budget: Any = step._learning.budget
    assert budget.eager == pytest.approx(0.2)
    assert budget.seconds_in_eager == pytest.approx(2.0)


def printing(x: torch.Tensor, number: int) -> torch.Tensor:
    return x * 2 + 1 if number % 10 else x * 3 - 1


def test_a_path_that_few_calls_take_is_learnt_once_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchjanus.runtime.entries.engine.order_of", None)  # replay only
    step = torchjanus.speculate(printing, executor="auto")

    def calls(numbers: range) -> int:
        for number in numbers:
            assert step(torch.ones(2), number).tolist() == printing(torch.ones(2), number).tolist()
        return step.statistics().watched

    watched = calls(range(1, 9))
    monkeypatch.setattr(payback, "LEARNED", 1e6)
    assert calls(range(11, 31)) == watched
    assert step.statistics().speculated > 15
    monkeypatch.setattr(payback, "LEARNED", 0.0)
    monkeypatch.setattr(payback, "LOWERED", 0.0)
    assert calls(range(31, 51)) > watched


def test_a_path_that_many_calls_take_is_learnt_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchjanus.runtime.entries.engine.order_of", None)  # replay only
    step = torchjanus.speculate(printing, executor="auto")
    for _ in range(8):
        step(torch.ones(2), 1)
    monkeypatch.setattr(payback, "LEARNED", 1e6)
    watched = step.statistics().watched
    for _ in range(8):
        step(torch.ones(2), 10)
    assert step.statistics().watched > watched


def another_rate(x: torch.Tensor, rates: dict[str, float]) -> torch.Tensor:
    return x * rates[str(len(rates))]


def test_graphs_that_serve_nothing_any_more_are_made_anew_once_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is overdrawn for good, and the calls have left the paths of the graphs for good. Each time that
    learning again was of no use, the next time is twice as far."""
    monkeypatch.setattr("torchjanus.runtime.entries.engine.order_of", None)  # replay only
    monkeypatch.setattr(Payback, "seconds_to_graph", property(lambda self: 5 * self._budget.eager))
    monkeypatch.setattr(Budget, "price", 0.0)
    step = torchjanus.speculate(another_rate, executor="auto")

    def calls(times: int, *names: str) -> None:
        rates = {**dict.fromkeys(names, 1.0), str(len(names)): float(len(names))}
        for _ in range(times):
            step(torch.ones(2), rates)
            step._part.calls.finished_graphs.wait()

    calls(8, "1")
    before = step.statistics()
    assert before.speculated >= 4
    learning: Any = step._learning
    learning.budget.share = 0.5
    learning.budget.allows = lambda kind, *, first=False, odds=1: False
    calls(19, "2", "other")  # 20 calls would have been saved five times the time of a call, twice
    assert step.statistics().compiles == before.compiles
    calls(30, "2", "other")
    now = step.statistics()
    assert now.compiles > before.compiles
    assert now.speculated > before.speculated + 15
    assert any(event.kind == "again" for event in step.events)
    for number in range(400):  # each call takes another path
        calls(1, *map(str, range(3, 6 + number % 97)))
    assert step.statistics().watched <= now.watched + 5 * policy.CALLS_IN_DEBT

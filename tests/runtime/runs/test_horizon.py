"""What learning may cost a step that nobody has marked, by how long its calls will take in all."""

from __future__ import annotations

import math

import pytest

from torchjanus.runtime.runs.budget import Budget
from torchjanus.runtime.runs.experience import Experience
from torchjanus.runtime.runs.horizon import LOSS, Horizon, beginning, gains, pays_from
from torchjanus.runtime.runs.payback import BESIDE, LEARNED, LOWERED, MOST, Payback

OPERATIONS = 1000


def test_an_earlier_run_is_believed_until_it_is_passed_then_the_loops() -> None:
    horizon = Horizon(lambda done: 500.0, earlier=100)
    assert [horizon.calls(done) for done in (10, 99, 100, 600)] == [100, 100, 500, 600]
    assert Horizon(lambda done: None).calls(7) == 7


def test_a_measured_gain_is_certain_only_where_it_is_clear() -> None:
    assert gains(0.5, 10.0, 2.0)
    assert not gains(0.5, 10.0, 3.0)
    assert gains(0.95, 200.0, 1.0)
    assert not gains(0.95, 100.0, 1.0)
    assert not gains(1.0, 1e9, 0.1)


def test_without_a_measure_a_share_of_all_calls_may_be_lost() -> None:
    assert pays_from(None, 2.0) == 2.0 / LOSS
    assert pays_from(1.1, 2.0) == math.inf


def test_watching_long_calls_costs_more() -> None:
    assert beginning(0.01) < beginning(0.1)


def bounded(expected: float, spent: float = 0.0) -> Budget:
    """Return the account of a step whose calls take so many seconds in all, 10 ms each."""
    made = Budget()
    made.record_earlier_calls(10, 0.1)
    made.bound.expect(lambda: expected, spent)
    return made


def test_no_more_than_the_share_may_be_lost() -> None:
    budget = bounded(100.0, spent=1.0)
    assert budget.bound.affords(LOSS * 100.0 - 1.1) and not budget.bound.affords(LOSS * 100.0 - 0.9)
    budget.record_call(1.0, 0.0)  # the first watched call
    assert not budget.bound.affords(LOSS * 100.0 - 1.9)
    assert budget.bound.needed_for(LOSS * 50.0) == pytest.approx(50.0 + 1.99 / LOSS)
    assert not budget.allows("watch") or budget.bound.affords(0.0)


def test_what_graphs_have_saved_may_be_spent() -> None:
    budget = bounded(10.0)
    budget.record_call(0.01, 0.0)
    price = LOSS * 10.0 + 1.0
    assert not budget.bound.affords(price)
    budget.share, budget.unsettled_served = 0.5, 1000  # calls of 10 ms by a graph
    assert budget.overhead.eager > 0.0
    assert budget.bound.affords(price)


def test_parts_pay_from_the_account_of_their_step() -> None:
    step = bounded(10.0)
    part = Budget(account=step)
    assert part.bound.is_set and part.bound.affords(LOSS * 10.0 - 0.01) and not part.bound.affords(LOSS * 10.0 + 0.01)
    part.charge("watch", LOSS * 10.0)
    assert not part.allows("watch") and not step.bound.affords(0.01)


def test_nothing_is_bounded_where_the_user_has_marked_the_step() -> None:
    budget = Budget()
    assert not budget.bound.is_set and budget.bound.affords(1e9)


def test_the_first_graph_waits_until_the_calls_to_come_pay_for_it() -> None:
    price = OPERATIONS * (LEARNED + LOWERED * BESIDE)
    for expected, earlier, due in (
        (pays_from(1.0 - MOST, price) - 1.0, None, False),
        (pays_from(1.0 - MOST, price) + 1.0, None, True),
        (pays_from(0.3, OPERATIONS * LEARNED) - 1.0, Experience("key", made=True, share=0.3), False),
        (pays_from(0.3, OPERATIONS * LEARNED) + 1.0, Experience("key", made=True, share=0.3), True),
        (pays_from(0.3, OPERATIONS * LEARNED) + 1.0, Experience("key", made=True, share=0.95), False),
    ):
        looked = Payback(bounded(expected), lambda: False, lambda earlier=earlier: earlier)  # type: ignore[misc]
        looked.record_watch(OPERATIONS)
        assert looked.decides
        assert looked.is_due is due, (expected, earlier)


def test_half_of_what_graphs_are_expected_to_save_may_be_spent() -> None:
    budget = bounded(10.0)
    assert not budget.bound.affords(LOSS * 10.0 + 1.0)
    budget.bound.count_on(2.1)
    assert budget.bound.affords(LOSS * 10.0 + 1.0)

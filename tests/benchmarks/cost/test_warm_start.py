"""When a program is at full speed."""

from __future__ import annotations

from itertools import accumulate

from benchmarks.cost.warm_start import at_speed


def test_the_first_call_that_is_as_fast_as_the_last_ones() -> None:
    seconds = [5.0, 9.0, 2.0, 1.1, 3.0, *([1.0] * 60)]
    assert at_speed(list(accumulate(seconds)), seconds) == 17.1


def test_each_kind_of_call_has_its_own_speed() -> None:
    seconds = [9.0, 8.0, 2.0, 8.0, 1.0, 4.0, *([1.0, 4.0] * 60)]
    assert at_speed(list(accumulate(seconds)), seconds, period=2) == 28.0
    assert at_speed(list(accumulate(seconds[1:])), seconds[1:], period=2) == 19.0

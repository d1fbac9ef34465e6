"""A call that is watched for too long: the rest of it is Python's, and the program does not notice."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchjanus
from tests.programs import harness
from torchjanus.runtime.runs.budget import Budget
from torchjanus.semantics.watch.objects import state

CATEGORIES = ("changed_while_iterated", "kept_iterators", "python_constructs")
# What a function that runs natively warns of by the line of its caller is shown at another line.
OTHER_LINES = {"warnings_in_a_callers_name"}
# A native iterator of a run's first operations keeps its traced number, which is equal to the plain one.
TRACED = {"a_number_of_the_first_call_again_and_again"}


def at_once(monkeypatch: pytest.MonkeyPatch, hooks: int) -> None:
    """Let each call be watched for this many hooks only."""
    monkeypatch.setattr(Budget, "longest_watch", property(lambda self: -1.0))
    monkeypatch.setattr(state, "PERIOD", hooks)


@pytest.mark.slow
@pytest.mark.parametrize("hooks", [3, 12])
@pytest.mark.parametrize("category", CATEGORIES)
def test_the_program_does_not_notice(category: str, hooks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch, hooks)
    for name in harness.programs_in(harness.load(category)):
        if name not in OTHER_LINES | TRACED:
            eager, other = harness.run(category, name, None), harness.run(category, name, "replay")
            assert harness.compare(eager, other) == [], name


def worklist() -> tuple[Callable[..., Any], list[Any]]:
    seen: list[Any] = []

    def step(x: torch.Tensor, first: int) -> Any:
        waiting = [first]
        for number in waiting:  # grows while it is gone through
            if number < 40:
                waiting.append(number * 2)
                waiting += [number * 3]
            x = x + number
        counted = collections.Counter(waiting)
        keys = counted.keys()
        counted[-1] = len(keys)
        pairs = zip(itertools.count(first), keys, strict=False)
        seen.append((first + 1, [next(pairs) for _ in range(3)]))
        try:
            seen.append(x[len(waiting)])
        except IndexError as error:
            seen.append(str(error))
        return x, len(keys), sum(value for value in counted.values()), f"{first:03d} {keys}"

    return step, seen


@pytest.mark.parametrize("hooks", [1, 7, 20, 60, 200])
def test_each_place_can_be_the_end(hooks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch, hooks)
    runs = []
    for speculated in (False, True):
        step, seen = worklist()
        called = torchjanus.speculate(step, executor="replay") if speculated else step
        results = [called(torch.ones(3), number) for number in (1, 1, 2, 3)]
        runs.append(harness.snapshot((results, seen)))
        assert all(type(part[0]) is int for part in seen if isinstance(part, tuple))
        if speculated:
            assert [refusal.reason for refusal in called.refusals][:1] == ["watching-too-long"]
            assert called.statistics().watched == 1
    assert runs[0] == runs[1]


def test_an_error_of_the_program_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch, 5)
    made = []

    def fails(number: int) -> int:
        made.append(number)
        raise LookupError(number)

    @torchjanus.speculate(executor="replay")
    def step(x: torch.Tensor, number: int) -> torch.Tensor:
        for k in range(20):
            x = x + k
        return x * fails(number)

    with pytest.raises(LookupError) as raised:
        step(torch.ones(3), 7)
    assert made == [7]
    assert type(raised.value.args[0]) is int


def test_a_call_is_watched_for_seconds_that_depend_on_who_makes_it() -> None:
    assert Budget(limited=False).longest_watch > Budget().longest_watch > Budget(account=Budget()).longest_watch
    slow = Budget()
    slow.record_python_call(30.0)
    assert slow.longest_watch > 100.0

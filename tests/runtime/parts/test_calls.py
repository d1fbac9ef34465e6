"""How one call is made: by a graph, watched, by Python; after violations, errors and faults, with eager's result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchjanus.host.journal import Journal
from torchjanus.runtime.launch.outcomes import MISS, RAISED, Failure, Violation
from torchjanus.runtime.learning.learning import Learning
from torchjanus.runtime.parts.calls import Calls


def made(fn: Any) -> Calls:
    learning = Learning("step", watch=3, executor="replay", cut=lambda traces: False)
    return Calls(fn, learning)


def called(calls: Calls, *args: Any) -> Any:
    """Make a call as a speculated function does: by a route whose guards hold, or slowly."""
    calls.counts.calls += 1
    for route in calls.learning.routes:
        result = calls.attempt(route, args, {}, None)
        if result is not MISS:
            return calls.finish(route, result, args, {}, None)
    return calls.handle_miss(args, {}, None)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def counts(calls: Calls) -> tuple[int, int, int]:
    return calls.counts.watched, calls.counts.speculated, calls.counts.imperative


def test_calls_are_watched_and_then_made_by_a_graph() -> None:
    calls = made(double)
    for number in range(5):
        assert called(calls, torch.full((2,), float(number))).tolist() == [2.0 * number] * 2
    assert counts(calls) == (3, 2, 0)
    (entry,) = calls.learning.routes.entries
    assert entry.runs == 2 and entry.used == 5


def test_errors_of_the_program_are_the_programs() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("missing")

    calls = made(step)
    with pytest.raises(KeyError, match="missing"):
        called(calls, torch.ones(1))
    assert counts(calls) == (1, 0, 0) and calls.event_log.events[-1].kind == "raised"


def test_a_fault_of_learning_is_reported_and_the_call_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise ZeroDivisionError("ours")

    calls = made(double)
    monkeypatch.setattr(calls.learning, "learn", fails)
    assert called(calls, torch.ones(1)).item() == 2.0
    (event,) = [event for event in calls.event_log.events if event.kind == "fault"]
    assert "ZeroDivisionError: ours" in event.text


def test_an_attempt_returns_the_error_of_a_graph() -> None:
    def raises(*args: Any) -> Any:
        raise ValueError("no")

    route: Any = SimpleNamespace(call=raises)
    result = Calls.attempt(route, (), {}, None)
    assert type(result) is Failure and isinstance(result.error, ValueError) and not result.committing


def test_an_attempt_begins_the_journal_anew() -> None:
    begun: list[int] = []
    journal: Any = SimpleNamespace(begin=lambda: begun.append(1))
    route: Any = SimpleNamespace(call=lambda args, kwargs, journal: MISS)
    assert Calls.attempt(route, (), {}, journal) is MISS and begun == [1]


def decided(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x * 3


def test_a_violation_is_made_by_python_and_teaches() -> None:
    calls = made(decided)
    for _ in range(4):
        called(calls, torch.ones(1))
    (entry,) = calls.learning.routes.entries
    assert type(calls.attempt(entry, (-torch.ones(1),), {}, None)) is Violation
    assert called(calls, -torch.ones(1)).item() == -3.0
    assert calls.counts.violated == 1 and entry.violations == 1


def test_a_graph_that_raises_leaves_the_call_to_python() -> None:
    calls = made(lambda x: torch.linalg.cholesky(x))
    for _ in range(4):
        called(calls, torch.eye(2))
    with pytest.raises(torch.linalg.LinAlgError):
        called(calls, -torch.eye(2))
    assert called(calls, torch.eye(2) * 4).tolist() == [[2.0, 0.0], [0.0, 2.0]]


def test_an_extern_call_that_raised_is_pythons() -> None:
    calls = made(double)
    for _ in range(3):
        called(calls, torch.ones(1))
    (entry,) = calls.learning.routes.entries
    assert calls.finish(entry, RAISED, (torch.ones(1),), {}, None).item() == 2.0
    assert calls.counts.imperative == 1


def test_an_error_of_the_commit_is_raised_with_a_note() -> None:
    calls = made(double)
    for _ in range(3):
        called(calls, torch.ones(1))
    (entry,) = calls.learning.routes.entries
    with pytest.raises(BrokenPipeError) as error:
        calls.finish(entry, Failure(BrokenPipeError("closed"), True), (torch.ones(1),), {}, None)
    assert "its tensors are updated" in error.value.__notes__[0]
    assert calls.learning.routes.entries == []  # the graph is not used again


def test_a_function_without_source_is_given_up() -> None:
    calls = made(eval("lambda x: x * 2"))
    assert called(calls, torch.ones(1)).item() == 2.0
    assert [one.reason for one in calls.event_log.refusals] == ["no-source"]
    assert calls.policy.given_up and counts(calls)[0] == 0


def test_coroutines_are_given_up() -> None:
    async def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    calls = made(step)
    called(calls, torch.ones(1)).close()
    assert [one.reason for one in calls.event_log.refusals] == ["step-suspends"]


def test_verified_calls_are_due_in_proportion() -> None:
    calls = made(double)
    assert not calls.is_verification_due(3)
    calls.counts.speculated = 2
    assert calls.is_verification_due(3)
    calls.counts.verified = 1
    assert not calls.is_verification_due(3)


def test_a_verified_call_returns_the_programs_result() -> None:
    calls = made(double)
    assert calls.verify((torch.ones(1),), {}, None) is MISS
    for _ in range(3):
        called(calls, torch.ones(1))
    assert calls.verify((torch.ones(1) * 3,), {}, None).item() == 6.0
    assert calls.counts.verified == 1 and len(calls.learning.routes.entries) == 1


def test_closing_a_journal_tells_of_calls_that_were_not_met() -> None:
    calls = made(double)
    calls.close(Journal())
    assert list(calls.event_log.events) == []

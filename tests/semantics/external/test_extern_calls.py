"""Extern calls of a run: what is recorded of them, what they are given, and what makes a graph impossible."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchjanus.host.journal import Journal, method
from torchjanus.semantics.external.extern_calls import take
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import Extern
from torchjanus.trace.effects import WORLD
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead


def watched(step: Any, *args: Any, journal: Journal | None = None) -> tuple[Any, Trace]:
    return watch_call(step, (), args, {}, journal)


def externs(trace: Trace) -> list[Extern]:
    return [event for event in trace.events if isinstance(event, Extern)]


def test_the_next_element_is_taken_or_nothing() -> None:
    source = iter([None, 2])
    assert [take(source) for _ in range(3)] == [(None,), (2,), ()]


def test_calls_are_numbered_in_program_order() -> None:
    results: Any = queue.SimpleQueue()

    def step(x: torch.Tensor) -> torch.Tensor:
        results.put("first")
        y = x * 2
        results.put("second")
        return y + 1

    result, trace = watched(step, torch.ones(2))
    assert result.tolist() == [3.0, 3.0] and [results.get(), results.get()] == ["first", "second"]
    first, second = externs(trace)
    assert (first.number, second.number) == (0, 1)
    assert (first.after, second.after) == (0, 1)  # operations before each
    assert first.place.line == step.__code__.co_firstlineno + 1
    assert trace.refusals == []


def test_a_result_is_found_under_the_number_of_its_call() -> None:
    numbers = itertools.cycle([2.5])

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * next(numbers)

    result, trace = watched(step, torch.ones(2))
    assert result.tolist() == [2.5, 2.5]
    (call,) = externs(trace)
    found = [event for event in trace.events if isinstance(event, HeapRead) and event.access_path.waits_for]
    assert {event.access_path.waits_for for event in found} == {call.number + 1}
    assert any(event.value == 2.5 for event in found)


def test_what_the_journal_holds_is_taken_from_it() -> None:
    numbers: Any = queue.SimpleQueue()
    numbers.put(2.0)
    journal = Journal()
    assert journal.make(0, WORLD, False, method("get_nowait"), numbers) == 2.0

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * numbers.get_nowait()  # another call would raise: the queue is empty

    result, trace = watched(step, torch.ones(1), journal=journal)
    assert result.item() == 2.0 and trace.refusals == [] and journal.close() == []


def test_containers_of_the_call_are_copied_for_the_commit() -> None:
    results: Any = queue.SimpleQueue()

    def step(x: torch.Tensor) -> torch.Tensor:
        made = [1, 2]
        results.put(made)
        return x * len(made)

    _, trace = watched(step, torch.ones(1))
    (call,) = externs(trace)
    assert results.get() == [1, 2] and trace.refusals == []
    assert call.args[1] == [1, 2]


def put(value: Callable[[Any, torch.Tensor], Any]) -> Callable[..., Any]:
    """Return a step that hands a value to native code."""

    def step(x: torch.Tensor, results: Any) -> int:
        results.put(value(results, x))
        return 1

    return step


W = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda results, x: lambda: x, "native-callback"),
        (lambda results, x: x * W, "native-given-autograd"),
    ],
)
def test_what_may_not_be_given(value: Any, reason: str) -> None:
    result, trace = watched(put(value), torch.ones(2), queue.SimpleQueue())
    assert result == 1  # the call is made all the same
    assert reason in [refusal.reason for refusal in trace.refusals]


def test_a_tensor_that_native_code_kept_has_no_origin_in_a_graph() -> None:
    results: Any = queue.SimpleQueue()

    def step(x: torch.Tensor) -> torch.Tensor:
        results.put(x * 2)
        return results.get() + 1

    result, trace = watched(step, torch.ones(1))
    assert result.item() == 3.0 and [one.reason for one in trace.refusals] == ["native-keeps-tensor"]


def test_a_list_that_changes_after_it_was_given() -> None:
    results: Any = queue.SimpleQueue()

    def step(x: torch.Tensor, kept: Any) -> int:
        kept["made"] = made = {1: 2}.items()
        results.put(made)
        return 1

    result, _ = watched(step, torch.ones(1), {})
    assert result == 1


def test_an_error_of_native_code_reaches_the_program() -> None:
    results: Any = queue.SimpleQueue()

    def step(x: torch.Tensor) -> Any:
        try:
            return results.get_nowait()
        except queue.Empty:
            return x * 2

    result, trace = watched(step, torch.ones(1))
    assert result.item() == 2.0
    assert [one.reason for one in trace.refusals] == ["native-raises"]
    assert "get_nowait" in trace.refusals[0].what


def test_a_tensor_that_changes_after_it_was_given() -> None:
    results: Any = queue.SimpleQueue()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        results.put(y)
        y.add_(1)
        return y

    result, trace = watched(step, torch.ones(1))
    assert result.item() == 3.0 and results.get().item() == 3.0
    assert [one.reason for one in trace.refusals] == ["native-argument-changed"]

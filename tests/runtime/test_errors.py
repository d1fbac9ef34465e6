"""Errors in and around a graph: whose they are, what they leave behind, and that compiled code loses none."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.runtime.learning import policy
from torchjanus.runtime.runs import records


def speculate(fn: Any, **options: Any) -> Any:
    return torchjanus.speculate(fn, **{"executor": "replay", **options})


# -- compiled code --------------------------------------------------------------------------------------------------

Case = tuple[Callable[[torch.Tensor], Callable[..., Any]], Callable[[], list[Any]], Callable[[list[Any]], None]]


def bad_target(weight: torch.Tensor) -> Callable[..., Any]:
    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        weight.add_(x @ x)
        return torch.nn.functional.cross_entropy(torch.mm(x, x).relu(), target).detach()

    return step


def bad_index(weight: torch.Tensor) -> Callable[..., Any]:
    def step(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        weight.add_(x)
        return x.cumsum(0)[index * 2].sum()

    return step


def bad_matrix(weight: torch.Tensor) -> Callable[..., Any]:
    def step(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        weight.add_(x)
        return torch.linalg.cholesky(torch.eye(4) * index.sum()).sum()

    return step


COMPILED = {
    "a target out of bounds": (bad_target, 9),
    "a computed index out of bounds": (bad_index, 9),
    "a matrix that is not positive definite": (bad_matrix, -99),
}


@pytest.mark.parametrize("name", COMPILED)
def test_an_artifact_that_raises_leaves_eagers_state(name: str) -> None:
    """Unprotected, Inductor updates the weight and raises afterwards, and drops cholesky's check."""
    make, bad = COMPILED[name]
    weights = torch.zeros(4, 4), torch.zeros(4, 4)
    eager, fast = make(weights[0]), torchjanus.speculate(make(weights[1]), executor="inductor")
    torch.manual_seed(0)
    raised = []
    for call in range(10):
        x = torch.randn(4, 4)
        index = torch.tensor([1, 0, 1, bad if call in (7, 8) else 0])
        outcomes = []
        for step in (eager, fast):
            try:
                outcomes.append(f"{step(x, index):.3f}")
            except Exception as error:
                outcomes.append(f"{type(error).__name__}: {error}")
        assert outcomes[0] == outcomes[1], f"call {call}"
        raised.append(":" in outcomes[0])
        torch.testing.assert_close(*weights)
    assert raised == [call in (7, 8) for call in range(10)]
    assert fast.statistics().speculated >= 5
    assert not [event for event in fast.events if event.kind == "fault"]


def test_labels_to_be_ignored_are_within_bounds() -> None:
    weight = torch.zeros(3, 3)

    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        weight.add_(x)
        return torch.nn.functional.cross_entropy(x, target).detach()

    fast = torchjanus.speculate(step, executor="inductor")
    for call in range(8):
        fast(torch.randn(3, 3), torch.tensor([0, -100 if call % 2 else 1, 2]))
    assert fast.statistics().speculated == 5


# -- whose error it is ------------------------------------------------------------------------------------------------


def factor(state: dict[str, int]) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        state["n"] += 1
        try:
            return torch.linalg.cholesky(x).sum()
        except torch.linalg.LinAlgError:
            state["bad"] += 1
            return x.sum()

    return step


def test_an_error_that_the_program_catches_is_no_fault() -> None:
    state = {"n": 0, "bad": 0}
    fast = speculate(factor(state))
    for call in range(30):
        fast(torch.eye(2) * (-1 if call >= 5 and call % 3 == 0 else 1))
    assert state == {"n": 30, "bad": 8}
    counts = fast.statistics()
    assert counts.speculated == 19
    assert counts.watched == 3 + 3  # the first of the errors are looked into, and no more
    assert {event.kind for event in fast.events} == {"raised"}
    assert "the graph raised _LinAlgError, and so does eager" in str(torchjanus.explain(fast, detail=True))


def test_a_graph_that_always_raises_is_dropped() -> None:
    state = {"n": 0, "bad": 0}
    fast = speculate(factor(state))
    for call in range(40):
        fast(torch.eye(2) * (-1 if call >= 5 else 1))
    assert state == {"n": 40, "bad": 35}
    assert fast.entries == []
    assert "raises more often than not" in str(torchjanus.explain(fast, detail=True))


def test_calls_that_raise_are_not_watched_for_ever() -> None:
    table = {"a": 1.0}

    def step(x: torch.Tensor, key: str) -> torch.Tensor:
        return x * table[key]

    fast = speculate(step)
    for _ in range(4):
        fast(torch.ones(1), "a")
    for call in range(200):
        with pytest.raises(KeyError):
            fast(torch.ones(1), f"missing {call}")
    assert fast.statistics().watched <= policy.MAX_WATCHED
    before = fast.statistics().speculated
    for _ in range(policy.TRIED_AGAIN):  # after many misses graphs are not looked for at each call
        fast(torch.ones(1), "a")
    after = fast.statistics().speculated
    assert after > before
    fast(torch.ones(1), "a")
    assert fast.statistics().speculated == after + 1  # those that do not raise are served all the same


def test_errors_name_the_users_lines_whichever_way_the_call_went() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x)

    def step(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + 1

    def lines(fn: Callable[..., Any]) -> list[tuple[str, int | None]]:
        with pytest.raises(torch.linalg.LinAlgError) as caught:
            fn(-torch.eye(2))
        assert caught.value.__context__ is None
        assert not hasattr(caught.value, "__notes__")
        return [(f.name, f.lineno) for f in traceback.extract_tb(caught.value.__traceback__)][1:]

    expected = lines(step)
    assert [name for name, _ in expected] == ["step", "inner"]
    fast = speculate(step)
    assert lines(fast) == expected  # watched
    for _ in range(4):
        fast(torch.eye(2))
    assert fast.statistics().speculated >= 1
    for _ in range(6):
        assert lines(fast) == expected  # from the graph, looked into and not


def test_errors_keep_no_frames_alive() -> None:
    """A traceback kept by our records would hold the tensors of the call."""
    state = {"n": 0, "bad": 0}
    fast = speculate(factor(state))
    for call in range(12):
        fast(torch.eye(2) * (-1 if call >= 5 else 1))
    gc.collect()
    held = [o for o in gc.get_objects() if type(o).__name__ == "_LinAlgError"]
    assert held == []
    assert sys.exc_info() == (None, None, None)


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_records_do_not_grow_with_the_number_of_calls() -> None:
    """Violations, misses and raised errors, each of another wording."""
    scale = {"k": 1.0}

    def step(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * scale["k"]
        return x / scale["k"]

    fast = speculate(step)
    for call in range(2500):
        fast(torch.ones(1 + call % 7) * (-1 if call % 3 == 0 else 1))
    assert len(fast.events) <= records.MAX_EVENTS
    for call in range(3 * records.MAX_EVENTS):
        fast._learning.event_log.record("note", f"event {call}")
    assert len(fast.events) == records.MAX_EVENTS
    assert fast.events[0].text != "event 0"
    assert fast.events[-1].text == f"event {3 * records.MAX_EVENTS - 1}"


def test_what_was_stored_before_an_error_holds_plain_numbers() -> None:
    class State:
        total = 0.0
        items: list[float]

    state = State()
    state.total = 0.5

    def step(x: torch.Tensor) -> None:
        state.items = [state.total, x.sum().item()]
        raise ValueError("with a number", state.total * 2)

    fast = speculate(step)
    with pytest.raises(ValueError, match="with a number") as caught:
        fast(torch.ones(2))
    assert [type(item) for item in state.items] == [float, float]
    assert [type(part) for part in caught.value.args] == [str, float]


def test_a_number_and_a_class_that_change_at_once() -> None:
    """Relaxing the number must not make a graph of the other class's path."""

    class One:
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Two:
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return x - 1

    state: dict[str, Any] = {"lr": 0.1}
    thing: Any = One()

    def step(x: torch.Tensor) -> torch.Tensor:
        scale = state["lr"]
        result: torch.Tensor = thing.go(x) * scale
        return result

    fast = speculate(step)
    for call in range(14):
        if call == 6:
            state["lr"] = 0.2
            thing.__class__ = Two
        assert torch.equal(fast(torch.ones(2)), step(torch.ones(2))), call
    assert fast.statistics().speculated >= 6


def test_rare_violations_cost_no_entry() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x * 3

    fast = speculate(step)
    for call in range(300):
        x = torch.ones(1) * (-1 if call % 50 == 49 else 1)
        assert torch.equal(fast(x), step(x))
    assert fast.statistics().violated == 2  # after that the other way is known
    assert fast.statistics().speculated == 300 - 3 - 2

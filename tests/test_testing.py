"""Faults on purpose: what can be forced in an entry, that it strikes, and that the outcome stays eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.testing import Fault, Injected, faults, injected, parts, rehearsed


class State:
    def __init__(self) -> None:
        self.n, self.scale = 0, 2.0


def made() -> tuple[State, Any, Any]:
    """A step that has an entry with guards, an assertion and operations."""
    state = State()

    @torchjanus.speculate(executor="replay")
    def step(x: torch.Tensor) -> Any:
        state.n += 1
        y = x * state.scale
        return (y + 1 if y.sum() > 0 else y - 1), state.n

    for _ in range(4):
        step(torch.ones(3))
    (entry,) = step.entries
    return state, step, entry


def of_kind(entry: Any, kind: str) -> list[Fault]:
    return [fault for fault in faults(entry) if fault.kind == kind]


def test_the_parts_of_a_step_are_its_entries_where_no_tensor_decides_between_them() -> None:
    _, step, entry = made()
    assert list(parts(step)) == [entry]
    assert list(parts(torchjanus.speculate(lambda x: x))) == []


def test_faults_are_numbered_by_kind_and_say_what_they_are() -> None:
    _, _, entry = made()
    for kind in ("guard", "assertion", "operation"):
        found = of_kind(entry, kind)
        assert found
        assert [fault.number for fault in found] == sorted(fault.number for fault in found)
        assert str(found[0]) == f"{kind} {found[0].number}: {found[0].what}"
    assert {fault.sort for fault in of_kind(entry, "operation")} == {"operation"}


@pytest.mark.parametrize("kind", ["guard", "assertion", "operation"])
def test_a_fault_strikes_and_the_outcome_is_eagers(kind: str) -> None:
    state, step, entry = made()
    with injected(entry, of_kind(entry, kind)[0]) as injection:
        y, count = step(torch.ones(3))
    assert injection.struck >= 1
    assert y.tolist() == [3.0] * 3
    assert (count, state.n) == (5, 5)
    step(torch.ones(3))
    assert state.n == 6


def test_without_calls_nothing_strikes() -> None:
    _, _, entry = made()
    with injected(entry, of_kind(entry, "operation")[0]) as injection:
        pass
    assert injection.struck == 0


def test_an_operation_that_fails_raises_what_says_so() -> None:
    assert issubclass(Injected, RuntimeError)


def test_rehearsed_faults_leave_no_trace() -> None:
    state, step, entry = made()
    chosen = [of_kind(entry, kind)[0] for kind in ("guard", "assertion", "operation")]
    before = step.statistics()
    with rehearsed(entry, chosen) as injections:
        y, count = step(torch.ones(3))
    assert [injection.struck for injection in injections] == [1, 1, 1]
    assert (y.tolist(), count, state.n) == ([3.0] * 3, 5, 5)
    assert step.statistics().speculated == before.speculated + 1

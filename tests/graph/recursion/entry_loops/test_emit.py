"""Loops over trees as one call each: what takes the place of the iterations, and what keeps them apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.core.remarks import Remark
from torchjanus.graph.recursion.entry_loops.loops import EntryCallLoops
from torchjanus.trace.actions import InvokeEachOp, InvokeOp, Op
from torchjanus.trace.events import Trace

W = torch.randn(3, 3)
SHAPES: tuple[Any, ...] = ((), ((), ()), (((), ()), ()), ((), ((), ())))


def encode(tree: Any, h: torch.Tensor) -> torch.Tensor:
    h = torch.tanh(h @ W)
    return encode(tree[0], h) + encode(tree[1], h) if tree else h


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Trace, Trace]]:
    """The runs before and after their loops over trees became calls."""
    met: list[tuple[Trace, Trace]] = []
    merged = EntryCallLoops.merged

    def noted(self: EntryCallLoops, trace: Trace, made: Any) -> Trace:
        met.append((trace, merged(self, trace, made)))
        return met[-1][1]

    monkeypatch.setattr(EntryCallLoops, "merged", noted)
    return met


def learnt(step: Any) -> Any:
    jitted = torchjanus.speculate(step, executor="replay")
    for k in range(15):
        trees, x = list(SHAPES[: 1 + k % 4]), torch.randn(3)
        torch.testing.assert_close(jitted(trees, x), step(trees, x))
    return jitted


def summed(trees: list[Any], x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for tree in trees:
        total = total + encode(tree, x)
    return total


def test_the_calls_of_all_iterations_become_one_event(merges: list[tuple[Trace, Trace]]) -> None:
    step = learnt(summed)
    assert step.statistics().speculated > 0
    merged = [(old, new) for old, new in merges if new is not old]
    old, new = max(merged, key=lambda pair: sum(isinstance(event, InvokeOp) for event in pair[0].events))
    calls = [event for event in old.events if isinstance(event, InvokeOp)]
    (each,) = [event for event in new.events if isinstance(event, InvokeOp)]
    assert isinstance(each, InvokeEachOp) and len(each.iterations) == len(calls) > 1
    assert [one.call for one in each.iterations] != []
    # The sum of the results is one operation on their rows.
    assert sum(isinstance(event, Op) for event in new.events) < sum(isinstance(event, Op) for event in old.events)


def test_runs_of_other_numbers_of_trees_are_alike(merges: list[tuple[Trace, Trace]]) -> None:
    learnt(summed)
    found = [new for old, new in merges if new is not old]
    lengths = {len(event.iterations) for new in found for event in new.events if isinstance(event, InvokeEachOp)}
    assert len(lengths) > 1
    # Runs of two and of three trees make the same operations.
    assert len({tuple(event.name for event in new.events if isinstance(event, Op)) for new in found[-2:]}) == 1


def test_the_old_run_is_left_as_it_was(merges: list[tuple[Trace, Trace]]) -> None:
    learnt(summed)
    old, new = next((old, new) for old, new in reversed(merges) if new is not old)
    assert not any(isinstance(event, InvokeEachOp) for event in old.events)
    assert all(len(event.outs) == 1 for event in old.events if isinstance(event, InvokeOp))
    assert new.tokens() != old.tokens()


def carried_value(trees: list[Any], x: torch.Tensor) -> torch.Tensor:
    for tree in trees:
        x = encode(tree, x)
    return x


def listed(trees: list[Any], x: torch.Tensor) -> torch.Tensor:
    results = [encode(tree, x) for tree in trees]
    return results[0] * 2 + results[-1]


@pytest.mark.parametrize("step", [carried_value, listed])
def test_iterations_that_depend_on_each_other_stay_apart(step: Any, merges: list[tuple[Trace, Trace]]) -> None:
    jitted = learnt(step)
    assert merges and all(new is old for old, new in merges)
    reported: list[Remark] = [one for one in jitted.remarks if one.reason == "recursion-entry-loop"]
    assert all(one.detail for one in reported) and (reported or step is listed)


def test_a_run_without_calls_is_returned() -> None:
    trace = Trace()
    assert EntryCallLoops().merged(trace, {}) is trace

"""A loop of a run, and whether its iterations did the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.graph.loops.analysis.alignment import AlignedLoop, NotMergeable, token_of_count
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.events import Trace


def run(step: Any, *args: Any) -> Trace:
    return watch_call(step, (), args, {})[1]


def loop(step: Any, *args: Any) -> AlignedLoop:
    trace = run(step, *args)
    (instance,) = trace.loop_instances
    return AlignedLoop(trace, instance)


def sines(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = torch.sin(x)
    return x


@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_iterations_of_a_loop(count: int) -> None:
    found = loop(sines, torch.ones(3), count)
    assert found.count == count
    assert len(found.events) == count
    assert len(found.positions) == count
    assert found.positions == list(range(count))  # one operation each
    assert not found.trains
    assert found.until is None


def test_the_count_of_two_runs_is_one_expression() -> None:
    one, other = (token_of_count(run(sines, torch.ones(3), count).loop_instances[0]) for count in (3, 7))
    assert one is not None
    assert one == other


def computes_nothing(x: torch.Tensor, n: int) -> torch.Tensor:
    y = torch.sin(x)
    for _ in range(n):
        y = y
    return y


def test_a_loop_without_operations_is_no_loop_to_merge() -> None:
    trace = run(computes_nothing, torch.ones(3), 4)
    for instance in trace.loop_instances:
        with pytest.raises(NotMergeable):
            AlignedLoop(trace, instance)


def branches(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        x = torch.cos(x) if i == 1 else torch.sin(x)
    return x


def changes_shape(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        x = torch.sin(x) if i < 2 else torch.cat([x, x])
    return x


@pytest.mark.parametrize("step", [branches, changes_shape])
def test_iterations_that_did_other_things_are_not_mergeable(step: Any) -> None:
    trace = run(step, torch.ones(3), 4)
    for instance in trace.loop_instances:
        with pytest.raises(NotMergeable):
            AlignedLoop(trace, instance)


def trains(w: torch.Tensor, n: int) -> None:
    for _ in range(n):
        loss = (w * w).sum()
        loss.backward()


def test_a_loop_that_computes_gradients_is_one_that_trains() -> None:
    trace = run(trains, torch.ones(3, requires_grad=True), 4)
    assert [AlignedLoop(trace, instance).trains for instance in trace.loop_instances] in ([True], [])

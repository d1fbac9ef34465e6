"""Rows of what iterations have made: where they are taken, what is assumed of their number, where nothing is
stacked."""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.graph.loops.rewrites.collected_outputs import collected
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace

A = torch.eye(3)


def merged(step: Any, *args: Any) -> Trace:
    return collected(watch_call(step, (), args, {})[1])


def names(trace: Trace) -> list[str]:
    return [event.name.rpartition(".")[2] for event in trace.events if isinstance(event, Op)]


def states(x: torch.Tensor) -> list[torch.Tensor]:
    h, outs = torch.zeros(x.size(0), 3), []
    for t in range(x.size(1)):
        h = torch.tanh(h @ A + x[:, t])
        outs.append(h)
    return outs


def gone_through(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(2, 3)
    for one in states(x):
        total = total + one
    return total


def the_first(x: torch.Tensor) -> torch.Tensor:
    return states(x)[0] * 2


def part_of_it(x: torch.Tensor) -> torch.Tensor:
    outs, total = states(x), torch.zeros(x.size(0), 3)
    for t in range(x.size(0)):
        total = total + outs[t]
    return total


def by_layers(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """The second loop is not rolled: each iteration has a weight of its own."""
    y, outs = gone_through(x), []
    for k in range(len(weights)):
        y = torch.tanh(y @ weights[k])
        outs.append(y)
    return y + outs[0]


def test_what_iterations_have_made_is_stacked_once() -> None:
    trace = merged(gone_through, torch.randn(2, 5, 3))
    assert names(trace).count("stack") == 1
    assert names(trace).count("__getitem__") == 5 + 5  # of the argument, and of the stack
    (first, second) = trace.loop_instances
    assert first.asked == ()
    assert [str(expr) for expr in second.asked] == ["(x.shape[1] >= x.shape[1])"]


def test_there_have_to_be_as_many_rows_as_iterations_take() -> None:
    trace = merged(part_of_it, torch.randn(4, 5, 3))
    assert [str(expr) for expr in trace.loop_instances[-1].asked] == ["(x.shape[1] >= x.shape[0])"]


def test_the_first_of_many_is_a_row() -> None:
    assert "stack" in names(merged(the_first, torch.randn(2, 5, 3)))
    assert "stack" not in names(merged(the_first, torch.randn(2, 3, 3)))  # it may be meant as the last but two


def test_nothing_is_stacked_for_loops_that_are_not_merged() -> None:
    weights = [torch.eye(3).requires_grad_() for _ in range(5)]
    assert names(merged(by_layers, torch.randn(2, 9, 3), weights)).count("stack") == 1

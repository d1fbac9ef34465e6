"""Sums made in place, told as if each iteration made a tensor of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchjanus.graph.loops.rewrites.accumulators import functional_accumulators
from torchjanus.semantics.watch.watch import watch_call
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace


def watched(step: Any, *args: Any) -> Trace:
    return watch_call(step, (), args, {})[1]


def names(trace: Trace) -> list[str]:
    return [event.name for event in trace.events if isinstance(event, Op)]


def adds_up(xs: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for x in xs:
        total += torch.sin(x)
    return total


def a_view_sees_it(xs: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    view = total[:2]
    for x in xs:
        total += torch.sin(x)
    return total + view.sum()


def adds_to_what_was_there(xs: torch.Tensor) -> torch.Tensor:
    for x in xs:
        xs[0].add_(x.sin())
    return xs


def without_history(xs: torch.Tensor) -> torch.Tensor:
    w = torch.zeros(3, requires_grad=True) * 2
    for x in xs:
        with torch.no_grad():
            w += x
    return w


def test_each_change_makes_a_tensor() -> None:
    trace = functional_accumulators(watched(adds_up, torch.ones(4, 3)))
    assert names(trace).count("functional_add") == 4
    assert "Tensor.add_" not in names(trace)
    made = [ref for event in trace.events if isinstance(event, Op) for ref in event.outs]
    assert len(made) == len(set(made))
    assert trace.result.ref == made[-1]


@pytest.mark.parametrize("step", [a_view_sees_it, adds_to_what_was_there, without_history])
def test_what_something_else_would_see_stays(step: Callable[..., Any]) -> None:
    trace = watched(step, torch.ones(4, 3))
    assert functional_accumulators(trace) is trace

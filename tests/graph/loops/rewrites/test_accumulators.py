"""Sums made in place, rewritten as if each iteration made a tensor of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchjanus.graph.loops.rewrites.accumulators import changed_memory, functional_accumulators
from torchjanus.semantics.watch.run import watch_call
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


NORMS: list[Callable[..., Any]] = [
    lambda x, mean, var, w: F.batch_norm(x, mean, var, w, None, True),
    lambda x, mean, var, w: torch.batch_norm(x, w, None, mean, var, True, 0.1, 1e-5, False),
    lambda x, mean, var, w: torch.native_batch_norm(x, w, None, mean, var, True, 0.1, 1e-5),
    lambda x, mean, var, w: F.instance_norm(x[..., None].expand(4, 3, 4), mean, var, w),
    lambda x, mean, var, w: torch.instance_norm(
        x[..., None].expand(4, 3, 4), w, None, mean, var, True, 0.1, 1e-5, False
    ),
]


@pytest.mark.parametrize("norm", NORMS)
def test_running_statistics_change_however_the_norm_is_called(norm: Callable[..., Any]) -> None:
    given = torch.randn(4, 3), torch.zeros(3), torch.ones(3), torch.ones(3)
    before = [value.clone() for value in given]
    trace = watched(norm, *given)
    changed = [not torch.equal(now, old) for now, old in zip(given, before, strict=True)]
    assert changed == [False, True, True, False]
    numbers = {str(path): number for number, path in trace.access_paths.items()}
    memory = [trace.memory[numbers[name]] for name in ("x", "mean", "var", "w") if name in numbers]
    assert [one in changed_memory(trace) for one in memory] == changed

"""Runs with their loops cut down to the first iterations: what is kept, what is numbered anew, what is not cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.graph.loops.rewrites.fold import fold_loops
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.terms import TensorRef


def cut(step: Any, *args: Any) -> Trace | None:
    found = fold_loops(watch_call(step, (), args, {})[1])
    return None if found is None else found.trace


def operations(trace: Trace) -> list[str]:
    """The program's operations; marks have names of their own."""
    return [
        event.name for event in trace.events if isinstance(event, Op) and event.name.startswith(("Tensor.", "torch."))
    ]


def sines(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x * 2
    for _ in range(n):
        y = torch.sin(y)
    return y.sum()


@pytest.mark.parametrize("count", [3, 4, 17])
def test_three_iterations_are_kept_of_any_number(count: int) -> None:
    made = cut(sines, torch.ones(3), count)
    assert made is not None
    assert operations(made) == ["Tensor.mul", "torch.sin", "torch.sin", "torch.sin", "Tensor.sum"]


@pytest.mark.parametrize("count", [0, 1])
def test_a_loop_that_has_shown_no_second_iteration_is_not_cut(count: int) -> None:
    assert cut(sines, torch.ones(3), count) is None


def test_tensors_are_numbered_without_gaps() -> None:
    made = cut(sines, torch.ones(3), 9)
    assert made is not None
    numbers = [
        out.number for event in made.events if isinstance(event, Op) for out in event.outs if isinstance(out, TensorRef)
    ]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < len(made.tensors)


def test_runs_that_differ_only_in_their_trip_count_are_one_path() -> None:
    first, second = cut(sines, torch.ones(3), 5), cut(sines, torch.ones(3), 12)
    assert first is not None
    assert second is not None
    assert first.tokens() == second.tokens()


def nested(x: torch.Tensor, n: int, m: int) -> torch.Tensor:
    for _ in range(n):
        for _ in range(m):
            x = torch.sin(x)
        x = x * 2
    return x


def test_a_loop_within_a_loop_is_cut_in_each_iteration_that_is_kept() -> None:
    made = cut(nested, torch.ones(3), 5, 6)
    assert made is not None
    assert operations(made) == (["torch.sin"] * 3 + ["Tensor.mul"]) * 3


def third_is_other(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        x = torch.cos(x) if i == 4 else torch.sin(x)
    return x


def test_iterations_that_did_something_else_are_not_cut() -> None:
    assert cut(third_is_other, torch.ones(3), 7) is None


def collects(x: torch.Tensor, n: int) -> torch.Tensor:
    rows = []
    for _ in range(n):
        x = torch.sin(x)
        rows.append(x)
    return torch.stack(rows)


def test_what_all_iterations_collect_is_taken_of_those_that_are_kept() -> None:
    made = cut(collects, torch.ones(3), 8)
    assert made is not None
    (stack,) = (event for event in made.events if isinstance(event, Op) and event.name == "torch.stack")
    text = str(stack)
    assert "stack" in text
    assert operations(made).count("torch.sin") == 3

"""Runs of different trip counts merged into one path, and what keeps them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchjanus.graph.loops.rewrites.fold import FoldedTrace, fold_loops
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.facts import NumberPredicate

A = torch.eye(3)


def cut(step: Any, *args: Any) -> FoldedTrace | None:
    return fold_loops(watch_call(step, (), args, {})[1])


def over_a_tensor(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for x in xs:
        h = torch.tanh(A @ h + x)
    return h


def over_a_range(x: torch.Tensor, n: int) -> torch.Tensor:
    outs = []
    for _ in range(n):
        x = torch.sin(x)
        outs.append(x)
    return torch.stack(outs).sum()


def with_a_counter(x: torch.Tensor, n: int) -> torch.Tensor:
    k = 0
    for _ in range(n):
        k += 1
        x = torch.sin(x)
    return x


def with_a_decision(x: torch.Tensor, n: int) -> torch.Tensor:
    for t in range(n):
        if t > 100:
            x = x * 2
        x = torch.sin(x)
    return x


def with_a_length_afterwards(x: torch.Tensor, n: int) -> torch.Tensor:
    outs = []
    for _ in range(n):
        x = torch.sin(x)
        outs.append(x)
    return x if len(outs) < 100 else x * 2


def with_a_part_of_the_outputs(x: torch.Tensor, n: int) -> torch.Tensor:
    outs = []
    for _ in range(n):
        x = torch.sin(x)
        outs.append(x)
    return torch.stack(outs[:100])


def test_tensors_of_different_lengths_are_one_path() -> None:
    one, other = cut(over_a_tensor, torch.ones(4, 3)), cut(over_a_tensor, torch.ones(9, 3))
    assert one is not None
    assert other is not None
    assert (one.counts, other.counts) == ((4,), (9,))
    assert one.trace.tokens() == other.trace.tokens()


def test_numbers_of_iterations_are_one_path() -> None:
    one, other = cut(over_a_range, torch.ones(3), 3), cut(over_a_range, torch.ones(3), 20)
    assert one is not None
    assert other is not None
    assert one.trace.tokens() == other.trace.tokens()
    assert "n >= 1" in str(one.trace)


def test_what_counts_the_iterations_may_be_left_alone() -> None:
    one, other = cut(with_a_counter, torch.ones(3), 5), cut(with_a_counter, torch.ones(3), 9)
    assert one is not None
    assert other is not None
    assert one.trace.tokens() == other.trace.tokens()


def test_two_iterations_are_too_few() -> None:
    assert cut(over_a_range, torch.ones(3), 2) is None


def test_how_many_there_are_is_as_many_as_iterations() -> None:
    one, other = (cut(with_a_length_afterwards, torch.ones(3), n) for n in (5, 9))
    assert one is not None
    assert other is not None
    assert one.trace.tokens() == other.trace.tokens()
    held = [str(event.expr) for event in one.trace.events if isinstance(event, NumberPredicate)]
    assert "(n < 100)" in held


@pytest.mark.parametrize(
    "step",
    [
        with_a_decision,
        with_a_part_of_the_outputs,
    ],
)
def test_iterations_that_may_know_their_number_are_left_alone(step: Callable[..., Any]) -> None:
    assert cut(step, torch.ones(3), 5) is None

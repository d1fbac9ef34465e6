"""The functional graph of a second trace, derived from the first one's, is the one that functionalisation gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.graph.recording import generalise, record
from torchjanus.graph.tracing import number_slots, renumbered
from torchjanus.graph.tracing.trace_program import Traced, trace

layer = torch.nn.Linear(3, 3)


def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    return (x * k - 1).exp() / k


def updated(x: torch.Tensor, k: float) -> None:
    x.mul_(1 - k).add_(x.sin(), alpha=k)
    x[1:].sub_(k)


def trained(x: torch.Tensor, k: float) -> torch.Tensor:
    layer.zero_grad()
    loss = (layer(x) * k).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for one in layer.parameters():
            one.add_(one.grad, alpha=-k)
    return loss.detach()


def with_literals(x: torch.Tensor, k: float) -> torch.Tensor:
    return torch.nn.functional.leaky_relu(x, 0.3) * k + 0.125


def bounded(x: torch.Tensor, k: float) -> torch.Tensor:
    return torch.clamp(x, -k, k).cumsum(0)


STEPS = (scaled, updated, trained, with_literals, bounded)


def traces(step: Any) -> tuple[Traced, Traced, Traced]:
    """Two traces with different numbers, the second one derived of the first, and as it is without."""
    step(torch.randn(3, 3), 0.5)  # gradients are there from the first record on
    program, _ = generalise([record(step, torch.randn(3, 3), k) for k in (0.5, 0.25)])
    first, second = (number_slots.numbers_for(program.slots, {}, seed) for seed in (1, 2))
    assert first != second
    one = trace(program, first)
    return one, trace(program, second, (), one), trace(program, second)


def content(graph: Any) -> list[tuple[str, str, str]]:
    return [(str(node.target), str(node.args), str(node.kwargs)) for node in graph.graph.nodes]


@pytest.mark.parametrize("step", STEPS)
def test_it_is_the_graph_of_the_second_trace(step: Any) -> None:
    _, derived, made = traces(step)
    assert derived.twin is not None
    assert content(derived.twin) == content(made.graph)
    assert (derived.mutated, derived.restored) == (made.mutated, made.restored)


def test_a_number_of_unknown_origin_is_not_guessed() -> None:
    one, other, _ = traces(scaled)
    node = next(node for node in one.graph.graph.nodes if "mul" in str(node.target))
    node.args = (node.args[0], 0.0625)  # as if functionalisation had computed it
    assert renumbered.renumbered(one.graph, one.before, other.before) is None


def test_another_operation_or_a_number_that_occurs_twice_is_noticed() -> None:
    one, other, _ = traces(scaled)
    _, different, _ = traces(bounded)
    assert renumbered.renumbered(one.graph, one.before, different.before) is None
    numbers = [number for part in one.before.arguments for number in part if isinstance(number, float)]
    mixed = tuple(tuple(numbers[0] if number == 1 else number for number in part) for part in one.before.arguments)
    assert mixed != one.before.arguments
    clash = renumbered.TracedNumbers(one.before.names, one.before.operations, one.before.geometries, mixed, ())
    assert renumbered.renumbered(one.graph, clash, other.before) is None

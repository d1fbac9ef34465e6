"""A trace of the calls that take numbers alone says what a second trace of the whole program would."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.graph.recording import generalise, record
from tests.graph.tracing.test_renumbered import content
from torchjanus.graph.tracing import number_slots, trace_program
from torchjanus.graph.tracing.trace_program import Traced, trace

layer = torch.nn.Linear(3, 3)
average = torch.zeros(3, 3)


def trained(x: torch.Tensor, k: float) -> torch.Tensor:
    layer.zero_grad()
    loss = layer(x).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for one in layer.parameters():
            one.addcdiv_(one.grad, one.grad.abs().add_(k), value=-k)
    return loss.detach()


def averaged(x: torch.Tensor, k: float) -> torch.Tensor:
    average.mul_(k).add_(x, alpha=1 - k)
    average[0].clamp_(-k, k)
    return average.lerp(x, k)


def in_lists(x: torch.Tensor, k: float) -> torch.Tensor:
    torch._foreach_mul_([average, x], [k, 0.5])
    return torch.where(x > k, x, k)


def drawn(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * torch.empty_like(x).bernoulli_(k) + torch.full((3,), k)


def halves(x: torch.Tensor, k: float) -> torch.Tensor:
    return x.bfloat16().mul_(k)


SIMPLE = (trained, averaged, in_lists, drawn, halves)


def weighted(x: torch.Tensor, k: float) -> torch.Tensor:
    loss = (layer(x) * k).mean()
    loss.backward()
    return loss.detach()


def made(x: torch.Tensor, k: float) -> torch.Tensor:
    return x + torch.tensor([k, 2.0, 3.0])


OTHERS = (weighted, made)


def traces(step: Any) -> tuple[Traced, Traced | None, Traced]:
    """Return a trace, that with other numbers as far as it is known from the first one, and that made for itself."""
    step(torch.randn(3, 3), 0.5)
    program, _ = generalise([record(step, torch.randn(3, 3), k) for k in (0.5, 0.25)])
    first, second = (number_slots.numbers_for(program.slots, {}, seed) for seed in (1, 2))
    assert first != second
    one = trace(program, first)
    derived = trace_program._renumbered(one, second)
    return one, derived, trace(program, second)


@pytest.mark.parametrize("step", SIMPLE)
def test_it_is_the_second_trace(step: Any) -> None:
    one, derived, whole = traces(step)
    assert derived is not None
    assert derived.twin is not None
    assert content(derived.twin) == content(whole.graph)
    assert content(derived.twin) != content(one.graph)
    assert derived.results == whole.results


@pytest.mark.parametrize("step", OTHERS)
def test_what_autograd_or_constants_take_is_traced_as_a_whole(step: Any) -> None:
    assert traces(step)[1] is None

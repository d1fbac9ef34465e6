"""Arms that differ in little, as one program: which can be merged, what it computes, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.ir.program import Program
from torchjanus.graph.operators.switch_op import UNKNOWN
from torchjanus.graph.regions.partition import kind_of
from torchjanus.graph.regions.select import selecting
from torchjanus.graph.regions.switch import Switch, run
from torchjanus.graph.switches.rewrites.fold import LoopMerger
from torchjanus.graph.tracing.ambient import Ambient
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import Op

Iteration = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def rows(*signs: int) -> torch.Tensor:
    """Rows of these signs; every other one is large."""
    return torch.stack([sign * (1.0 + torch.rand(2, 3) + 2 * (n // 2 % 2)) for n, sign in enumerate(signs)])


def switch_of(iteration: Iteration) -> Switch:
    """A loop's iteration as a choice of two inputs: what is carried, and the iteration's row."""

    def step(xs: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(2, 3)
        for x in xs:
            h = iteration(h, x)
        return h.sum()

    merger = LoopMerger()
    for signs in ((1, -1) * 4, (-1, 1) * 4, (1, -1) * 4):
        merged = merger.merge(watch_call(step, (), (rows(*signs),), {})[1])
    return next(e.func for e in merged.events if isinstance(e, Op) and isinstance(e.func, Switch))


def joined(iteration: Iteration, *given: torch.Tensor) -> Program:
    switch = switch_of(iteration)
    return selecting(switch.arms, switch.results, tuple(map(kind_of, given)))


def doubled_or_less(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h = torch.tanh(h + x)
    return h * 2 if x.sum() > 0 else h - 1


def at_the_top(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = x if x.sum() > 0 else -x
    return torch.tanh(h * 0.5 + y) * y


def nested(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h = torch.sigmoid(h + x)
    if x.sum() > 0:
        h = h * 2
    y = h - x
    return y + 1 if x.abs().sum() > 13 else -y


def picked(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    best = h.argmax(1) if x.sum() > 0 else torch.zeros_like(h.argmin(1))
    return torch.tanh(h + x) * best.float().unsqueeze(1)


@pytest.mark.parametrize("iteration", [doubled_or_less, at_the_top, nested, picked])
@pytest.mark.parametrize("sign", [1, -1])
def test_results_and_gradients_are_those_of_the_way_taken(iteration: Iteration, sign: int) -> None:
    switch = switch_of(iteration)
    h = torch.randn(2, 3, requires_grad=True)
    x = (sign * (1.0 + torch.rand(2, 3))).requires_grad_()
    out, arm = switch(h, x)
    (program,) = switch.joined.values()
    assert program is not None
    assert not switch.made
    expected = iteration(h, x)
    assert torch.equal(out, expected)
    assert int(arm) >= 0
    given = [g for g in torch.autograd.grad(expected.sum(), (h, x), allow_unused=True, materialize_grads=True)]
    found = torch.autograd.grad(out.sum(), (h, x), allow_unused=True, materialize_grads=True)
    assert all(torch.equal(a, b) for a, b in zip(given, found, strict=True))


def test_what_all_ways_do_is_done_once() -> None:
    given = torch.zeros(2, 3), torch.zeros(2, 3)
    program = joined(at_the_top, *given)
    assert program is not None
    assert sum(node.func is torch.tanh for node in program.nodes) == 1
    assert sum(node.func is torch.where for node in program.nodes) == 2  # the input, and the number of the way


def multiplied(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return h * x if x.sum() > 0 else h + x


def divided_by_nothing(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (h + x) / 0.0 if x.sum() > 0 else h + x


def squashed(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(h + x) if x.sum() > 0 else h + x


def looked_up(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    index = (x > 0).long()
    return torch.gather(h + x, 1, index) if x.sum() > 0 else h + x


def transposed(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = x.new_zeros(3, 2).t() + 0 if x.sum() > 0 else x + 1
    return (h + y).sum(1, keepdim=True).expand(2, 3) + x


def drawn(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return h + torch.rand(2, 3) if x.sum() > 0 else h + x


@pytest.mark.parametrize("iteration", [multiplied, divided_by_nothing, squashed, looked_up, transposed, drawn])
def test_what_must_not_be_computed_for_nothing_is_not(iteration: Iteration) -> None:
    """Values that would meet a zero gradient, what may raise, other strides, random numbers."""
    h, x = torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(NotMergeable) as error:
        joined(iteration, h, x)
    assert error.value.reason == "branch-not-selected" and error.value.detail


@pytest.mark.parametrize("iteration", [multiplied, squashed])
def test_it_may_be_where_nothing_is_differentiated(iteration: Iteration) -> None:
    assert joined(iteration, torch.zeros(2, 3), torch.zeros(2, 3)) is not None


def test_what_is_large_is_not_computed_for_nothing() -> None:
    def iteration(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return h + x.repeat(40000, 1).sum(0) if x.sum() > 0 else h + x

    with pytest.raises(NotMergeable, match="too expensive"):
        joined(iteration, torch.zeros(2, 3), torch.zeros(2, 3))


def test_a_way_that_nobody_has_seen_has_no_number() -> None:
    def three(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        h = h + x
        if h.abs().max() > 100:
            return h - 1
        return h * 2 if x.sum() > 0 else -h

    switch = switch_of(three)
    program = selecting(switch.arms, switch.results, tuple(map(kind_of, (torch.zeros(2, 3), torch.zeros(2, 3)))))
    assert program is not None
    numbers = []
    for value in (1.0, -1.0, 1000.0):
        values: dict[int, Any] = {0: torch.zeros(2, 3), 1: torch.full((2, 3), value)}
        with Ambient() as ambient:
            run(program, values, ambient)
        numbers.append(int(values[program.outputs[-1].index]))
    assert sorted(numbers) == [UNKNOWN, 0, 1]
    assert numbers[2] == UNKNOWN

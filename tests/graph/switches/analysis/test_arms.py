"""Iterations of loops in which tensors decide, merged into one operation: when that can be done, and what it
computes."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.execute.regions.switch import ReplaySwitch
from torchjanus.graph.operators.switch_op import UNKNOWN
from torchjanus.graph.regions.switch import Switch
from torchjanus.graph.regions.switch_gradients import Flows
from torchjanus.graph.switches.analysis.numbers import SAFE, is_safe
from torchjanus.graph.switches.rewrites.fold import LoopMerger
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.values import Apply, Read


def test_what_may_raise_for_a_number_is_not_computed_for_other_arms() -> None:
    limit = Read(AccessPath.arg(0))
    for value in (math.inf, math.nan, 1e300, -0.0, 0.5):
        for func in SAFE:
            func(*(value,) * (2 if func in (operator.add, operator.sub, operator.mul) else 1))
    assert is_safe(Apply(abs, (limit,)))
    assert not is_safe(Apply(int, (limit,)))
    assert not is_safe(Apply(operator.add, (Apply(int, (limit,)), 1)))


def run(step: Any, *args: Any) -> Trace:
    return watch_call(step, (), args, {})[1]


def rows(*signs: int) -> torch.Tensor:
    """A row for each sign, with a sum of that sign."""
    return torch.stack([sign * (1.0 + torch.rand(2, 3)) for sign in signs])


def switches(trace: Trace) -> list[Op]:
    return [event for event in trace.events if isinstance(event, Op) and isinstance(event.func, Switch)]


def deciding(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(2, 3)
    for x in xs:
        h = torch.tanh(h + x)
        if x.sum() > 0:
            h = h * 0.5
    return h.sum()


def test_iterations_that_go_different_paths_are_merged() -> None:
    merger = LoopMerger()
    first, second = (merger.merge(run(deciding, rows(*signs))) for signs in ((1, -1, 1, -1), (-1, -1, 1, 1)))
    assert len(switches(first)) == len(switches(second)) == 4
    assert first.tokens() == second.tokens()


def test_a_way_counts_when_it_was_seen_in_two_iterations_and_before_another() -> None:
    merger = LoopMerger()
    for signs in ((-1, -1, 1), (-1, 1, -1)):
        trace = run(deciding, rows(*signs))
        merged = merger.merge(trace)
        assert (merged is trace) == (signs == (-1, -1, 1))
    trace = run(deciding, rows(1, 1, 1))
    assert merger.merge(trace) is not trace


def flagged(xs: torch.Tensor) -> torch.Tensor:
    h, seen = torch.zeros(2, 3), False
    for x in xs:
        if x.sum() > 0:
            seen = True
        h = h - x if seen else h + x
    return h.sum()


def counted(xs: torch.Tensor) -> torch.Tensor:
    h, count = torch.zeros(2, 3), 0
    for x in xs:
        if x.sum() > 0:
            count += 1
        h = h + x * count
    return h.sum()


def collected(xs: torch.Tensor) -> torch.Tensor:
    outs = [torch.zeros(2, 3)]
    for x in xs:
        if x.sum() > 0:
            outs.append(x * 2)
    return torch.stack(outs).sum()


def returned(xs: torch.Tensor) -> torch.Tensor:
    best = xs[0]
    for x in xs:
        if x.sum() > 0:
            best = x
    return best


@pytest.mark.parametrize("step", [flagged, counted, collected, returned])
def test_what_is_carried_otherwise_is_not_merged(step: Any) -> None:
    merger = LoopMerger()
    for signs in ((1, -1, 1, -1), (-1, -1, 1, 1), (-1, 1, 1, -1), (-1, 1, -1, 1)):
        trace = run(step, rows(*signs))
        assert merger.merge(trace) is trace


def made() -> tuple[Switch, list[torch.Tensor]]:
    merged = LoopMerger().merge(run(deciding, rows(1, -1, 1, -1)))
    return switches(merged)[0].func, [torch.randn(2, 3).requires_grad_(), rows(1)[0]]


def test_a_switch_is_the_way_that_it_takes() -> None:
    switch, (h, x) = made()
    runner = ReplaySwitch(switch.partition([(tuple(t.size()), t.stride(), t.dtype, t.device, False) for t in (h, x)]))
    for sign in (1, -1):
        out, arm = runner.forward([h.detach(), sign * x])[:2]
        expected = torch.tanh(h.detach() + sign * x)
        assert torch.equal(out, expected * 0.5 if sign > 0 else expected)
        assert int(arm) in (0, 1)


def test_gradients_are_those_of_the_way_taken() -> None:
    switch, (h, x) = made()
    partition = switch.partition([(tuple(t.size()), t.stride(), t.dtype, t.device, t.requires_grad) for t in (h, x)])
    runner = ReplaySwitch(partition)
    for sign in (1, -1):
        out = torch.tanh(h + sign * x) * (0.5 if sign > 0 else 1.0)
        (expected,) = torch.autograd.grad(out.sum(), h)
        results = runner.forward([h.detach(), sign * x])
        values = {"output": results[:1], "saved": results[2:], "invariant": [h.detach(), sign * x]}
        kept = [values[source.kind][source.index] for source in partition.kept]
        (gradient,) = runner.backward("1", int(results[1]), [torch.ones(2, 3)], kept)
        assert torch.equal(gradient, expected)


def test_a_way_that_nobody_has_seen_has_no_number() -> None:
    def three(xs: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(2, 3)
        for x in xs:
            if x.sum() > 20:
                h = h * 3
            elif x.sum() > 0:
                h = h * 0.5
            else:
                h = h + x
        return h.sum()

    switch: Any = switches(LoopMerger().merge(run(three, rows(1, -1, 1, -1))))[0].func
    kind = ((2, 3), (3, 1), torch.float32, torch.device("cpu"), False)
    runner = ReplaySwitch(switch.partition([kind, kind]))
    assert int(runner.forward([torch.ones(2, 3), torch.full((2, 3), 9.0)])[1]) == UNKNOWN


def test_who_gets_a_gradient_depends_on_the_ways() -> None:
    # One variable, h, and two parameters: the first way makes it of h and the first one, the second of the second only.
    flows = Flows([[[True, True, False]], [[False, False, True]]], frozenset({0}), frozenset())
    assert flows.uncertain() == {0, 1, 2}
    assert flows.reached([0, 0]) == {0, 1}
    assert flows.reached([0, 1]) == {2}
    assert flows.reached([1, 0]) == {1, 2}


def test_what_every_way_uses_is_certain() -> None:
    flows = Flows([[[True, True, False]], [[True, True, True]]], frozenset({0}), frozenset())
    assert flows.uncertain() == {2}

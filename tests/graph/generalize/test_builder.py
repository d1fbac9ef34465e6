"""Traces of one path as a tensor program: what becomes an input, a slot, a constant, a node, an assertion."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Refused
from torchjanus.graph.generalize.generalize import EntryPlan, generalise
from torchjanus.graph.ir.program import Ref, Slot, Symbol
from torchjanus.semantics.watch.run import watch_call


class Settings:
    def __init__(self, rate: float) -> None:
        self.rate = rate


def built(step: Any, *calls: tuple[Any, ...], relaxed: tuple[AccessPath, ...] = ()) -> EntryPlan:
    traces = [watch_call(step, (), call, {})[1] for call in calls]
    assert not any(trace.refusals for trace in traces)
    return generalise(traces, frozenset(path.token for path in relaxed))


def test_tensors_are_renumbered_inputs_first() -> None:
    w = torch.ones(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * w) + w

    program = built(step, (torch.ones(3),)).program
    assert len(program.inputs) == 2
    made = [ref.index for node in program.nodes for ref in node.outs]
    assert made == list(range(2, 5))
    assert all(value.index < node.outs[0].index for node in program.nodes for value in node.args)
    assert program.outputs == (Ref(4),) and program.output_after == (3,)


def test_what_is_equal_in_all_runs_is_a_constant() -> None:
    def step(x: torch.Tensor, settings: Settings) -> torch.Tensor:
        return x * settings.rate

    plan = built(step, *((torch.ones(3), Settings(0.5)) for _ in range(2)))
    assert plan.program.slots == () and plan.program.nodes[0].args[1] == 0.5


def test_a_number_that_differs_is_a_slot() -> None:
    def step(x: torch.Tensor, settings: Settings) -> torch.Tensor:
        return x * settings.rate

    plan = built(step, *((torch.ones(3), Settings(rate)) for rate in (0.5, 0.25)))
    (slot,) = plan.program.slots
    assert slot.type is float and slot.seen == (0.5, 0.25)
    assert plan.program.nodes[0].args[1] == Slot(0)


def test_one_expression_is_one_slot() -> None:
    def step(x: torch.Tensor, settings: Settings) -> torch.Tensor:
        return x * (settings.rate * 2) + (settings.rate * 2)

    plan = built(step, *((torch.ones(3), Settings(rate)) for rate in (0.5, 0.25)))
    assert [slot.seen for slot in plan.program.slots] == [(1.0, 0.5)]
    assert [node.args[1] for node in plan.program.nodes] == [Slot(0), Slot(0)]


def test_sizes_that_differ_are_symbols() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(x.size(0)) + x.sum(1)

    program = built(step, (torch.ones(4, 3),), (torch.ones(5, 3),)).program
    assert len(program.dimensions) == 1 and program.inputs[0].symbols == (0, None)
    zeros = next(node for node in program.nodes if "new_zeros" in str(node.func))
    assert Symbol(0) in zeros.args or (Symbol(0),) in zeros.args


def test_decisions_by_tensors_are_assertions_where_they_are_made() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y

    program = built(step, (torch.ones(3),)).program
    (assertion,) = program.assertions
    assert assertion.expected is True and assertion.after == 3  # mul, sum, gt
    assert program.nodes[assertion.after - 1].outs == (assertion.ref,)
    assert assertion.place.line == step.__code__.co_firstlineno + 2


def test_a_fetched_number_is_taken_before_a_later_change() -> None:
    def step(x: torch.Tensor) -> float:
        y = x * 2
        before = y.sum().item()
        y.add_(1)
        return before

    plan = built(step, (torch.ones(3),))
    (after,) = plan.program.output_after
    changing = next(n for n, node in enumerate(plan.program.nodes) if "add_" in str(node.func))
    assert after <= changing


def test_arithmetic_on_a_fetched_number_becomes_tensor_operations() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * (x.sum().item() * 2.0)

    program = built(step, (torch.ones(3),)).program
    assert program.slots == () and program.cuts == ()
    assert len(program.nodes) > 2


def test_arithmetic_that_is_not_exact_in_a_graph_is_refused() -> None:
    import math

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * math.lgamma(x.sum().item())

    with pytest.raises(Refused) as error:
        built(step, (torch.ones(3),))
    assert error.value.refusal.reason == "number-rounding"


def test_hazards_of_python_arithmetic_are_asserted() -> None:
    def step(x: torch.Tensor) -> float:
        return 1.0 / x.sum().item()

    plan = built(step, (torch.ones(3),))
    (assertion,) = plan.program.assertions
    assert assertion.expected is True and assertion.after == len(plan.program.nodes)

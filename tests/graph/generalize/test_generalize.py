"""What stayed equal over watched runs is assumed; what changed is an input of the graph from the first one on."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Refused
from torchjanus.graph.generalize.generalize import EntryPlan, generalise
from torchjanus.graph.ir.program import Slot
from torchjanus.host.assumption import Condition, Identity, TypeOf, ValueOf
from torchjanus.semantics.known.details import tensor_detail
from torchjanus.semantics.watch.run import watch_call


def plan_of(fn: Any, calls: Sequence[tuple[Any, ...]], relaxed: frozenset[Any] = frozenset()) -> EntryPlan:
    return generalise([watch_call(fn, (), call, {})[1] for call in calls], relaxed, tensor_detail)


def texts(plan: EntryPlan, cls: type) -> list[str]:
    return [str(a) for a in plan.assumptions if isinstance(a, cls)]


def x() -> torch.Tensor:
    return torch.ones(3)


def scaled(t: torch.Tensor, n: Any) -> torch.Tensor:
    return t * n


def test_an_equal_number_is_a_constant_with_a_guard() -> None:
    plan = plan_of(scaled, [(x(), 2.0)] * 3)
    assert plan.slots == ()
    assert plan.program.nodes[0].args[1] == 2.0
    assert "n == 2.0" in texts(plan, ValueOf)


def test_a_changing_number_is_a_slot() -> None:
    plan = plan_of(scaled, [(x(), 2.0), (x(), 2.0), (x(), 3.0)])
    assert plan.program.nodes[0].args[1] == Slot(0)
    assert [str(s) for s in plan.slots] == ["n"]
    (kind,) = plan.program.slots
    assert (kind.type, kind.seen) == (float, (2.0, 2.0, 3.0))
    assert "n is of type float" in texts(plan, TypeOf)
    assert texts(plan, ValueOf) == [t for t in texts(plan, ValueOf) if not t.startswith("n ")]


@pytest.mark.parametrize("pair", [(0.0, -0.0)], ids=repr)
def test_numbers_that_python_calls_equal_but_are_not(pair: tuple[float, float]) -> None:
    assert len(plan_of(scaled, [(x(), v) for v in pair]).slots) == 1


def test_nan_stays_equal() -> None:
    assert plan_of(scaled, [(x(), float("nan"))] * 2).slots == ()


def test_what_is_relaxed_is_a_slot_though_it_was_equal() -> None:
    plan = plan_of(scaled, [(x(), 2.0)] * 3, frozenset({AccessPath.arg(1).token}))
    assert [str(s) for s in plan.slots] == ["n"]


def test_arithmetic_on_changing_numbers_is_the_hosts() -> None:
    state = SimpleNamespace(step=0)

    def decayed(t: torch.Tensor) -> torch.Tensor:
        state.step += 1
        return t * (0.1**state.step)

    plan = plan_of(decayed, [(x(),)] * 3)
    assert [str(s) for s in plan.slots] == ["(0.1 ** (state.step + 1))"]
    assert [str(e.event) for e in plan.effects] == ["write  state.__dict__['step'] = (state.step + 1)"]


def test_a_condition_on_a_changing_number_is_guarded() -> None:
    plan = plan_of(lambda t, n: t * n if n < 9 else t, [(x(), 2), (x(), 3)])
    assert texts(plan, Condition) == ["(n < 9) is True"]


def test_tensors_that_are_new_at_each_call_are_inputs_and_others_pinned() -> None:
    weight = torch.ones(3)
    plan = plan_of(lambda t: t * weight, [(x(),), (x(),)])
    pinned = {str(o): t for o, t in zip(plan.access_paths, plan.pinned, strict=True)}
    assert pinned == {"t": None, "weight": weight}
    assert "weight is the same Tensor" in texts(plan, Identity)


def test_adams_step_counts_are_read_by_the_host() -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())

    def step(t: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(t).sum().backward()
        optimizer.step()

    step(torch.ones(1, 2))  # its state is there from now on
    plan = plan_of(step, [(torch.ones(1, 2),)] * 2)
    (batch,) = plan.batches
    assert len(batch.fetches) == 2 and [amount for _, amount in batch.steps] == [1]
    assert len(plan.slots) == 4  # two bias corrections for each of two parameters
    assert plan.program.assertions == ()


def test_live_gradients_are_bound_to_their_leaves() -> None:
    weight = torch.ones(3, requires_grad=True)

    def accumulate(t: torch.Tensor) -> None:
        (weight * t).sum().backward()

    assert [i.grad for i in plan_of(accumulate, [(x(),)]).program.inputs] == [None, None]
    plan = plan_of(accumulate, [(x(),)] * 2)
    inputs = plan.program.inputs
    (bound,) = (i.grad for i in inputs if i.grad is not None)
    assert str(plan.access_paths[bound.index]) == "weight.grad"
    assert inputs[bound.index].example is weight.grad


def test_refused_traces_make_no_graph() -> None:
    with pytest.raises(Refused, match="data_ptr"):
        plan_of(lambda t: t.data_ptr(), [(x(),)] * 2)

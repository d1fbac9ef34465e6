"""Programs traced on fake tensors: what the graph computes, what cannot be traced, and where each result lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.graph.recording import generalise, record
from torchjanus.graph.tracing.node_tracing import TraceFailed, is_own
from torchjanus.graph.tracing.trace_program import made_at, trace


def traced(step: Any, *args: Any) -> Any:
    program, values = generalise([record(step, *args)])
    return trace(program, values(record(step, *args)))


def targets(made: Any) -> list[str]:
    return [str(node.target) for node in made.graph.graph.nodes if node.op == "call_function"]


def test_a_graph_computes_what_the_program_does() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + y * 2

    x, y = torch.randn(3), torch.randn(3)
    made = traced(step, x, y)
    assert targets(made) == ["aten.sin.default", "aten.mul.Tensor", "aten.add.Tensor"]
    outputs = made.graph(x, y)
    assert torch.equal(outputs[0], step(x, y))
    assert made.fresh == 1
    assert made.mutated == ()


def test_an_update_in_place_is_a_returned_value() -> None:
    def step(x: torch.Tensor) -> None:
        x.mul_(2)

    made = traced(step, torch.ones(3))
    assert made.mutated == (0,)
    assert [value.tolist() for value in made.graph(torch.full((3,), 4.0))] == [[8.0] * 3]


def test_an_input_that_is_put_back_is_no_update() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        old = x.clone()
        x.zero_()
        y = x + 1
        x.copy_(old)
        return y

    made = traced(step, torch.ones(3))
    assert made.mutated == ()
    assert made.restored == (0,)


def test_gradients_are_part_of_the_graph() -> None:
    def step(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        loss = (w * x).sum()
        loss.backward()
        return loss.detach()

    w, x = torch.ones(3, requires_grad=True), torch.arange(3.0)
    made = traced(step, w, x)
    assert len(made.leaves) == 1
    values = made.graph(torch.full((3,), 2.0), x)
    assert any(torch.equal(value, x) for value in values)


def test_nothing_is_computed_and_no_tensor_is_touched() -> None:
    x = torch.ones(3)
    program, _ = generalise([record(lambda t: t.add_(1), x)])
    version, before = x._version, x.tolist()
    trace(program, [])
    assert (x._version, x.tolist()) == (version, before)


def test_sizes_that_do_not_fit_are_merged_with_the_place() -> None:
    program, _ = generalise([record(lambda x, n: x.reshape(2, n), torch.ones(6), 3)] * 1)
    (node,) = program.nodes
    wrong = replace(program, nodes=(replace(node, args=(node.args[0], 2, 4)),))
    with pytest.raises(TraceFailed, match="reshape raised RuntimeError") as failed:
        trace(wrong, [])
    assert failed.value.place == node.place


def test_an_empty_program() -> None:
    made = traced(lambda x: None, torch.ones(2))
    assert targets(made) == []
    assert made.outputs == ()


def test_own_operations_are_distinguished_from_torchs() -> None:
    assert not is_own(torch.add)
    assert not is_own(torch.Tensor.add_)


def test_inputs_are_known_without_running_anything() -> None:
    program, _ = generalise([record(lambda x: (x @ x.t()).sum(0), torch.ones(2, 5))])
    assert [tuple(one.shape) for one in made_at(program, [], (), ())] == [(2, 5)]

"""Writes that nobody sees are not made; what is seen of them, contents and counts of changes, is as ever."""

from __future__ import annotations

import pytest
import torch

from tests.graph.recording import generalise, record
from torchjanus.execute.replay import Replay
from torchjanus.graph.aten.buffer_reuse import of_updates
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.lower import lower

aten = torch.ops.aten


def lowered(step, *args) -> Lowered:
    program, _ = generalise([record(step, *args)])
    return lower(program)


def targets(made: Lowered) -> list[str]:
    calls = [node for node in made.graph.graph.nodes if node.op == "call_function"]
    return [str(node.target).removeprefix("aten.").partition(".")[0] for node in calls]


def agrees(step, *args) -> Lowered:
    """The graph does to copies of the tensors what the step does."""
    made = lowered(step, *[arg.clone() for arg in args])
    order = [entry.name for entry in made.program.inputs]
    program, _ = generalise([record(step, *(mine := [arg.clone() for arg in args]))])
    assert [entry.name for entry in program.inputs] == order
    given = [arg.clone() for arg in args]
    # The recorder names inputs by when it meets them: find which argument each is.
    found = [next(n for n, one in enumerate(mine) if one is entry.example) for entry in program.inputs]
    Replay(made).run([given[n] for n in found], [])
    for one, other in zip(given, mine, strict=True):
        assert torch.equal(one, other)
    return made


X, W = torch.arange(6.0).view(2, 3), torch.full((2, 3), 0.5)


def test_what_is_written_over_as_a_whole_is_not_computed():
    def step(w, x):
        w.mul_(0.9)
        w.add_(x.exp())
        w.copy_(x * 2)

    assert targets(agrees(step, W, X)) == ["mul", "copy"]


def test_a_scratch_tensor_is_filled_once_in_the_end():
    def step(w, x):
        w.zero_()
        w.add_(x)
        y = w.sum()
        w.fill_(3.0)
        return y

    made = agrees(step, W, X)
    assert targets(made) == ["zero", "add", "sum", "fill"]
    assert list(made.mutated) == [0]


def test_several_whole_writes_in_a_row_are_one():
    def step(w, x):
        w.zero_()
        w.copy_(x)
        w.fill_(2.0)
        w.zero_()

    assert targets(agrees(step, W, X)) == ["zero"]


def test_what_is_read_in_between_is_read_from_where_it_came_from():
    def step(w, x):
        old = w.clone()
        w.copy_(x)
        y = (w * 3).sum()
        w.copy_(old)
        w.add_(x)
        return y

    made = agrees(step, W, X)
    assert targets(made) == ["mul", "sum", "add"]


def test_a_tensor_that_is_given_back_what_was_in_it_is_not_written():
    def step(w, x):
        old = w.clone()
        w.add_(x)
        y = (w * 3).sum()
        w.copy_(old)
        return y

    made = agrees(step, W, X)
    assert targets(made) == ["add", "mul", "sum"]
    assert (made.mutated, made.restored) == ((), (0,))


def test_a_copy_that_leaves_is_a_tensor_of_its_own():
    def step(w, x):
        y = torch.empty_like(x).copy_(x)
        w.copy_(y)
        return y

    made = agrees(step, W, X)
    values = made.graph(*[torch.ones(2, 3) * n for n in range(len(made.program.inputs))])
    assert len({value.data_ptr() for value in values}) == len(values)


@pytest.mark.parametrize("other", [torch.ones(3), torch.ones(2, 3, dtype=torch.double), torch.ones(3, 2).t()])
def test_a_copy_of_what_lies_otherwise_stays_a_copy(other):
    def step(w, x):
        w.copy_(x)
        y = w * 2
        w.copy_(y)

    assert "copy" in targets(agrees(step, W, other))


def test_draws_are_made_though_they_are_written_over():
    def step(w, x):
        w.normal_()
        w.copy_(x)

    made = lowered(step, W.clone(), X.clone())
    assert made.random
    assert any("normal" in name for name in targets(made))


def test_lists_are_led_back_one_by_one():
    def step(w, v, x):
        torch._foreach_mul_([w, v], 0.5)
        torch._foreach_copy_([w, v], [x, x])

    assert "_foreach_mul" not in targets(agrees(step, W, W + 1, X))


def test_whole_writes_are_made_in_place():
    def step(grad, target, x):
        grad.add_(x)
        y = grad.sum()
        grad.zero_()
        target.mul_(0.5)
        target.copy_(x * y)

    made = agrees(step, W, W + 1, X)
    found = of_updates(made)
    assert found.updated == frozenset({0, 1})
    assert set(found.forms.values()) >= {aten.zero_.default, aten.copy_.default}

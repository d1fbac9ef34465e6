"""Whole training steps by back ends of ``torch.compile`` and by functions, against eager and against replay."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn

import torchjanus
from torchjanus.execute.backends.dynamo import executor_of


def training(backend, steps=12):
    """Losses and parameters of some steps, eagerly if there is no back end, and the step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = [(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(steps)]

    def step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = step if backend is None else torchjanus.speculate(step, backend=backend)
    losses = [run(x, y).clone() for x, y in batches]
    return [*losses, *map(copy.deepcopy, model.parameters())], run


@pytest.mark.parametrize("backend", ["replay", "eager", "aot_eager"])
def test_a_training_step(backend):
    expected, _ = training(None)
    found, step = training(backend)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert step.statistics().speculated >= 6
    if backend != "replay":
        assert f"{backend} agreed with replay" in str(torchjanus.explain(step, detail=True))


def test_a_function_of_the_users_own():
    seen = []

    def mine(graph, examples):
        seen.append((graph, examples))
        return graph.forward

    expected, _ = training(None)
    found, step = training(mine)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    [(graph, examples)] = seen
    assert isinstance(graph, torch.fx.GraphModule)
    assert all(isinstance(one, torch.Tensor) for one in examples)
    assert "agreed with replay" in str(torchjanus.explain(step, detail=True))


def test_one_that_is_wrong_is_not_used():
    def wrong(graph, examples):
        return lambda *inputs: [one * 1.5 if one.is_floating_point() else one for one in graph(*inputs)]

    expected, _ = training(None, 40)
    found, step = training(wrong, 40)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert "disagrees with replay" in str(torchjanus.explain(step, detail=True))


def test_one_that_raises_is_not_used():
    def raising(graph, examples):
        raise RuntimeError("no")

    expected, _ = training(None)
    found, step = training(raising)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert "could not compile the graph: RuntimeError: no" in str(torchjanus.explain(step, detail=True))


def test_parts_of_a_step():
    seen = []

    def mine(graph, examples):
        seen.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    def losses(backend):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def forward(x):
            return model(x)

        def step(x, y):
            optimizer.zero_grad()
            loss = (forward(x) - y).pow(2).mean()
            loss.backward()
            sys._getframe()  # no graph of the whole step
            optimizer.step()
            return loss.detach()

        run = step if backend is None else torchjanus.speculate(step, backend=backend)
        found = []
        for _ in range(30):
            found.append(run(torch.randn(6, 4), torch.randn(6, 1)))
            if backend is not None:
                run.wait()
        return found, run

    expected, _ = losses(None)
    for backend in ("aot_eager", mine):
        found, step = losses(backend)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert step.statistics().speculated == 0
        assert "parts, in " in str(torchjanus.explain(step, detail=True))
    assert len(seen) >= 3  # the optimizer's step, and a forward and a backward graph
    assert max(seen) > 40


def test_numbers_that_change():
    step = torchjanus.speculate(lambda x, k: x * k, backend="eager")
    for k in range(12):
        assert torch.equal(step(torch.ones(2), k * 0.5), torch.ones(2) * (k * 0.5))


def test_sizes_that_change_are_left_to_replay():
    step = torchjanus.speculate(lambda x: x * 2, backend="eager")
    for k in range(14):
        assert torch.equal(step(torch.ones(k + 2)), torch.ones(k + 2) * 2)
    assert "sizes vary" in str(torchjanus.explain(step, detail=True))


def test_a_decision_that_goes_another_way():
    def f(x):
        return x * 2 if x.sum() > 0 else x - 1

    step = torchjanus.speculate(f, backend="eager")
    for k in range(14):
        x = torch.full((3,), -1.0 if k in (9, 12) else float(k))
        assert torch.equal(step(x), f(x))


def test_names_that_there_are_not():
    with pytest.raises(torchjanus.Unsupported, match="no back end 'lisp'"):
        torchjanus.speculate(lambda x: x, backend="lisp")
    with pytest.raises(torchjanus.Unsupported, match="not both"):
        torchjanus.speculate(lambda x: x, backend="eager", executor="replay")
    with pytest.raises(torchjanus.Unsupported, match="neither"):
        torchjanus.speculate(lambda x: x, backend=3)


def test_a_function_has_one_name():
    def mine(graph, examples):
        return graph.forward

    first = mine

    def mine(graph, examples):
        return graph.forward

    names = [executor_of(one) for one in (first, mine, first, mine)]
    assert names[:2] == names[2:] and names[0] != names[1]

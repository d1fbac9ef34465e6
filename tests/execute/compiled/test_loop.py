"""Iterations of loops compiled by Inductor, where the number of iterations changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchjanus
from tests.programs import harness

LENGTHS = (5, 7, 5, 9, 12, 30, 6, 3, 17, 8, 64, 11)


def training(executor: str | None) -> tuple[Callable[[torch.Tensor], float], nn.Module, list[float]]:
    torch.manual_seed(0)
    cell, history = nn.LSTMCell(3, 4), list[float]()
    opt = torch.optim.SGD(cell.parameters(), lr=0.05)

    def step(xs: torch.Tensor) -> float:
        h = c = torch.zeros(2, 4)
        total = torch.zeros(())
        for x in xs:
            h, c = cell(x, (h, c))
            total += h.pow(2).sum()
            history.append(h.sum().item())
        opt.zero_grad()
        total.backward()
        opt.step()
        return total.item()

    return step if executor is None else torchjanus.speculate(step, executor=executor), cell, history


def data() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(length, 2, 3) for length in LENGTHS]


@pytest.mark.slow
def test_iterations_of_any_number_are_compiled_once() -> None:
    eager, wanted, expected = training(None)
    step, cell, history = training("inductor")
    for xs in data():
        torch.testing.assert_close(step(xs), eager(xs), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(history, expected, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(cell.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert step.statistics().compiles == 1
    assert "inductor agreed with replay" in str(torchjanus.explain(step, detail=True))


def reading(executor: str | None, deep: bool) -> tuple[Callable[[torch.Tensor], float], nn.Module]:
    """A step over a text of any length; ``deep``: words are looked up by what is computed in each iteration."""
    torch.manual_seed(0)
    table, cell = nn.Embedding(11, 4), nn.GRUCell(4, 4)
    opt = torch.optim.SGD([*table.parameters(), *cell.parameters()], lr=0.05)

    def step(text: torch.Tensor) -> float:
        h = torch.zeros(2, 4)
        for word in text.t():
            h = cell(table(word + (h.sum() > 1e9) if deep else word), h)
        opt.zero_grad()
        loss = h.square().sum()
        loss.backward()
        opt.step()
        return loss.item()

    model = nn.ModuleList([table, cell])
    return step if executor is None else torchjanus.speculate(step, executor=executor), model


@pytest.mark.slow
@pytest.mark.parametrize("deep", [False, True])
def test_an_index_out_of_range_in_a_iteration_is_eagers_error(deep: bool) -> None:
    eager, wanted = reading(None, deep)
    step, model = reading("inductor", deep)
    torch.manual_seed(1)
    for number, length in enumerate(LENGTHS):
        text = torch.randint(11, (2, length))
        if number == 9:
            text[0, 4] = 11
            with pytest.raises(IndexError, match="index out of range in self"):
                eager(text)
            with pytest.raises(IndexError, match="index out of range in self"):
                step(text)
        else:
            assert step(text) == pytest.approx(eager(text), rel=1e-5)
        for mine, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert "inductor agreed with replay" in str(torchjanus.explain(step, detail=True))


@pytest.mark.slow
def test_iterations_on_tensors_of_changing_sizes_run_within_a_compiled_step() -> None:
    eager, other = (harness.run("sizes_in_loops", "batch_and_time_change", variant) for variant in (None, "inductor"))
    assert harness.compare(eager, other, 1e-3) == []
    (step,) = other.steps
    assert step.statistics().compiles == 1
    assert "inductor agreed with replay" in str(torchjanus.explain(step, detail=True))


def leaving(executor: str | None) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(3, 4), nn.GRUCell(4, 4)])
    proj, cell = model
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> tuple[float, int]:
        z = proj(x)
        h = torch.zeros(2, 4)
        for t in range(z.size(1)):
            h = cell(z[:, t], h)
            if h.abs().max() > 0.4:
                break
        opt.zero_grad()
        loss = h.square().sum()
        loss.backward()
        opt.step()
        return loss.item(), t

    return step if executor is None else torchjanus.speculate(step, executor=executor), model


@pytest.mark.slow
def test_iterations_that_take_rows_until_a_tensor_ends_them_stand_in_compiled_graphs() -> None:
    eager, wanted = leaving(None)
    step, model = leaving("inductor")
    torch.manual_seed(1)
    for number in range(14):
        x = torch.randn(2, 7 + number % 4, 3)
        (loss, iteration), (expected, number_of_iteration) = step(x), eager(x)
        assert iteration == number_of_iteration
        assert abs(loss - expected) < 1e-5
    for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    counts = step.statistics()
    assert counts.speculated >= 8
    assert "inductor agreed with replay" in str(torchjanus.explain(step, detail=True))

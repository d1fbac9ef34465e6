"""Selections rewritten as operations of the graph: one graph where nobody in Python needs their size, else the
host's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchjanus
from torchjanus.core.errors import Refused
from torchjanus.graph.aten.index_ranges import elements_of
from torchjanus.graph.aten.size_assertions import assert_sizes
from torchjanus.graph.lowering.lower import made_in
from torchjanus.graph.operators.data_sizes import found_sizes
from torchjanus.runtime.entries.entry import Entry

ROWS = 8


def entry_of(body: Callable[[torch.Tensor, torch.Tensor], Any], calls: int = 8) -> Entry:
    """The graph of a step that trains by what ``body`` computes of its predictions and inputs; it does as eager."""
    torch.manual_seed(0)
    start = torch.randn(4, 3)
    weights = [start.clone().requires_grad_() for _ in range(2)]

    def step_of(w: torch.Tensor) -> Callable[[torch.Tensor], Any]:
        def step(x: torch.Tensor) -> Any:
            w.grad = None
            result = body(x @ w, x)
            (result[0] if isinstance(result, tuple) else result).backward()
            with torch.no_grad():
                w.sub_(w.grad, alpha=0.1)
            return result[1:] if isinstance(result, tuple) else result.detach()

        return step

    eager, step = step_of(weights[0]), torchjanus.speculate(step_of(weights[1]), executor="replay")
    for _ in range(calls):
        x = torch.randn(ROWS, 4)
        expected, given = eager(x), step(x)
        torch.testing.assert_close(given, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(weights[0], weights[1])
    (entry,) = step.entries
    assert entry.runs >= calls - 4
    return entry


def is_within(entry: Entry) -> bool:
    """Whether the graph makes its selections."""
    assert bool(entry.plan.dimensions.made) == (not entry.plan.schedule.cuts)
    return bool(entry.plan.dimensions.made)


def test_one_mask_is_looked_at_once() -> None:
    entry = entry_of(lambda p, x: F.mse_loss(p[x[:, 0] > -1], x[x[:, 0] > -1][:, :3]))
    assert is_within(entry)
    assert len(entry.plan.dimensions.made) == 1
    finding = [node for node in entry.lowered.graph.graph.nodes if node.target is torch.ops.aten.nonzero.default]
    assert len(finding) == 1
    assert len(found_sizes(entry.lowered.graph)) == 1


def test_what_tracing_decides_is_asserted() -> None:
    entry = entry_of(lambda p, x: F.mse_loss(p[x[:, 0] > -1], x[x[:, 0] > -1][:, :3]))
    assert entry.lowered.sized
    assert all(made_in(entry.lowered.program, condition) for condition in entry.lowered.sized)
    assert not any(made_in(entry.lowered.program, condition) for condition in entry.lowered.conditions)
    assert entry.lowered.flags == entry.lowered.fresh
    assert entry.lowered.assertions[-1].place.line


def test_their_number_may_be_a_factor() -> None:
    assert is_within(entry_of(lambda p, x: p[x[:, 0] > -1].sum() / max(1, len(x[x[:, 0] > -1]))))


def test_sums_ask_nothing() -> None:
    assert not entry_of(lambda p, x: p[x[:, 0] > 0].sum()).lowered.sized


@pytest.mark.parametrize(
    "body",
    [
        lambda p, x: p[x[:, 0] > -1].sum() / len(x[x[:, 0] > -1]) ** 0.5,
        lambda p, x: p[x[:, 0] > -1].sum() * (1 if len(p[x[:, 0] > -9]) < 3 else 2),
    ],
    ids=["root", "decision"],
)
def test_what_python_does_with_a_number_is_the_hosts(body: Any) -> None:
    assert not is_within(entry_of(body))


def test_a_lookup_by_positions_cannot_fail() -> None:
    entry = entry_of(lambda p, x: p[p.detach() > 0].pow(2).sum() + p[x[:, 0] > 0].sum())
    nodes = list(entry.lowered.graph.graph.nodes)
    looked_up = [node for node in nodes if node.target is torch.ops.aten.index.Tensor]
    assert looked_up
    for node in looked_up:
        for dim, index in enumerate(node.args[1]):
            known = elements_of(index, {})
            assert known is not None
            assert known.intervals == {(0, node.args[0].meta["val"].size(dim) - 1)}


def test_a_size_that_no_value_has_cannot_be_asserted() -> None:
    entry = entry_of(lambda p, x: F.mse_loss(p[x[:, 0] > -1], x[x[:, 0] > -1][:, :3]))
    with pytest.raises(Refused, match="does not know"):
        assert_sizes(entry.lowered.graph, entry.lowered.sized, {}, entry.lowered.fresh, True)


@pytest.mark.slow
def test_inductor_compiles_it_for_any_number_of_elements() -> None:
    torch.manual_seed(0)
    start = torch.randn(4, 3)
    weights = [start.clone().requires_grad_() for _ in range(2)]

    def step_of(w: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        def step(x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
            keep = torch.arange(len(x)) < limit
            loss = F.cross_entropy((x @ w)[keep], x[keep].argmax(1) % 3, reduction="sum") + (x @ w)[~keep].sum()
            (g,) = torch.autograd.grad(loss, w)
            with torch.no_grad():
                w.sub_(g, alpha=0.1)
            return loss.detach()

        return step

    eager, step = step_of(weights[0]), torchjanus.speculate(step_of(weights[1]), executor="inductor")
    for call in range(60):
        x, limit = torch.randn(ROWS + call % 2, 4), torch.tensor(call % 9 if call > 30 else 2 + call % 5)
        torch.testing.assert_close(step(x, limit), eager(x, limit), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)
        if call == 8:
            step.wait()
    (entry,) = step.entries
    assert entry.plan.dimensions.made
    assert entry.engine.current == "inductor"

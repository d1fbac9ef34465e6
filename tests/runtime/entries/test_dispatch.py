"""Which graphs are tried on a call, how many there can be, and what becomes of a step that no graphs can follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus import speculate


def test_the_place_that_tells_graphs_apart_is_looked_at_first() -> None:
    def step(x: torch.Tensor, mode: Any) -> torch.Tensor:
        if mode is None:
            return x
        if isinstance(mode, str):
            return x * len(mode)
        return x + mode

    fast = speculate(step, executor="replay")
    calls: list[Any] = [None, "ab", torch.ones(3), (1, 2)]
    for mode in [m for m in calls[:3] for _ in range(4)]:
        fast(torch.ones(3), mode)
    dispatch = fast._learning.routes.dispatch
    assert len(fast.entries) == 3
    assert str(dispatch.access_path) == "mode"
    tried = [len(dispatch.candidates((torch.ones(3), mode), {})) for mode in calls]
    assert tried == [1, 1, 1, 0]
    before = fast.statistics().speculated
    for mode in calls[:3] * 2:
        assert torch.equal(fast(torch.ones(3), mode), step(torch.ones(3), mode))
    assert fast.statistics().speculated == before + 6
    with pytest.raises(TypeError):
        fast(torch.ones(3), (1, 2))


def test_which_graph_will_make_a_call_is_foreseen() -> None:
    state = {"n": 0}
    net = torch.nn.Linear(3, 2)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = net(x).pow(2).mean()
        loss.backward()
        state["n"] += 1
        if state["n"] % 2 == 0:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad
            net.zero_grad()
        return loss.detach()

    fast = speculate(step, executor="replay")
    routes = fast._learning.routes.dispatch
    assert routes.foresee((torch.ones(4, 3),), {}) is None
    foreseen, served = [], []
    for call in range(40):
        x = torch.ones(4, 3)
        foreseen.append(fast._learning.routes.dispatch.foresee((x,), {}))
        before = fast.statistics().speculated
        fast(x)
        used = max(fast._learning.routes, key=lambda route: route.used, default=None)
        served.append(id(used) if fast.statistics().speculated > before else 0)
        assert call < 20 or served[-1]
    assert foreseen[20:] == served[20:] and len(set(foreseen[20:])) == 2


def test_graphs_for_any_value_are_tried_beside_those_for_one() -> None:
    state: dict[str, Any] = {"k": 1}

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * state["k"]

    fast = speculate(step, executor="replay")
    for k in (1, 1, 1, 1, "no", 2.0, 2.0, 2.0, 3, 4, None, 5, 2.5, 1):
        state["k"] = k
        if isinstance(k, int | float):
            assert torch.equal(fast(torch.ones(3)), torch.full((3,), float(k)))
        else:
            with pytest.raises(TypeError):
                fast(torch.ones(3))


def test_the_graph_that_makes_the_calls_is_tried_first() -> None:
    best = [0.0]

    def step(x: torch.Tensor) -> torch.Tensor:
        total = x[x > -9].sum().item()  # the host finds the positions: such paths are graphs apart
        if total > best[0]:
            best[0] = total
            return x * 2
        return x - 1

    fast = speculate(step, executor="replay")
    for k in range(1, 20):  # both paths, the rare one last
        x = torch.ones(2) * (k if k % 3 == 0 or k > 16 else 0.1)
        best[0] = 0.5 * k
        expected = step(x)
        best[0] = 0.5 * k
        assert torch.equal(fast(x), expected)
    assert len(fast.entries) == 2

    def first() -> Any:
        (entry,) = fast._learning.routes.dispatch.routes[0].entries
        return entry

    for sign in (-1.0, 1.0, -1.0):
        before = fast.statistics()
        for _ in range(4):
            best[0] = 0.0
            assert torch.equal(fast(torch.ones(2) * sign), torch.ones(2) * (2 if sign > 0 else -2))
        runs = first().runs
        best[0] = 0.0
        fast(torch.ones(2) * sign)
        assert first().runs == runs + 1
        assert fast.statistics().speculated == before.speculated + 5

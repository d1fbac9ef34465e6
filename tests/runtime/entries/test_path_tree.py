"""Trees of paths: what is shared, what each arm does, and what happens when something fails on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torchjanus
from torchjanus import Speculated, speculate
from torchjanus.runtime.entries.engine import Engine
from torchjanus.runtime.entries.path_tree import BranchPoint, PathTree


def signed(sign: float, at: int = 0) -> torch.Tensor:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(at)).abs()
    return x * sign


def taught(step: Callable[..., Any], **options: Any) -> Speculated[..., Any]:
    """The step with both of its ways learned."""
    options.setdefault("executor", "replay")
    fast = speculate(step, **options)
    for at, sign in enumerate((1, 1, 1, 1, -1, -1)):
        fast(signed(sign, at))
    return fast


def tree(fast: Speculated[..., Any]) -> PathTree:
    (route,) = fast._learning.routes
    assert isinstance(route, PathTree)
    return route


def targets(lowered: Any) -> list[str]:
    return [str(node.target) for node in lowered.graph.graph.nodes if node.op == "call_function"]


def test_what_both_ways_do_is_done_before_the_decision() -> None:
    w = torch.randn(4, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        h = (x @ w).tanh()
        y = h.exp() if x.sum() > 0 else h.sin()
        return y.sum()

    fast = taught(step)
    made = tree(fast)
    assert isinstance(made.root, BranchPoint)
    shared = targets(made.root.engine.lowered)
    assert {"aten.mm.default", "aten.tanh.default", "aten.gt.Scalar"} <= set(shared)
    rests = [targets(entry.lowered) for entry in made.entries]
    assert sorted(map(sorted, rests)) == [
        sorted(["aten.exp.default", "aten.sum.default"]),
        sorted(["aten.sin.default", "aten.sum.default"]),
    ]
    for at in range(8):
        x = signed(-1 if at % 3 else 1, at)
        assert torch.equal(fast(x), step(x))
    assert fast.statistics().violated == 2


def test_views_are_made_again_rather_than_carried() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        v = x[1:].t()
        return v * 2 if x.sum() > 0 else v[:2] + 1

    made = tree(taught(step))
    assert all(entry.live == () for entry in made.entries)


def test_what_is_drawn_before_the_decision_is_drawn_once() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x, 0.5)
        if x.sum() > 0:
            y = y + torch.rand(4)
        return F.dropout(y, 0.3)

    fast = taught(step)
    tree(fast)
    for at in range(10):
        x = signed(-1 if at % 3 else 1, at)
        torch.manual_seed(at)
        expected, after = step(x), torch.rand(1)
        torch.manual_seed(at)
        assert torch.equal(fast(x), expected)
        assert torch.equal(torch.rand(1), after)


def test_a_guard_that_fails_in_an_arm_takes_the_draws_back() -> None:
    scale = {"up": 2.0, "down": [1]}

    def step(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x, 0.5)
        return y * scale["up"] if x.sum() > 0 else y[: len(scale["down"])]  # type: ignore[arg-type]

    fast = taught(step)
    tree(fast)
    scale["down"] = [1, 2]
    for at in range(4):
        torch.manual_seed(at)
        expected = step(signed(-1, at))
        torch.manual_seed(at)
        assert torch.equal(fast(signed(-1, at)), expected)
    missed = fast.statistics().missed
    assert missed >= 1
    torch.manual_seed(9)
    expected = step(signed(1))
    torch.manual_seed(9)
    assert torch.equal(fast(signed(1)), expected)
    assert fast.statistics().missed == missed


def test_a_third_way_joins_the_tree() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        if x[0, 0] < -100:
            return x * 2
        return x - 1

    fast = taught(step)
    far = signed(-1).clone()
    far[0, 0] = -1000
    for _ in range(3):
        assert torch.equal(fast(far), far * 2)
    assert len(tree(fast).entries) == 3
    counts = fast.statistics()
    for x in (far, signed(1), signed(-1)):
        assert torch.equal(fast(x), step(x))
    assert fast.statistics().speculated == counts.speculated + 3


def test_an_error_in_the_shared_part_is_eagers() -> None:
    table = torch.randn(3, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        row = table[(x[:1, 0].abs() > 1e6).long() * 7]
        return x + row if x.sum() > 0 else x - row

    fast = taught(step)
    tree(fast)
    bad = signed(1).clone()
    bad[0, 0] = 1e7
    with pytest.raises(IndexError):
        fast(bad)
    assert torch.equal(fast(signed(1)), step(signed(1)))


def test_a_number_that_changes_later_is_relaxed_in_all_arms() -> None:
    state = {"lr": 0.5}

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * state["lr"] if x.sum() > 0 else x + state["lr"]

    fast = taught(step)
    for at in range(12):
        state["lr"] = 0.1 * at
        x = signed(-1 if at % 2 else 1, at)
        assert torch.equal(fast(x), step(x))
    counts = fast.statistics()
    assert (counts.watched, counts.compiles) == (5, 4)
    assert len(tree(fast).entries) == 2


def test_an_extern_call_that_only_one_way_waits_for_keeps_the_graphs_apart() -> None:
    source = iter(range(100))
    taken: list[int] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            taken.append(next(source))
            return x * taken[-1]
        return x * 3

    fast = taught(step)
    assert not any(isinstance(route, PathTree) for route in fast._learning.routes)
    for at in range(6):
        count = len(taken)
        x = signed(-1 if at % 2 else 1, at)
        result = fast(x)
        assert len(taken) == count + (at % 2 == 0)
        assert torch.equal(result, x * (taken[-1] if at % 2 == 0 else 3))
    assert taken == list(range(len(taken)))


def test_shadow_checks_follow_the_decision() -> None:
    total = torch.zeros(4)

    def step(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            total.add_(x.mean(0))
        return total * 2

    fast = taught(step, verify=2)
    for at in range(20):
        fast(signed(-1 if at % 3 else 1, at))
    counts = fast.statistics()
    assert counts.verified > 5
    assert "differs from eager" not in str(torchjanus.explain(fast, detail=True))


def test_profile_and_report() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x.exp()
        return x.sin()

    fast = taught(step)
    profile = fast.profile(signed(1))
    assert profile is not None and profile.run > 0
    report = str(torchjanus.explain(fast, detail=True))
    line = step.__code__.co_firstlineno + 1
    assert f"test_path_tree.py:{line}  is True  (if x.sum() > 0:)" in report
    assert f"test_path_tree.py:{line}  is False" in report
    assert "a tensor decides between 2 paths" in report


def test_parts_run_by_inductor_agree() -> None:
    torch.manual_seed(0)
    weight, other = torch.randn(4, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight, other], lr=0.1, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        h = (x @ weight).tanh()
        loss = (h * other).sum() if x.sum() > 0 else h.pow(2).sum()
        loss.backward()
        if weight.grad.norm() > 1e-6:  # type: ignore[union-attr]
            optimizer.step()
        return loss.detach()

    start = [weight.detach().clone(), other.detach().clone()]
    expected = [step(signed(-1 if at % 3 else 1, at)) for at in range(60)]
    with torch.no_grad():
        for tensor, content in zip((weight, other), start, strict=True):
            tensor.copy_(content)
            tensor.grad = None
    optimizer.state.clear()
    fast = speculate(step, executor="inductor")
    for at in range(60):
        torch.testing.assert_close(fast(signed(-1 if at % 3 else 1, at)), expected[at])
    made = tree(fast)
    assert made.root.engine.current == "inductor"
    assert {entry.engine.current for entry in made.entries} == {"inductor"}, [e.engine.notes for e in made.entries]


def test_a_call_orders_one_part_from_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    ordered: list[int] = []
    calls = 0

    def order(engine: Engine) -> None:
        ordered.append(calls)

    def step(x: torch.Tensor) -> torch.Tensor:
        h = x.exp()
        if h.sum() > 40:
            return h.sum() if h.max() > 10 else h.mean()
        return h.log()

    fast = speculate(step, executor="inductor")
    for calls in range(12):
        fast(torch.full((8,), float(calls % 4)))
    parts = len(tree(fast).engines)
    monkeypatch.setattr(Engine, "compile", order)
    for calls in range(12, 80):
        fast(torch.full((8,), float(calls % 4)))
    assert parts == len(ordered) == len(set(ordered)) and parts >= 4, ordered

"""Functions of the program that libraries call, and such as a step makes anew in each call: they are parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchjanus
from tests.runtime.test_parts import batches, both, served


def refused() -> int:
    """What makes each step that calls it Python's."""
    return len(locals())


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_the_closure_of_a_line_search_is_a_part(search: str | None) -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, line_search_fn=search)

        def step(x: torch.Tensor) -> tuple[float, int]:
            asked = 0

            def closure() -> torch.Tensor:
                nonlocal asked
                asked += 1
                opt.zero_grad()
                loss = net(x).sub(1.0).pow(2).mean()
                loss.backward()
                return loss

            return opt.step(closure).item(), asked

        return step, net

    fast = both(make, batches(16))
    counts = fast.statistics()
    assert counts.watched == 1 and counts.partly >= 10
    assert fast.refusals[0].reason == "closure-search"
    assert served(fast)["closure"] >= 25


def test_a_method_that_scipy_calls_is_a_part() -> None:
    optimize, np = pytest.importorskip("scipy.optimize"), pytest.importorskip("numpy")

    class Fit:
        def __init__(self) -> None:
            self.net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
            self.asked = 0

        def cost(self, scale: Any, x: torch.Tensor) -> float:
            with torch.no_grad():
                out = self.net(x * float(scale)).tanh().pow(2).sum() + torch.tensor(float(scale)).cos()
            self.asked += 1
            return out.item()

        def step(self, x: torch.Tensor) -> tuple[float, int]:
            found = optimize.minimize_scalar(self.cost, bounds=(-1, 2), args=(x,), method="bounded")
            with torch.no_grad():
                for p in self.net.parameters():
                    p.mul_(float(np.clip(found.x, 0.9, 1.1)))
            return float(found.fun), self.asked

    def make() -> tuple[Callable[..., Any], Any]:
        fit = Fit()
        return fit.step, fit.net

    fast = both(make, batches(16))
    assert served(fast)["cost"] >= 40


def test_what_a_library_is_given_looks_like_the_function() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    np = pytest.importorskip("numpy")
    seen: list[Any] = []

    def make() -> tuple[Callable[..., Any], Any]:
        weight = torch.ones(3, dtype=torch.float64)

        def step(x: torch.Tensor) -> float:
            def model(at: Any, height: float, slope: float) -> Any:
                "A line."
                with torch.no_grad():
                    line = torch.from_numpy(np.asarray(at)) * slope + height
                    return (line * weight.sum() / 3.0).numpy()

            seen.append((model.__name__, model.__doc__, str(inspect.signature(model))))
            # curve_fit() asks for the signature: there are as many parameters as it names.
            found, _ = optimize.curve_fit(model, np.arange(8.0), np.arange(8.0) * x[0, 0].item())
            return float(found[1])

        return step, weight

    both(make, batches(10))
    assert len(set(seen)) == 1


def test_an_error_of_what_a_library_calls_is_the_programs() -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Linear(4, 1)
        opt = torch.optim.LBFGS(net.parameters(), max_iter=2)

        def step(x: torch.Tensor, fails: bool) -> str:
            def closure() -> torch.Tensor:
                opt.zero_grad()
                if fails:
                    raise KeyError("no such batch")
                loss = net(x).pow(2).mean()
                loss.backward()
                return loss

            try:
                opt.step(closure)
            except KeyError as error:
                return str(error)
            return "done"

        return step, net

    both(make, [(x, number == 11) for number, (x,) in enumerate(batches(16))])


def test_a_function_that_a_refused_step_makes_and_calls_is_a_part() -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

        def step(x: torch.Tensor) -> tuple[float, float]:
            refused()

            def cost(scale: float) -> float:
                with torch.no_grad():
                    return net(x * scale).tanh().pow(2).sum().item() + (scale - 1.0) ** 2

            low, high = 0.0, 2.0
            while high - low > 0.05:
                left, right = high - 0.618 * (high - low), low + 0.618 * (high - low)
                if cost(left) < cost(right):
                    high = right
                else:
                    low = left
                refused()
            return low, high

        return step, net

    fast = both(make, batches(16))
    assert served(fast)["cost"] >= 40


def test_a_function_that_is_compared_is_itself() -> None:
    kept: list[Any] = []

    def remember(fn: Any) -> Any:
        kept.append(fn)
        return fn

    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Linear(4, 1)

        def step(x: torch.Tensor) -> bool:
            def cost() -> torch.Tensor:
                return net(x).pow(2).mean().detach()

            refused()
            return remember(cost) is cost and kept[-1] is cost and bool(cost() >= 0)

        return step, net

    both(make, batches(10))


def test_gradients_of_a_library_go_through_what_it_calls() -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        opt = torch.optim.SGD(net.parameters(), lr=0.05)

        def step(x: torch.Tensor) -> tuple[float, float]:
            refused()
            jacobian = torch.autograd.functional.jacobian(lambda v: net(v).tanh().sin().cos(), x, create_graph=True)
            refused()
            hessian = torch.autograd.functional.hessian(lambda v: net(v).tanh().sin().sum(), x[0])
            opt.zero_grad()
            loss = jacobian.pow(2).sum()
            loss.backward()
            opt.step()
            return loss.item(), hessian.sum().item()

        return step, net

    fast = both(make, batches(16))
    assert torchjanus.explain(fast).parts

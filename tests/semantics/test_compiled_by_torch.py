"""Steps that call what torch.compile has made, or that it is given: eager's results, and Dynamo does not
look into functions of this package."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torchjanus

CALLS = 9
Made = tuple[Callable[..., Any], Callable[[], Any]]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore"):  # torch.compile's own
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


def _net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def _training(net: torch.nn.Module, model: Callable[..., Any]) -> Made:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, lambda: [p.detach().clone() for p in net.parameters()]


def model(backend: Any) -> Made:
    net = _net()
    return _training(net, torch.compile(net, backend=backend))


def module_in_place(backend: Any) -> Made:
    net = _net()
    net.compile(backend=backend)
    return _training(net, net)


def function(backend: Any) -> Made:
    net = _net()

    @torch.compile(backend=backend)
    def forward(x: torch.Tensor) -> torch.Tensor:
        return net(x) * 2  # type: ignore[no-any-return]

    return _training(net, forward)


def functions_within_each_other(backend: Any) -> Made:
    net = _net()
    inner = torch.compile(lambda x: net(x) * 2, backend=backend)
    outer = torch.compile(lambda x: inner(x) + 1, backend=backend)
    return _training(net, lambda x: outer(x) + inner(x))


def function_with_effects(backend: Any) -> Made:
    n = [0]

    @torch.compile(backend=backend)
    def count(x: torch.Tensor) -> torch.Tensor:
        n[0] += 1
        return x * n[0]

    return lambda x: count(x) * n[0], lambda: n[0]


def update(backend: Any) -> Made:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    act = torch.compile(optimizer.step, backend=backend)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(x).square().mean()
        loss.backward()
        act()
        return loss.detach()

    return step, lambda: [p.detach().clone() for p in net.parameters()]


def compiled_in_the_step(backend: Any) -> Made:
    net = _net()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return torch.compile(net, backend=backend)(y).detach()  # type: ignore[no-any-return]

    return step, lambda: 0


def branch_of_an_operator(backend: Any) -> Made:
    w = torch.ones(4, requires_grad=True)

    def step(x: torch.Tensor) -> Any:
        w.grad = None
        y = x * w
        torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (y,)).sum().backward()
        return w.grad

    return step, lambda: 0


STEPS = (model, module_in_place, function, functions_within_each_other, function_with_effects, update)


def compare(make: Callable[[Any], Made], backend: Any, around: Callable[[Any], Any] = lambda fast: fast) -> Any:
    """Run a step eagerly and speculated; the speculated function."""
    sides = []
    log = logging.getLogger("torch._dynamo")
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        for variant in ("eager", "speculated"):
            torch._dynamo.reset()
            step, state = make(backend)
            fast = step if variant == "eager" else torchjanus.speculate(step, executor="replay")
            call, generator = around(fast), torch.Generator().manual_seed(1)
            results = [call(torch.randn(3, 4, generator=generator)) for _ in range(CALLS)]
            sides.append((results, state()))
    finally:
        log.removeHandler(handler)
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, sides), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other)), make
    assert not any("torchjanus" in text for text in seen), seen
    return fast


@pytest.mark.parametrize("make", [model, function_with_effects])
def test_what_is_compiled_is_part_of_the_graph(make: Callable[[Any], Made]) -> None:
    assert compare(make, "eager").statistics().speculated == CALLS - 3


@pytest.mark.slow
@pytest.mark.parametrize("make", STEPS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_whatever_is_compiled_is_part_of_the_graph(make: Callable[[Any], Made], backend: str) -> None:
    assert compare(make, backend).statistics().speculated == CALLS - 3


@pytest.mark.slow
@pytest.mark.parametrize("make", [compiled_in_the_step, branch_of_an_operator])
def test_what_compiles_in_the_step_is_refused(make: Callable[[Any], Made]) -> None:
    fast = compare(make, "eager")
    assert "calls torch.co" in str(torchjanus.explain(fast, detail=True))


def test_a_compiler_of_the_programs_own_is_asked_as_it_would_be() -> None:
    asked = []

    def own(graph: Any, examples: Any) -> Any:
        asked.append(1)
        return graph

    fast = compare(function_with_effects, own)
    assert asked and not fast.statistics().speculated


def test_a_step_that_is_compiled() -> None:
    def make(backend: Any) -> Made:
        net = _net()
        return lambda x: net(x).sum().detach(), lambda: 0

    fast = compare(make, "eager", lambda fast: torch.compile(fast, backend="eager"))
    assert fast.statistics().speculated == CALLS - 3


@pytest.mark.slow
def test_a_step_that_a_compiled_function_calls() -> None:
    def make(backend: Any) -> Made:
        net = _net()
        return lambda x: net(x).sum().detach(), lambda: 0

    fast = compare(make, "eager", lambda fast: torch.compile(lambda x: fast(x * 2) + 1, backend="eager"))
    assert fast.statistics().speculated == CALLS - 3

"""Modes and settings of torch that a program enters or changes: between calls, around them, and in the middle, when
operations that came before are still to be made. Everything is eager's, and warnings name the program's line."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import torchjanus
from tests.runtime.coexecution.programs import Made, Twins

CALLS = 24
LATE = 18  # the first call that does something else
Body = Callable[[torch.Tensor, bool, list[Any]], Any]


def coexecuted(step: Any) -> Any:
    return torchjanus.speculate(step, executor="coexecute")


def run(body: Body, *, varies: bool, around: Callable[[int], Any] = contextlib.nullcontext) -> Any:
    """Run a step whose late calls do something else. ``varies``: each call takes another path, so that operators are
    merged. Returns the co-executed step."""

    def make() -> Made:
        number = [0]
        seen: list[Any] = []

        def step(x: torch.Tensor) -> Any:
            number[0] += 1
            return body(x, number[0] > LATE, seen)

        calls = [(torch.randn(2 + i * 7 % 11 if varies else 3, 4),) for i in range(CALLS)]
        return Made(step, calls, [number, seen])

    twins = Twins(make, coexecuted)
    for number in range(CALLS):
        with around(number):
            twins.call(number)
    step = twins.steps[1]
    assert [event.text for event in step.events if event.kind == "fault"] == []
    return step


class Names(TorchDispatchMode):
    """Notes the operations that it sees."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def inference(x: torch.Tensor, late: bool, seen: list[Any]) -> Any:
    drawn = torch.rand(3)
    h = x * 2
    with torch.inference_mode() if late else contextlib.nullcontext():
        y = h + 1
    seen[:] = [h.is_inference(), drawn.is_inference(), y.is_inference()]
    return drawn, h, y.clone()


def autocast(x: torch.Tensor, late: bool, seen: list[Any]) -> Any:
    h = x @ x.T
    with torch.autocast("cpu", torch.bfloat16) if late else contextlib.nullcontext():
        y = h @ x
    return h, y


def dispatch_mode(x: torch.Tensor, late: bool, seen: list[Any]) -> Any:
    h = x * 2
    seen.clear()
    with Names(seen) if late else contextlib.nullcontext():
        y = x.exp() + h
    return h, y


def transform(x: torch.Tensor, late: bool, seen: list[Any]) -> Any:
    h = x * 2
    if late:
        return h, torch.func.vmap(lambda row: row * h[0])(x)
    return h, x * h[0]


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("body", [inference, autocast, dispatch_mode, transform])
def test_operations_before_a_mode_are_made_outside_of_it(body: Body, varies: bool) -> None:
    step = run(body, varies=varies)
    assert step.coexecution.served + step.coexecution.transitions > 0


def kernels(x: torch.Tensor, late: bool, seen: list[Any]) -> Any:
    big = x.mean() + torch.linspace(0, 1, 2048).reshape(1, 2, 64, 16).sin()
    with sdpa_kernel(SDPBackend.MATH) if late else contextlib.nullcontext():
        return F.scaled_dot_product_attention(big, big * 2, big)


def denormals(x: torch.Tensor, late: bool, seen: list[Any]) -> Any:
    tiny = torch.full((3,), 1e-39)
    torch.set_flush_denormal(late)
    first = tiny * 0.5
    torch.set_flush_denormal(False)
    return first, tiny * 0.25 + x.mean()


def uninitialised(x: torch.Tensor, late: bool, seen: list[Any]) -> Any:
    torch.use_deterministic_algorithms(late)
    made = torch.empty(2, 2)
    torch.use_deterministic_algorithms(False)
    return made.isnan().all() | torch.tensor(not late), x * 2


def dtypes(x: torch.Tensor, late: bool, seen: list[Any]) -> Any:
    torch.set_default_dtype(torch.float64 if late else torch.float32)
    made = torch.ones(3)
    torch.set_default_dtype(torch.float32)
    return made, torch.zeros(2), x * 2


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("body", [kernels, denormals, uninitialised, dtypes])
def test_a_setting_in_the_middle_of_a_step(body: Body, varies: bool) -> None:
    step = run(body, varies=varies)
    assert {refusal.reason for refusal in step.refusals} == {"coexecution-modes"}


@contextlib.contextmanager
def _other_settings(number: int) -> Iterator[None]:
    if number % 8 < 5:
        yield
        return
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("varies", [False, True])
def test_settings_between_calls(varies: bool) -> None:
    def body(x: torch.Tensor, late: bool, seen: list[Any]) -> Any:
        big = torch.linspace(0, 1, 2048, dtype=torch.float32).reshape(1, 2, 64, 16).sin()
        made = torch.empty(2)
        nothing = made.isnan() if torch.are_deterministic_algorithms_enabled() else made.fill_(1)
        return F.scaled_dot_product_attention(big, big, big), nothing, torch.zeros(2), x * 2

    step = run(body, varies=varies, around=_other_settings)
    assert step.coexecution.served >= 10


@pytest.mark.parametrize("varies", [False, True])
def test_warnings_name_the_line_of_the_program(varies: bool) -> None:
    def body(x: torch.Tensor, late: bool, seen: list[Any]) -> Any:
        h = x * 2
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            y = F.mse_loss(h, h[:1])
            z = torch.std(x[0, :1])
        seen[:] = [(str(one.message), one.lineno) for one in shown if one.filename == __file__]
        assert len(seen) == 2
        return y, z

    run(body, varies=varies)


def test_what_a_step_has_trained_on_shows_its_node() -> None:
    w = torch.ones(4, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        w.grad = None
        loss = (x * w).mean()
        loss.backward()
        return loss

    made = coexecuted(step)
    for _ in range(6):
        loss = made(torch.randn(3, 4))
        assert type(loss.grad_fn).__name__ == "MeanBackward0"
        assert "grad_fn=<MeanBackward0>" in repr(loss)
    assert made.coexecution.served > 0

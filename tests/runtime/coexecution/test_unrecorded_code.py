"""What a served call does for the first time, and what torch's calls do not show: classes, generators, arrays, threads,
hooks. Each is eager's, whether it comes before or after other calls of torch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import torchjanus
from tests.runtime.coexecution.programs import Made, Twins
from torchjanus.runtime.coexecution.recording.unrecorded_code import is_exposed

CALLS = 14
AT = (6, 9, 10)  # the calls that do something else


def coexecuted(step: Any) -> Any:
    return torchjanus.speculate(step, executor="coexecute")


def is_exactly_a_tensor(x: Any) -> bool:
    return type(x) is torch.Tensor


def state_of_the_generator() -> int:
    return int(torch.get_rng_state().sum())


def run(body: Callable[[torch.Tensor, bool, list[Any]], Any]) -> Any:
    """Run a step whose calls ``AT`` do something else. Returns the co-executed step."""

    def make() -> Made:
        number = [0]
        seen: list[Any] = []

        def step(x: torch.Tensor) -> Any:
            number[0] += 1
            return body(x, number[0] in AT, seen)

        return Made(step, [(torch.randn(3, 4),) for _ in range(CALLS)], [number, seen])

    twins = Twins(make, coexecuted)
    twins.run()
    step = twins.steps[1]
    assert [event.text for event in step.events if event.kind == "fault"] == []
    assert step.coexecution.served >= 6, torchjanus.explain(step).detailed()
    return step


def test_a_class_that_is_asked_for_by_code_not_seen_before() -> None:
    def body(x: torch.Tensor, other: bool, seen: list[Any]) -> torch.Tensor:
        h = x * 2
        if other:
            seen.append(is_exactly_a_tensor(h))
        return h.sum()

    step = run(body)
    assert step.coexecution.transitions == len(AT)
    assert [refusal.reason for refusal in step.refusals] == ["coexecution-type"]


def test_a_placeholder_says_that_its_class_is_tensor() -> None:
    def body(x: torch.Tensor, other: bool, seen: list[Any]) -> torch.Tensor:
        h = x * 2
        seen.append((h.__class__ is torch.Tensor, h.__class__.__name__, isinstance(h, torch.nn.Parameter)))
        return h.sum()

    assert run(body).coexecution.transitions == 0


def test_a_generator_whose_state_is_read_for_the_first_time() -> None:
    def body(x: torch.Tensor, other: bool, seen: list[Any]) -> torch.Tensor:
        h = x * torch.rand(4)
        if other:
            seen.append(state_of_the_generator())
        return h.sum()

    step = run(body)
    assert step.coexecution.transitions == len(AT)
    assert [refusal.reason for refusal in step.refusals] == ["coexecution-generator"]


def test_an_array_that_is_held_when_a_call_diverges_shares_memory() -> None:
    def body(x: torch.Tensor, other: bool, seen: list[Any]) -> Any:
        h = x * 2
        array = h.numpy()
        total = float(array.sum())
        if other:
            turned = h.t()
            h.mul_(3)
            seen.append((array.copy(), turned.clone()))
            array += 1
            seen.append((h.clone(), turned.clone()))
        return total, h.sum()

    assert run(body).coexecution.transitions >= 1


def test_arrays_of_parts_of_a_tensor_that_are_held_when_a_call_diverges_share_memory() -> None:
    def body(x: torch.Tensor, other: bool, seen: list[Any]) -> Any:
        h = x * 2
        first, last = h[:, 1].numpy(), h[-1].numpy()
        total = float(first.sum() + last.sum())
        if other:
            first += 1
            h.mul_(3)
            seen.append((first.copy(), last.copy(), h.clone()))
            last *= 0.5
            seen.append((first.copy(), h.clone()))
        return total, h.sum()

    assert run(body).coexecution.transitions >= 1


def test_an_array_that_is_written_to_for_the_first_time() -> None:
    def body(x: torch.Tensor, other: bool, seen: list[Any]) -> Any:
        h = x * 2
        array = h.numpy()
        if other:
            array *= 0.5
        return h.sum(), h.mean()

    assert run(body).coexecution.transitions == len(AT)


def test_what_autograd_has_saved_is_written_with_an_array() -> None:
    w = torch.ones(4, requires_grad=True)

    def body(x: torch.Tensor, other: bool, seen: list[Any]) -> Any:
        w.grad = None
        h = (x * w).tanh()  # its backward pass takes its result
        array = h.detach().numpy()
        if other:
            g = h * 2  # not on the path
            array[:] = 0.5
            g.sum().backward()
        else:
            h.sum().backward()
        return w.grad

    run(body)


def test_an_array_that_lives_on_for_the_first_time() -> None:
    def body(x: torch.Tensor, other: bool, seen: list[Any]) -> Any:
        h = x * 2
        array = h.numpy()
        if other:
            seen[:] = [array, h]
        elif seen:
            seen[0][0] += 1.0  # the tensor that was returned before changes with it
        return h

    assert run(body).coexecution.transitions >= 1


def test_arrays_of_inputs_share_memory_with_them() -> None:
    def body(x: torch.Tensor, other: bool, seen: list[Any]) -> Any:
        array = x.detach().numpy()
        h = x * 2
        if other:
            seen[:] = [array, np.shares_memory(array, x.numpy())]
            return h.sum() + 1
        return h.sum()

    run(body)


def test_hooks_for_saved_tensors_that_are_set_for_the_first_time() -> None:
    w = torch.ones(4, requires_grad=True)

    def body(x: torch.Tensor, other: bool, seen: list[Any]) -> Any:
        w.grad = None

        def pack(saved: torch.Tensor) -> torch.Tensor:
            seen.append(tuple(saved.shape))
            return saved

        if other:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
                h = (x * w).exp()
        else:
            h = (x * w).exp()
        h.sum().backward()
        return w.grad

    run(body)


@pytest.mark.parametrize("times", [8, pytest.param(5000, marks=pytest.mark.slow)])
def test_two_threads_that_touch_placeholders_at_once(times: int) -> None:
    """Each of two threads touches one placeholder or more in each call, while the step goes on."""
    w = torch.randn(4, requires_grad=True)
    plain = w.detach().clone()
    ready, done = threading.Barrier(3), threading.Barrier(3)
    parts: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    wrong: list[Any] = []
    touching = [False]
    over = threading.Event()

    def touch(which: int) -> None:
        while True:
            ready.wait()
            if over.is_set():
                return
            for k in (which, 1 - which, 2):
                try:
                    part, right = parts[k], expected[k]
                    if which and not torch.equal(part.detach(), right):
                        wrong.append((k, part, right))
                    elif not which and (part.sum().item() != right.sum().item() or part.numpy(force=True).ndim != 2):
                        wrong.append((k, part, right))
                except Exception as error:
                    wrong.append(error)
            done.wait()

    def step(x: torch.Tensor) -> torch.Tensor:
        w.grad = None
        made = [x * w, (x * w).sin(), (x + w).cos()]
        if touching[0]:
            parts[:] = made
            ready.wait()
        loss = torch.stack([part.sum() for part in made]).sum()
        loss.backward()
        if touching[0]:
            done.wait()
            parts.clear()
        return loss.detach()

    threads = [threading.Thread(target=touch, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    speculated = coexecuted(step)
    try:
        for _ in range(4):
            speculated(torch.randn(6, 4))
        before = speculated.coexecution.transitions
        for _ in range(times):
            x = torch.randn(6, 4)
            expected[:] = [x * plain, (x * plain).sin(), (x + plain).cos()]
            touching[0] = True
            loss = speculated(x)
            gradient = w.grad.clone()  # type: ignore[union-attr]
            touching[0] = False
            assert torch.equal(loss, step(x))
            assert torch.equal(gradient, w.grad)  # type: ignore[arg-type]
            assert torch.equal(loss, speculated(x))  # served
    finally:
        over.set()
        ready.wait()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert sys.getprofile() is None
    assert speculated.coexecution.transitions - before >= times / 2


def test_torch_s_own_modules_without_a_file_are_not_watched() -> None:
    assert not getattr(torch._VF, "__file__", "")
    assert not is_exposed(["torch._VF", "torch.nn.functional"])


class Tripled(torch.autograd.Function):
    """Passes on three times the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


@pytest.mark.parametrize("merges", [False, True])
def test_a_function_of_autograd_that_is_called_for_the_first_time(merges: bool) -> None:
    def make() -> Made:
        net, count = torch.nn.Linear(3, 3), [0]

        def step(x: torch.Tensor) -> torch.Tensor:
            count[0] += 1
            for _ in range(count[0] if merges else 1):
                x = x + 1
            h = net(x)
            if count[0] > 25:
                h = Tripled.apply(h)
            net.zero_grad()
            h.square().sum().backward()
            return h.sum()

        return Made(step, [(torch.randn(4, 3),) for _ in range(30)], [net, count])

    twins = Twins(make, lambda step: torchjanus.speculate(step, executor="coexecute"))
    twins.run()
    report = twins.steps[1].coexecution
    assert report.served > 10
    assert (report.merged > 10) is merges
    assert "coexecution-callback" in [refusal.reason for refusal in twins.steps[1].refusals]

"""What a watched run has replaced is not kept in memory by its trace, and the graph is the same."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torchjanus
from torchjanus.runtime.runs import paths
from torchjanus.semantics.containers.releasing import SMALL, release
from torchjanus.trace.blanks import blank, is_blank

SIDE = 128  # a square of it is more than SMALL bytes


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(SIDE, SIDE)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.state = torch.zeros(SIDE, SIDE)
        self.other = torch.ones(SIDE, SIDE)

    def gradients(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.net(x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def accumulated(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.net(x).pow(2).mean()
        loss.backward()
        gradient = self.net.weight.grad
        assert gradient is not None
        if gradient.norm() > 1e9:
            return loss.detach()
        self.net.weight.grad = gradient * 0.5
        return loss.detach()

    def swapped(self, x: torch.Tensor) -> torch.Tensor:
        self.state, self.other = self.other, self.state
        self.state.add_(x)
        return (self.state - self.other).sum()

    def tensors(self) -> dict[str, torch.Tensor | None]:
        return {"grad": self.net.weight.grad, "state": self.state}


def test_a_blank_is_like_the_tensor_and_takes_no_memory() -> None:
    tensor = torch.ones(3, 4).t().requires_grad_()
    made = blank(tensor.detach().requires_grad_())
    assert is_blank(made) and not is_blank(tensor) and not is_blank(torch.empty(0))
    assert (made.size(), made.stride(), made.dtype, made.requires_grad) == ((4, 3), (1, 4), torch.float32, True)
    assert made.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("executor", ["replay", "auto"])
@pytest.mark.parametrize("name", ["gradients", "accumulated", "swapped"])
def test_what_is_replaced_is_let_go(name: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchjanus.runtime.entries.engine.order_of", None)  # replay only
    eager, ours = Training(), Training()
    expected: Callable[..., Any] = getattr(eager, name)
    step: Any = torchjanus.speculate(getattr(ours, name), executor=executor)
    assert SIDE * SIDE * 4 >= SMALL
    known: list[weakref.ref[torch.Tensor]] = []
    for _ in range(8):
        known += [weakref.ref(tensor) for tensor in ours.tensors().values() if tensor is not None]
        x = torch.randn(SIDE, SIDE)
        assert torch.equal(step(x), expected(x))
        for one, other in zip(eager.tensors().values(), ours.tensors().values(), strict=True):
            assert (one is None) == (other is None)
            assert one is None or other is None or torch.equal(one, other)
        step.wait()
    assert step.statistics().speculated >= 4
    gc.collect()
    held = {id(tensor) for tensor in (*ours.tensors().values(), ours.other) if tensor is not None}
    assert {id(tensor) for one in known if (tensor := one()) is not None} <= held


class Keeping(nn.Linear):
    """Stores what it computes on itself, and is evaluated by the function that trains it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = super().forward(x).relu()
        return self.seen


@pytest.mark.parametrize("name", ["weight.grad", "seen"])
def test_nothing_of_earlier_calls_waits_for_the_collector(name: str) -> None:
    """Old gradients that an evaluation found in their place, and activations that the step stored."""

    def made() -> tuple[Keeping, Callable[[torch.Tensor, bool], torch.Tensor]]:
        torch.manual_seed(0)
        model = Keeping(SIDE, SIDE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, training: bool) -> torch.Tensor:
            if not training:
                with torch.no_grad():
                    return model(x).mean()
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, step

    def read(model: Keeping) -> torch.Tensor | None:
        found: torch.Tensor | None = model.weight.grad if name == "weight.grad" else model.seen
        return found

    model, step = made()
    twin, eager = made()
    speculated = torchjanus.speculate(step, executor="replay")
    known: list[weakref.ref[torch.Tensor]] = []
    gc.collect()
    gc.disable()
    try:
        for number in range(14):
            x, training = torch.randn(SIDE, SIDE), number % 4 != 3
            assert torch.equal(speculated(x, training), eager(x, training))
            assert torch.equal(model.weight, twin.weight)
            if (tensor := read(model)) is not None:
                known.append(weakref.ref(tensor))
        last = read(model)
        alive = {id(tensor) for one in known if (tensor := one()) is not None}
    finally:
        gc.enable()
    assert speculated.statistics().speculated >= 6
    assert alive == {id(last)}


class State:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(SIDE, SIDE)
        self.last = torch.zeros(SIDE, SIDE)
        self.kept: list[torch.Tensor] = []
        self.table: dict[str, torch.Tensor] = {}


def asks_for_what_is_missing(state: State, x: torch.Tensor) -> torch.Tensor:
    state.last = state.net(x).relu()
    return state.last.sum() if hasattr(state.last, "scale") else state.last.mean() * getattr(state, "factor", 2.0)


def catches_errors(state: State, x: torch.Tensor) -> torch.Tensor:
    try:
        found = state.table["one"]
    except KeyError:
        found = x + 1
    try:
        found = found + state.kept[0]
    except IndexError:
        found = found * 2
    try:
        found = found @ torch.ones(SIDE + 1)
    except RuntimeError:
        found = found.relu()
    state.last = found
    return found.sum()


def doubled(x: torch.Tensor) -> Iterator[torch.Tensor]:
    for number in range(3):
        yield x * number


def goes_through_generators(state: State, x: torch.Tensor) -> torch.Tensor:
    some = doubled(x)
    state.last = next(some) + next(some)
    return torch.stack([*doubled(state.last)]).sum() + sum(part.sum() for part in some)


def passed_on(x: torch.Tensor, depth: int) -> torch.Tensor:
    return x if depth == 0 else passed_on(torch.tanh(x), depth - 1)


def calls_itself(state: State, x: torch.Tensor) -> torch.Tensor:
    state.last = passed_on(x, 3)
    return state.last.sum()


def raises(state: State, x: torch.Tensor) -> torch.Tensor:
    state.last = state.net(x)
    with torch.no_grad():
        state.last[SIDE + 1] = 1.0
    return state.last


def raises_deep_within(state: State, x: torch.Tensor) -> torch.Tensor:
    state.kept = [x * 2 for _ in range(2)]
    return max((x + 1 for _ in range(2)), key=lambda one: one.nothing)


def gives_what_requires_gradients(state: State, x: torch.Tensor) -> torch.Tensor:
    return state.net(x)


def appends(state: State, x: torch.Tensor) -> torch.Tensor:
    state.kept.append(x * 2)
    if len(state.kept) > 2:
        del state.kept[0]
    state.table["one"] = state.kept[-1] + 1
    return state.table["one"].sum()


def hands_out(state: State, x: torch.Tensor) -> torch.Tensor:
    state.last = x * float(x.numpy().sum())
    return state.last


def differentiates(state: State, x: torch.Tensor) -> torch.Tensor:
    (state.last,) = torch.autograd.grad(state.net(x).square().sum(), state.net.weight)
    return state.last.norm()


KINDS: list[Callable[[State, torch.Tensor], torch.Tensor]] = [
    asks_for_what_is_missing, catches_errors, goes_through_generators, calls_itself, raises, raises_deep_within,
    gives_what_requires_gradients, appends, hands_out, differentiates,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_nothing_that_a_run_was_given_or_made_waits_for_the_collector(
    kind: Callable[[State, torch.Tensor], torch.Tensor],
) -> None:
    state, known = State(), list[weakref.ref[torch.Tensor]]()
    step = torchjanus.speculate(kind, executor="replay")
    gc.disable()
    gc.freeze()  # the collector below looks only at what is made here
    try:
        for _ in range(4):
            given = torch.randn(SIDE, SIDE)
            made = [given, state.last]
            with contextlib.suppress(IndexError, AttributeError):
                made.append(step(state, given))
            known += map(weakref.ref, [*made, state.last, *state.kept, *state.table.values()])
            del given, made
        alive = [number for number, one in enumerate(known) if one() is not None]
        gc.collect()
        assert alive == [number for number, one in enumerate(known) if one() is not None]
    finally:
        gc.enable()
    assert step.statistics().watched >= 2


def test_traces_without_large_tensors_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def look(trace: Any, *call: Any) -> bool:
        looked.append(id(trace))
        return release(trace, *call)

    monkeypatch.setattr(paths, "release", look)
    small = nn.Linear(2, 2)
    step = torchjanus.speculate(lambda x: small(x).detach().sum() * int(x.sum() > 0), executor="replay")
    for number in range(12):
        step(torch.ones(2, 2) * (1 - 2 * (number % 3 == 0)))
    traces = {id(t) for group in step._learning.paths._groups.values() for t in group.traces}
    assert traces and max(looked.count(one) for one in traces) == 1
    looked.clear()
    large = torchjanus.speculate(Training().gradients, executor="replay")
    for _ in range(4):
        large(torch.ones(SIDE, SIDE))
    kept = {id(t) for group in large._learning.paths._groups.values() for t in group.traces}
    assert all(looked.count(one) >= 1 for one in kept) and any(looked.count(one) > 1 for one in kept)

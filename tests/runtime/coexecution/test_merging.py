"""Steps of which no call takes the path of another one: their operators are merged, and deferred."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchjanus
from tests.runtime.coexecution.programs import Made, Twins
from torchjanus.core.errors import InternalFault
from torchjanus.runtime.coexecution.merging import merging
from torchjanus.runtime.coexecution.merging.operators import Operators

CALLS = 40


def merged(make: Callable[[], Made]) -> Any:
    """Run a program beside eager, and return its step: most calls were made of merged operators."""
    twins = Twins(make, lambda step: torchjanus.speculate(step, executor="coexecute"))
    twins.run()
    step = twins.steps[1]
    assert [event.text for event in step.events if event.kind == "fault"] == []
    assert step.coexecution.merged >= CALLS / 2, torchjanus.explain(step)
    return step


def changing(body: Callable[..., Any], *state: Any, width: int = 3) -> Callable[[], Made]:
    """A program that also computes something as long as nothing else, so that no two calls are one path."""

    def make() -> Made:
        net = nn.Linear(width, width)
        count = [0]

        def step(x: torch.Tensor) -> Any:
            count[0] += 1
            for _ in range(count[0]):
                x = x + 1
            return body(net, x, count[0])

        return Made(step, [(torch.randn(4, width),) for _ in range(CALLS)], [net, count, *state])

    return make


def boxes() -> Made:
    """YOLOv3: for each picture as many boxes as there are, or none; another number of pictures each time."""
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.LeakyReLU(0.1), nn.Dropout(0.2))
    head = nn.Conv2d(4, 5, 1)
    optimizer = torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=0.01)
    history: list[float] = []

    def overlap(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        low, high = torch.max(one[:, None, :2], other[:, :2]), torch.min(one[:, None, 2:], other[:, 2:])
        return (high - low).clamp(min=0).prod(-1).amax(-1)

    def step(pictures: torch.Tensor, truths: list[torch.Tensor]) -> float:
        raw = head(trunk(pictures)).flatten(2).transpose(1, 2)
        total = torch.zeros(())
        for number, truth in enumerate(truths):
            if len(truth):
                kept = truth[truth[:, 0] > 0.1]
                share = overlap(raw[number, :, :4].detach(), truth)
                total = total + (share * raw[number, :, 4].square()).mean() + len(kept)
            else:
                total = total + raw[number].abs().mean()
            history.append(total.item())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return total.item()

    numbers = random.Random(0)
    calls = []
    for _ in range(CALLS):
        count = numbers.randrange(1, 4)
        truths = [torch.rand(numbers.randrange(4), 4) for _ in range(count)]
        calls.append((torch.randn(count, 3, 4, 4), truths))
    return Made(step, calls, [trunk, head, optimizer, history])


def test_branches_and_loops_of_ever_other_lengths() -> None:
    report = merged(boxes).coexecution
    assert report.matched > 0.3
    assert any("waits for operators" in what and seconds > 0 for _, what, _, seconds in report.points)


def lengths() -> Made:
    """GPT-2: sentences of ever other lengths."""
    words, attention = nn.Embedding(20, 8), nn.Linear(8, 24)
    parameters = [*words.parameters(), *attention.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def step(ids: torch.Tensor) -> float:
        x = words(ids)
        q, k, v = attention(F.dropout(x, 0.1)).chunk(3, -1)
        later = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
        x = torch.softmax((q @ k.t()).masked_fill(later, -1e9) / 8**0.5, -1) @ v
        loss = F.cross_entropy(x @ words.weight.t(), ids.roll(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    numbers = random.Random(0)
    calls = [(torch.randint(20, (numbers.randrange(2, 22),)),) for _ in range(CALLS)]
    return Made(step, calls, [words, attention, optimizer])


def test_sizes_that_change() -> None:
    assert merged(lengths).coexecution.matched > 0.15


def in_lists(net: nn.Module, x: torch.Tensor, count: int) -> Any:
    parts = [x, x * 2]
    both = torch.stack(parts)
    parts[1] = x * 3  # after the call, and before it is made
    parts.append(both[0])
    return torch.cat(parts).sum(), both


def with_arrays(net: nn.Module, x: torch.Tensor, count: int) -> Any:
    array = np.full(3, float(count), np.float32)
    shared = torch.from_numpy(array)
    y = x * shared
    view = shared[1:]
    array += 1  # y has taken the earlier contents, the view sees the later ones
    taken = y.detach().numpy()
    z = y.detach() + view.sum()
    taken *= 2
    return y, z, view * 2, float(taken.sum())


def in_place(net: nn.Module, x: torch.Tensor, count: int) -> Any:
    total = torch.zeros(3)
    total.add_(x.sum(0).detach())
    before = total * 2
    alias = total[:2]
    total.mul_(3)
    h = net(x)
    h += total
    h[0] = 1
    return before, alias, total, h.sum()


def drawing(net: nn.Module, x: torch.Tensor, count: int) -> Any:
    first = F.dropout(net(x), 0.5)
    noise = torch.randn(3) * x.mean()
    order = torch.randperm(3)
    second = torch.rand_like(first)
    return first, noise, order, second, int(torch.randint(9, ()))


def gradients(net: nn.Module, x: torch.Tensor, count: int) -> Any:
    seen: list[torch.Tensor] = []
    h = net(x)
    h.register_hook(lambda gradient: seen.append(gradient * 2))
    with torch.no_grad():
        quiet = h * 2
    net.zero_grad()
    (h.tanh().sum() + h.mean()).backward(retain_graph=True)
    h.square().sum().backward()
    return quiet.requires_grad, h.is_leaf, h.grad_fn is None, seen, net.weight.grad.clone()


def raising(net: nn.Module, x: torch.Tensor, count: int) -> Any:
    caught = []
    h = net(x)
    for work in (
        lambda: F.embedding(torch.tensor([count % 3 * 2]), h),
        lambda: h @ x[: count % 5],
        lambda: h.sum().backward() or h.sum().backward(),
        lambda: torch.ones(2, dtype=torch.long).div(torch.tensor([0, 1]), rounding_mode="floor"),
        lambda: h.add_(1).sum() if count % 2 else net.weight.add_(1),
    ):
        try:
            caught.append(work())
        except Exception as error:
            caught.append(error.__class__)
    net.zero_grad()
    if count % 7 == 0:
        raise ValueError(str(h.shape))
    return caught[:2], len(caught)


def sized_by_contents(net: nn.Module, x: torch.Tensor, count: int) -> Any:
    h = net(x)
    end = (h > 0).sum()
    return torch.where(h > 0)[0], torch.arange(end), x.flatten()[: end - end + 1], h[:, : int(end) % 3], h[h > 0]


def shown(net: nn.Module, x: torch.Tensor, count: int) -> Any:
    h = net(x)
    return (
        repr(h),
        f"{h.mean().detach():.3f}",
        [row.sum().item() for row in h],
        len(h),
        h.shape,
        bool(h.sum() > 0),
        h.tolist(),
    )


@pytest.mark.parametrize(
    "body", [in_lists, with_arrays, in_place, drawing, gradients, raising, sized_by_contents, shown]
)
def test_what_may_not_be_made_later(body: Callable[..., Any]) -> None:
    merged(changing(body))


@pytest.mark.parametrize("exposed", [False, True])
def test_a_generator_that_is_set_while_a_draw_is_pending(exposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not seen in recorded calls, and not by torch's calls."""
    monkeypatch.setattr(merging, "is_exposed", lambda _: exposed)
    seeded = [False]

    def body(net: nn.Module, x: torch.Tensor, count: int) -> Any:
        first = F.dropout(x, 0.5)
        if count > CALLS - 5:
            seeded[0] = True
            torch.manual_seed(count)
        return first, torch.rand(2)

    merged(changing(body))
    assert seeded == [True]


class Unseen(torch.autograd.Function):
    """Gives out what its forward pass computes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def test_a_function_of_autograd_that_nobody_has_seen_is_an_internal_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "is_exposed", lambda _: False)

    def body(net: nn.Module, x: torch.Tensor, count: int) -> Any:
        h = x + net.weight.sum()
        with torch.no_grad():
            other = h + 1  # a known operator
        return other, (Unseen.apply(h) if count == CALLS else h).sum()

    made = changing(body)()
    step = torchjanus.speculate(made.step, executor="coexecute")
    for call in made.calls[:-1]:
        step(*call)
    with pytest.raises(InternalFault):
        step(*made.calls[-1])


def test_steps_that_ask_for_a_class_are_not_merged() -> None:
    def body(net: nn.Module, x: torch.Tensor, count: int) -> Any:
        return type(x * 2) is torch.Tensor

    twins = Twins(changing(body), lambda step: torchjanus.speculate(step, executor="coexecute"))
    twins.run()
    assert twins.steps[1].coexecution.merged == 0


def test_steps_that_ask_for_a_class_and_raise_are_not_merged() -> None:
    def body(net: nn.Module, x: torch.Tensor, count: int) -> Any:
        raise ValueError(str(type(net(x)) is torch.Tensor))

    twins = Twins(changing(body), lambda step: torchjanus.speculate(step, executor="coexecute"))
    twins.run()
    assert twins.steps[1].coexecution.merged == 0


def test_only_what_metadata_decide_is_deferred() -> None:
    operators, x, index = Operators(), torch.ones(3), torch.tensor([1])
    assert operators.call(torch.where, (x > 0,), {}) is None
    assert operators.call(torch.arange, (index[0],), {}) is None
    assert operators.call(torch.Tensor.__getitem__, (x, index), {}) is None
    assert operators.call(torch.Tensor.__getitem__, (x, slice(None, index[0])), {}) is None
    assert operators.call(torch.Tensor.view, (x, index), {}) is None
    assert operators.call(torch.div, (x, x), {"rounding_mode": "floor"}) is None
    assert operators.call(F.scaled_dot_product_attention, (x[:, None],) * 3, {}) is None
    assert operators.call(F.embedding, (index, x[:, None]), {}) is None
    assert operators.call(torch.unbind, (), {"input": x, "dim": 0}) is not None
    call = operators.call(torch.Tensor.mul, (x, 2.0), {})
    assert call is not None
    assert operators.get(call) == (False, None)
    assert torch.equal(operators.observe(call), x * 2)
    other = operators.call(torch.Tensor.mul, (x + 1, 3.0), {})
    assert other is not None
    assert operators.get(other)[1] is not None
    assert operators.get(operators.call(torch.Tensor.mul, (x[:2], 3.0), {}))[0] is False  # type: ignore[arg-type]

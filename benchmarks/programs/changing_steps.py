"""Whole steps whose values, types, containers, sizes or paths change from call to call.

Those whose loops change are in ``changing_loops``. Knows nothing of who runs them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PROGRAMS", "Call", "Made", "Net", "batch", "batches", "trainer"]

Call = tuple[Any, ...]
Step = Callable[..., Any]
Made = tuple[Step, list[Call], list[Tensor]]  # the step, its calls, and the tensors that it trains


class Net(nn.Module):
    """Something small to train."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.hidden = nn.Linear(8, width)
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.hidden(x).relu())
        return scores


class Deep(nn.Module):
    """Another class with the same methods."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


def batch(size: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 8), torch.randint(4, (size,))


def batches(calls: int) -> list[Call]:
    return [batch() for _ in range(calls)]


def trainer(model: nn.Module, lr: float = 0.05) -> tuple[torch.optim.Optimizer, Callable[[Tensor], None]]:
    """An optimizer, and what makes a step of it down a loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def descend(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return optimizer, descend


def learning_rate_of_12_values(calls: int) -> Made:
    model = Net()
    optimizer, descend = trainer(model)

    def step(x: Tensor, y: Tensor, lr: float) -> float:
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = F.cross_entropy(model(x), y)
        descend(loss)
        return loss.item()

    return step, [(*batch(), 0.1 * 0.8 ** (n % 12)) for n in range(calls)], list(model.parameters())


def module_counter(calls: int) -> Made:
    class Counting(Net):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x) * (1.0 + 1.0 / self.calls)

    model = Counting()
    _, descend = trainer(model)

    def step(x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(model(x), y)
        descend(loss)
        return loss.item()

    return step, batches(calls), list(model.parameters())


def list_that_grows(calls: int) -> Made:
    model = Net()
    _, descend = trainer(model)
    losses: list[float] = []
    outputs: list[Tensor] = []

    def step(x: Tensor, y: Tensor) -> float:
        out = model(x)
        loss = F.cross_entropy(out, y)
        descend(loss)
        losses.append(loss.item())
        outputs.append(out.detach().mean(0))
        return losses[-1]

    return step, batches(calls), [*model.parameters()]


def dictionary_keys_that_change(calls: int) -> Made:
    model = Net()
    _, descend = trainer(model)
    weights = {"red": 1.0, "green": 0.5, "blue": 0.25, "grey": 0.125, "none": 2.0}
    log: dict[str, float] = {}

    def step(x: Tensor, y: Tensor, task: str, name: str) -> float:
        loss = F.cross_entropy(model(x), y) * weights[task]
        descend(loss)
        log[name] = loss.item()
        return loss.item()

    tasks = list(weights)
    return step, [(*batch(), random.choice(tasks), f"loss/{n}") for n in range(calls)], list(model.parameters())


def batch_sizes(calls: int) -> Made:
    model = Net()
    _, descend = trainer(model)

    def step(x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(model(x), y)
        descend(loss)
        return loss.item() / x.shape[0]

    return step, [batch(random.randint(1, 64)) for _ in range(calls)], list(model.parameters())


class Attention(nn.Module):
    """One head over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.mix = nn.Linear(8, 24)
        self.out = nn.Linear(8, 4)

    def forward(self, words: Tensor) -> Tensor:
        count, length = words.shape
        q, k, v = self.mix(self.table(words)).view(count, length, 3, 8).unbind(2)
        scores: Tensor = self.out((torch.softmax(q @ k.transpose(1, 2) / 8**0.5, -1) @ v).mean(1))
        return scores


def sequence_lengths(calls: int) -> Made:
    model = Attention()
    _, descend = trainer(model)

    def step(words: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(model(words), y)
        descend(loss)
        return loss.item()

    given = [(torch.randint(20, (4, random.randint(5, 100))), torch.randint(4, (4,))) for _ in range(calls)]
    return step, given, list(model.parameters())


def branch_on_a_tensor(calls: int) -> Made:
    model = Net()
    _, descend = trainer(model)

    def step(x: Tensor, y: Tensor) -> float:
        out = model(x)
        if x.sum() > 0:
            out = out * 2
        else:
            out = out - 1
        loss = F.cross_entropy(out, y)
        descend(loss)
        return loss.item()

    return step, batches(calls), list(model.parameters())


def replay_buffer(calls: int) -> Made:
    """A step that adds to what it draws from: of a thousand transitions and more, sixteen."""
    model = nn.Linear(8, 4)
    _, descend = trainer(model)
    memory = deque(((torch.randn(8), k % 4, random.random()) for k in range(1000)), maxlen=1100)
    draws = random.Random(7)

    def step(state: Tensor) -> float:
        action = int(model(state).argmax())
        memory.append((state, action, 1.0))
        states, actions, rewards = zip(*draws.sample(memory, 16), strict=True)
        values = model(torch.stack(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(values, torch.tensor(rewards))
        descend(loss)
        return loss.item()

    return step, [(torch.randn(8),) for _ in range(calls)], list(model.parameters())


def optional_arguments(calls: int) -> Made:
    model = Net()
    _, descend = trainer(model)

    def step(x: Tensor, y: Tensor, mask: Tensor | None = None, *, weight: Tensor | None = None) -> float:
        out = model(x)
        if mask is not None:
            out = out * mask
        loss = F.cross_entropy(out, y, weight=weight)
        descend(loss)
        return loss.item()

    def given() -> Call:
        mask = torch.rand(16, 4) if random.random() < 0.5 else None
        return (*batch(), mask)

    return step, [given() for _ in range(calls)], list(model.parameters())


def two_model_classes(calls: int) -> Made:
    models = [Net(), Deep()]
    optimizers = [trainer(model)[0] for model in models]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    chosen = [random.randrange(2) for _ in range(calls)]
    given = [(models[n], optimizers[n], *batch()) for n in chosen]
    return step, given, [p for model in models for p in model.parameters()]


PROGRAMS: tuple[Callable[[int], Made], ...] = (
    learning_rate_of_12_values,
    module_counter,
    list_that_grows,
    dictionary_keys_that_change,
    batch_sizes,
    sequence_lengths,
    branch_on_a_tensor,
    replay_buffer,
    optional_arguments,
    two_model_classes,
)

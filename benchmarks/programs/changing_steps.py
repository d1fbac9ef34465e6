"""Whole steps whose values, types, containers, sizes or paths change from call to call.

Knows nothing of who runs them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PROGRAMS", "Made"]

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


def sequence_lengths_in_a_loop(calls: int) -> Made:
    cell, out = nn.GRUCell(8, 16), nn.Linear(16, 4)
    model = nn.ModuleList([cell, out])
    _, descend = trainer(model)

    def step(x: Tensor, y: Tensor) -> float:
        h = x.new_zeros(x.shape[0], 16)
        for t in range(x.shape[1]):
            h = cell(x[:, t], h)
        loss = F.cross_entropy(out(h), y)
        descend(loss)
        return loss.item()

    given = [(torch.randn(4, random.randint(5, 100), 8), torch.randint(4, (4,))) for _ in range(calls)]
    return step, given, list(model.parameters())


def loop_with_a_break(calls: int) -> Made:
    layer, out = nn.Linear(8, 8), nn.Linear(8, 4)
    model = nn.ModuleList([layer, out])
    _, descend = trainer(model)

    def step(x: Tensor, y: Tensor) -> float:
        h = x
        for _ in range(8):
            h = h + 0.5 * layer(h).tanh()
            if h.norm() > 14.0:
                break
        loss = F.cross_entropy(out(h), y)
        descend(loss)
        return loss.item()

    return step, batches(calls), list(model.parameters())


def print_in_a_loop(calls: int) -> Made:
    layer, out = nn.Linear(8, 8), nn.Linear(8, 4)
    model = nn.ModuleList([layer, out])
    _, descend = trainer(model)

    def step(x: Tensor, y: Tensor) -> float:
        h = x
        for turn in range(4):
            h = layer(h).tanh()
            print(f"turn {turn}: {h.norm().item():.3f}")
        loss = F.cross_entropy(out(h), y)
        descend(loss)
        return loss.item()

    return step, batches(calls), list(model.parameters())


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


def if_in_each_repetition(calls: int) -> Made:
    cell, other, out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
    model = nn.ModuleList([cell, other, out])
    _, descend = trainer(model)

    def step(x: Tensor, y: Tensor) -> float:
        h = x.new_zeros(4, 8)
        for t in range(x.shape[0]):
            if x[t].sum() > 0:
                h = torch.tanh(cell(h) + x[t])
            else:
                h = torch.sigmoid(other(h) - x[t])
            if h.norm() > 2.0:
                h = h / h.norm()
        loss = F.cross_entropy(out(h), y)
        descend(loss)
        return loss.item()

    given = [(torch.randn(random.randint(8, 40), 4, 8), torch.randint(4, (4,))) for _ in range(calls)]
    return step, given, list(model.parameters())


def scheduled_sampling(calls: int) -> Made:
    """In each repetition the host decides by chance what the next one is given."""
    words, cell, out = nn.Embedding(12, 16), nn.GRUCell(16, 16), nn.Linear(16, 12)
    model = nn.ModuleList([words, cell, out])
    _, descend = trainer(model)
    draws = random.Random(7)

    def step(sentences: Tensor) -> float:
        h, word, scores = sentences.new_zeros(8, 16, dtype=torch.float32), sentences[:, 0], []
        for t in range(1, sentences.shape[1]):
            h = cell(words(word), h)
            scores.append(out(h))
            word = sentences[:, t] if draws.random() < 0.5 else scores[-1].argmax(1)
        loss = F.cross_entropy(torch.stack(scores, 1).flatten(0, 1), sentences[:, 1:].flatten())
        descend(loss)
        return loss.item()

    given = [(torch.randint(12, (8, random.randint(5, 30))),) for _ in range(calls)]
    return step, given, list(model.parameters())


def first_and_last_repetition(calls: int) -> Made:
    """Iterations that ask for their number, in sequences of any length."""
    first, cell, out = nn.Linear(8, 16), nn.GRUCell(8, 16), nn.Linear(16, 4)
    model = nn.ModuleList([first, cell, out])
    _, descend = trainer(model)

    def step(x: Tensor, y: Tensor) -> float:
        h, count = x.new_zeros(x.shape[0], 16), x.shape[1]
        for t in range(count):
            if t == 0:
                h = torch.tanh(first(x[:, t]))
            elif t < count - 1:
                h = cell(x[:, t], h)
            else:
                h = torch.relu(cell(x[:, t], h))
        loss = F.cross_entropy(out(h), y)
        descend(loss)
        return loss.item()

    given = [(torch.randn(4, random.randint(5, 40), 8), torch.randint(4, (4,))) for _ in range(calls)]
    return step, given, list(model.parameters())


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


def while_until_convergence(calls: int) -> Made:
    model = Net()
    _, descend = trainer(model)

    def root(a: Tensor) -> Tensor:
        with torch.no_grad():
            x = torch.ones_like(a)
            while (x * x / a - 1).abs().max() > 1e-5:  # relative: float32 gets no nearer to large numbers
                x = 0.5 * (x + a / x)
        return x

    def step(x: Tensor, y: Tensor) -> float:
        out = model(x)
        loss = F.cross_entropy(out / root(1.0 + out.detach().square().sum(1, keepdim=True)), y)
        descend(loss)
        return loss.item()

    return step, [(x * random.uniform(0.1, 30.0), y) for x, y in batches(calls)], list(model.parameters())


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


def list_by_number(calls: int) -> Made:
    """Tensors of a list, of any length, by their numbers; then what the repetitions have made, with their
    neighbours."""
    cell, out = nn.Linear(24, 16), nn.Linear(16, 4)
    model = nn.ModuleList([cell, out])
    _, descend = trainer(model)

    def step(xs: list[Tensor], ys: list[Tensor]) -> float:
        h, states = torch.zeros(xs[0].size(0), 16), []
        for t in range(len(xs)):
            h = cell(torch.cat([xs[t], h], 1)).tanh()
            states.append(h)
        loss = torch.zeros(())
        for t in range(len(states)):
            loss = loss + F.cross_entropy(out(states[t]), ys[t])
        for t in range(1, len(states)):
            loss = loss + 0.01 * (states[t] - states[t - 1]).pow(2).mean()
        descend(loss / len(states))
        return loss.item()

    def given() -> Call:
        length = random.randint(5, 30)
        return [torch.randn(4, 8) for _ in range(length)], [torch.randint(4, (4,)) for _ in range(length)]

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
    sequence_lengths_in_a_loop,
    loop_with_a_break,
    print_in_a_loop,
    branch_on_a_tensor,
    if_in_each_repetition,
    scheduled_sampling,
    first_and_last_repetition,
    replay_buffer,
    list_by_number,
    while_until_convergence,
    optional_arguments,
    two_model_classes,
)

"""Whole steps with loops whose lengths or paths change from call to call.

Knows nothing of who runs them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.programs.changing_steps import Call, Made, Net, batches, trainer

__all__ = ["PROGRAMS"]


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


PROGRAMS: tuple[Callable[[int], Made], ...] = (
    sequence_lengths_in_a_loop,
    loop_with_a_break,
    print_in_a_loop,
    if_in_each_repetition,
    scheduled_sampling,
    first_and_last_repetition,
    list_by_number,
    while_until_convergence,
)

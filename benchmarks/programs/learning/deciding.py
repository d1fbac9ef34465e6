"""Steps in which Python decides by what was computed: whether a search goes on, how rows are grouped."""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.programs.learning.base import Made, draws, labelled, mlp

__all__ = ["beam_search", "experts", "k_means", "lbfgs", "ode_solver", "reinforce", "split_by_counts"]


def beam_search() -> Made:
    """Beams are Python lists; scores decide which go on, and a word ends one."""
    words, cell, out = nn.Embedding(24, 32), nn.GRUCell(32, 32), nn.Linear(32, 24)

    def step(start: Tensor) -> float:
        with torch.no_grad():
            beams = [(0.0, [0], start)]
            for _ in range(8):
                grown = []
                for score, sentence, h in beams:
                    if sentence[-1] == 1:
                        grown.append((score, sentence, h))
                        continue
                    h = cell(words(torch.tensor([sentence[-1]])), h)
                    logs = F.log_softmax(out(h)[0], 0)
                    best = logs.topk(3)
                    for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                        grown.append((score + value, [*sentence, index], h))
                beams = sorted(grown, key=lambda beam: -beam[0] / len(beam[1]))[:3]
            return beams[0][0]

    return step, ((x,) for x in draws(1, 32))


def k_means() -> Made:
    """Expectation and maximisation until centres stay; empty clusters begin anew."""
    generator = torch.Generator().manual_seed(3)

    def step(x: Tensor) -> float:
        centres = x[torch.randperm(len(x), generator=generator)[:5]].clone()
        before = inertia = math.inf
        for _ in range(20):
            distances = torch.cdist(x, centres)
            nearest = distances.argmin(1)
            for k in range(5):
                members = x[nearest == k]
                if len(members):
                    centres[k] = members.mean(0)
                else:
                    centres[k] = x[int(torch.randint(len(x), (1,), generator=generator))]
            inertia = distances.min(1).values.sum().item()
            if before - inertia < 1e-3 * before:
                break
            before = inertia
        return inertia

    return step, ((x,) for x in draws(60, 4))


def ode_solver() -> Made:
    """An adaptive Runge-Kutta solver: how large the next step is decides Python by the last one's error."""
    field = mlp(4, 16, 4)

    def stages(y: Tensor, h: float) -> tuple[Tensor, Tensor]:
        k1 = field(y)
        k2 = field(y + h * 0.5 * k1)
        k3 = field(y + h * 0.75 * k2)
        new = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
        k4 = field(new)
        return new, h * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)

    def step(y: Tensor) -> float:
        with torch.no_grad():
            t, h = 0.0, 0.5
            while t < 2.0:
                h = min(h, 2.0 - t)
                new, error = stages(y, h)
                ratio = float((error / (1e-4 + 1e-3 * torch.maximum(y.abs(), new.abs()))).abs().max())
                if ratio <= 1.0:
                    t, y = t + h, new
                h = h * min(5.0, max(0.2, 0.9 * max(ratio, 1e-9) ** (-1 / 3)))
            return float(y.sum())

    return step, ((3 * y,) for y in draws(8, 4))


def reinforce() -> Made:
    """An episode of any length in a world of Python's, then one update."""
    model = mlp(2, 32, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator, rng = torch.Generator().manual_seed(7), random.Random(7)

    def step() -> float:
        place, goal, logs, rewards = 0.0, rng.uniform(-3, 3), [], []
        for _ in range(25):
            scores = F.log_softmax(model(torch.tensor([place, goal])), 0)
            action = int(torch.multinomial(scores.detach().exp(), 1, generator=generator))
            logs.append(scores[action])
            place += action - 1
            rewards.append(-abs(place - goal))
            if abs(place - goal) < 0.5:
                break
        total = 0.0
        returns: list[float] = []
        for reward in reversed(rewards):
            total = reward + 0.9 * total
            returns.insert(0, total)
        loss = -(torch.stack(logs) * torch.tensor(returns)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, iter(lambda: (), None)


def lbfgs() -> Made:
    """A time series fitted by LBFGS with a line search: some evaluations a call."""
    cell, out = nn.LSTMCell(1, 8), nn.Linear(8, 1)
    parameters = [*cell.parameters(), *out.parameters()]

    def step(series: Tensor) -> float:
        optimizer = torch.optim.LBFGS(parameters, lr=0.1, max_iter=4, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            h = c = torch.zeros(series.shape[0], 8)
            made = []
            for t in range(series.shape[1] - 1):
                h, c = cell(series[:, t : t + 1], (h, c))
                made.append(out(h))
            loss = F.mse_loss(torch.cat(made, 1), series[:, 1:])
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    return step, ((x.cumsum(1),) for x in draws(4, 12))


def experts() -> Made:
    """A mixture of experts: torch.where tells which rows go to whom, as many as there are."""
    gate, parts = nn.Linear(16, 4), nn.ModuleList([mlp(16, 32, 16) for _ in range(4)])
    optimizer = torch.optim.SGD([*gate.parameters(), *parts.parameters()], lr=0.01)

    def step(x: Tensor) -> float:
        weights, chosen = gate(x).softmax(1).topk(2, 1)
        out = torch.zeros_like(x)
        for number, part in enumerate(parts):
            rows, places = torch.where(chosen == number)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, part(x[rows]) * weights[rows, places, None])
        loss = (out - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, ((x,) for x in draws(16, 16))


def split_by_counts() -> Made:
    """Rows go to groups of any size, by counts that Python reads."""
    model = mlp(8, 32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: Tensor, groups: Tensor) -> float:
        counts = torch.bincount(groups, minlength=6)
        parts = torch.split(model(x)[groups.argsort(stable=True)], counts.tolist())
        loss = torch.stack([part.square().mean() for part in parts if len(part)]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, ((x, y) for x, y in labelled(24, 8, 6))

"""Steps that are given something else at each call, or whose surroundings change: sizes, chance, loaders, hooks."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.programs.learning.base import Call, Made, labelled, mlp

__all__ = ["asynchronous_queue", "augmentation", "everything_changes", "hooks", "replay_loader", "warping_with_crf"]


def warping_with_crf() -> Made:
    """Soft dynamic time warping and a linear-chain CRF over sequences of any length, cell by cell."""
    model, moves = nn.Linear(8, 5), nn.Parameter(torch.zeros(5, 5))
    optimizer = torch.optim.SGD([*model.parameters(), moves], lr=0.01)

    def warped(a: Tensor, b: Tensor) -> Tensor:
        costs = torch.cdist(a, b)
        far = torch.tensor(1e4)
        rows: list[list[Tensor]] = [[torch.zeros(())] + [far] * len(b)]
        for i in range(len(a)):
            row = [far]
            for j in range(len(b)):
                least = -torch.logsumexp(-torch.stack([rows[i][j], rows[i][j + 1], row[j]]), 0)
                row.append(costs[i, j] + least)
            rows.append(row)
        return rows[-1][-1]

    def crf(scores: Tensor, tags: list[int]) -> Tensor:
        alpha, gold = scores[0], scores[0, tags[0]]
        for t in range(1, len(tags)):
            alpha = torch.logsumexp(alpha[:, None] + moves, 0) + scores[t]
            gold = gold + moves[tags[t - 1], tags[t]] + scores[t, tags[t]]
        return torch.logsumexp(alpha, 0) - gold

    def step(a: Tensor, b: Tensor, tags: list[int]) -> float:
        optimizer.zero_grad()
        loss = crf(model(a), tags) + 0.1 * warped(model(a), model(b))
        loss.backward()
        optimizer.step()
        return loss.item()

    def calls() -> Iterator[Call]:
        rng, generator = random.Random(1), torch.Generator().manual_seed(1)
        while True:
            n, m = rng.randint(3, 9), rng.randint(3, 9)
            a, b = (torch.randn(k, 8, generator=generator) for k in (n, m))
            yield a, b, [rng.randrange(5) for _ in range(n)]

    return step, calls()


def everything_changes() -> Made:
    """The caller gives other kinds of arguments each time."""
    shared, given = mlp(8, 16, 4), torch.ones(2, 8)
    modules = [nn.Tanh(), nn.ReLU(), nn.Sigmoid(), nn.GELU(), nn.ELU(), nn.SiLU()]

    def step(x: Tensor, layer: nn.Module, names: list[str], options: dict[str, Any]) -> float:
        total = layer(x).sum(tuple(range(options["first"], x.dim())))
        for name in names:
            total = getattr(total, name)()
        out = shared(given) * options.get("scale", 1)
        return float(total.sum() + out.detach().sum())

    def calls() -> Iterator[Call]:
        rng, generator = random.Random(2), torch.Generator().manual_seed(2)
        while True:
            shape = [rng.randint(1, 5) for _ in range(rng.randint(1, 5))]
            dtype = rng.choice([torch.float32, torch.float64])
            names = [rng.choice(["sin", "cos", "tanh", "exp", "abs", "neg"]) for _ in range(rng.randint(0, 4))]
            options: dict[str, Any] = {"first": rng.randrange(len(shape)), f"k{rng.randint(0, 50)}": 1}
            if rng.random() < 0.5:
                options["scale"] = rng.choice([1, 2.0, True])
            yield torch.randn(shape, generator=generator, dtype=dtype), rng.choice(modules), names, options

    return step, calls()


def augmentation() -> Made:
    """Chance chooses among transformations, for each batch."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 10 * 10, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rng = random.Random(4)
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.flip(3),
        lambda x: x.flip(2),
        lambda x: torch.rot90(x, rng.randint(1, 3), (2, 3)),
        lambda x: F.pad(x, (1, 1, 1, 1))[:, :, rng.randint(0, 2) :, rng.randint(0, 2) :][:, :, :12, :12],
        lambda x: x * rng.uniform(0.8, 1.2),
        lambda x: x + rng.uniform(-0.1, 0.1),
        lambda x: (x - x.mean()) / x.std(),
    ]

    def step(x: Tensor, y: Tensor) -> float:
        for way in rng.sample(ways, rng.randint(1, 4)):
            if rng.random() < 0.7:
                x = way(x)
        x = F.pad(x, (0, 12 - x.shape[3], 0, 12 - x.shape[2]))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, ((x.view(8, 1, 12, 12), y) for x, y in labelled(8, 144, 5))


def replay_loader() -> Made:
    """A step that takes its batch from a loader, and begins a new epoch when that is over."""
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(40, 8, generator=generator), torch.randint(4, (40,), generator=generator))
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=generator)
    model = mlp(8, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state: dict[str, Any] = {"batches": iter(loader)}

    def step(x: Tensor, y: Tensor) -> float:
        try:
            old_x, old_y = next(state["batches"])
        except StopIteration:
            state["batches"] = iter(loader)
            old_x, old_y = next(state["batches"])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.cat([x, old_x])), torch.cat([y, old_y]))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, labelled(8, 8, 4)


def hooks() -> Made:
    """Hooks that are registered for some calls, and removed."""
    model = mlp(8, 32, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    norms: list[Tensor] = []

    def look(module: nn.Module, given: Any, out: Tensor) -> None:
        norms.append(out.detach().norm())

    def step(x: Tensor, y: Tensor, layers: list[int]) -> float:
        handles = [model[k].register_forward_hook(look) for k in layers]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        for handle in handles:
            handle.remove()
        norms.clear()
        return loss.item()

    def calls() -> Iterator[Call]:
        rng = random.Random(6)
        for x, y in labelled(8, 8, 4):
            yield x, y, sorted(rng.sample(range(5), rng.randint(0, 3)))

    return step, calls()


def asynchronous_queue() -> Made:
    """Every seventh call hands work to a thread, and takes what has come back."""
    model = mlp(8, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pool, results = ThreadPoolExecutor(1), queue.SimpleQueue[float]()
    seen = [0, 0.0]

    def evaluate(weights: Tensor) -> None:
        results.put(float(weights.sum()))

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        seen[0] += 1
        if seen[0] % 7 == 0:
            pool.submit(evaluate, model[0].weight.detach().clone()).result()
            while not results.empty():
                seen[1] += results.get()
        return loss.item()

    return step, labelled(8, 8, 4)

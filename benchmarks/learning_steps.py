"""Whole steps that are hard to learn, or worth it; ``benchmarks.learning_cost`` measures what learning them costs.

Knows nothing of who runs them. A program is made anew for each side, with random generators of its own, so that both
sides make the same calls.
"""

from __future__ import annotations

import math
import queue
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["CHANGING", "PROFITING", "PROGRAMS", "Made"]

Call = tuple[Any, ...]
Step = Callable[..., Any]
Made = tuple[Step, Iterator[Call]]  # the step, and its calls, without end


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        layers += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def draws(*shape: int, seed: int = 0) -> Iterator[Tensor]:
    """Normal tensors, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(*shape, generator=generator)


def labelled(size: int, width: int, classes: int, seed: int = 0) -> Iterator[Call]:
    """Batches to classify, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(size, width, generator=generator)
        yield x, torch.randint(classes, (size,), generator=generator)


# -- steps that differ from call to call, or are refused now and then -------------------------------------------------


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


# -- steps that are worth learning ------------------------------------------------------------------------------------


def sac() -> Made:
    """Soft actor-critic: two critics, their targets, an actor that samples, a temperature."""
    actor, critics, targets = mlp(6, 64, 4), mlp(8, 64, 2), mlp(8, 64, 2)
    targets.load_state_dict(critics.state_dict())
    log_alpha = nn.Parameter(torch.zeros(()))
    optimizers = [torch.optim.Adam(p, lr=1e-3) for p in (actor.parameters(), critics.parameters(), [log_alpha])]

    def act(state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(state).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = mean + log_std.clamp(-5, 2).exp() * noise
        action = raw.tanh()
        return action, (normal.log_prob(raw) - torch.log(1 - action.square() + 1e-6)).sum(1)

    def step(state: Tensor, action: Tensor, reward: Tensor, after: Tensor, noise: Tensor) -> float:
        with torch.no_grad():
            chosen, logs = act(after, noise)
            value = targets(torch.cat([after, chosen], 1)).min(1).values - log_alpha.exp() * logs
            wanted = reward + 0.99 * value
        critic_loss = (critics(torch.cat([state, action], 1)) - wanted[:, None]).square().mean()
        chosen, logs = act(state, noise)
        actor_loss = (log_alpha.exp().detach() * logs - critics(torch.cat([state, chosen], 1)).min(1).values).mean()
        alpha_loss = -(log_alpha * (logs.detach() - 2)).mean()
        for optimizer, loss in zip(optimizers, (actor_loss, critic_loss, alpha_loss), strict=True):
            optimizer.zero_grad()
            loss.backward(retain_graph=loss is actor_loss, inputs=optimizer.param_groups[0]["params"])
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            for old, new in zip(targets.parameters(), critics.parameters(), strict=True):
                old.lerp_(new, 0.005)
        return critic_loss.item()

    def calls() -> Iterator[Call]:
        states, others = draws(32, 6, seed=8), draws(32, 2, seed=9)
        while True:
            yield next(states), next(others).tanh(), next(others)[:, 0], next(states), next(others)

    return step, calls()


def wgan_gp() -> Made:
    """A critic with a gradient penalty, five times for each generator's update: two steps in one, by turns."""
    made, critic = mlp(8, 32, 16), mlp(16, 32, 1)
    generators = torch.optim.Adam(made.parameters(), lr=1e-4, betas=(0.0, 0.9))
    critics = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))

    def step(real: Tensor, noise: Tensor, mix: Tensor, number: int) -> float:
        fake = made(noise)
        if number % 6 == 5:
            loss = -critic(fake).mean()
            generators.zero_grad()
            loss.backward()
            generators.step()
            return loss.item()
        between = (mix * real + (1 - mix) * fake.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(2, 1) - 1).square().mean()
        loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
        critics.zero_grad()
        loss.backward()
        critics.step()
        return loss.item()

    def calls() -> Iterator[Call]:
        reals, noises, number = draws(32, 16, seed=10), draws(32, 8, seed=11), 0
        while True:
            yield next(reals), next(noises), next(noises)[:, :1].sigmoid(), number % 6
            number += 1

    return step, calls()


class LowRank(nn.Module):
    """A frozen linear layer with an update of low rank."""

    def __init__(self, width: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, width) * 0.01)
        self.up = nn.Parameter(torch.zeros(width, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + F.linear(F.linear(x, self.down), self.up) * 2.0
        return out


def lora() -> Made:
    """Layers of low rank trained on frozen ones, with clipping and a schedule."""
    model = nn.Sequential(LowRank(32), nn.GELU(), LowRank(32), nn.GELU(), LowRank(32), nn.Linear(32, 4))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + 0.001 * n))

    def step(x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        return loss.item()

    return step, labelled(16, 32, 4)


def muon() -> Made:
    """Updates made orthogonal by Newton-Schulz rounds."""
    model = mlp(16, 32, 32, 4)
    momenta = [torch.zeros_like(p) for p in model.parameters()]

    def orthogonal(update: Tensor) -> Tensor:
        x = update / (update.norm() + 1e-7)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        for _ in range(5):
            product = x @ x.T
            x = 3.4445 * x + (-4.775 * product + 2.0315 * product @ product) @ x
        return x.T if tall else x

    def step(x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(model(x), y)
        for p in model.parameters():
            p.grad = None
        loss.backward()
        with torch.no_grad():
            for p, momentum in zip(model.parameters(), momenta, strict=True):
                momentum.mul_(0.95).add_(p.grad)
                p.add_(orthogonal(momentum) if p.dim() == 2 else momentum, alpha=-0.01)
        return loss.item()

    return step, labelled(16, 16, 4)


CHANGING: tuple[Callable[[], Made], ...] = (
    beam_search,
    warping_with_crf,
    everything_changes,
    k_means,
    augmentation,
    ode_solver,
    replay_loader,
    hooks,
    reinforce,
    asynchronous_queue,
    lbfgs,
    experts,
    split_by_counts,
)
PROFITING: tuple[Callable[[], Made], ...] = (sac, wgan_gp, lora, muon)
PROGRAMS = CHANGING + PROFITING

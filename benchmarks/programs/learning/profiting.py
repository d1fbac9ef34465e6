"""Steps that are worth learning: graphs are several times as fast as eager."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.programs.learning.base import Call, Made, draws, labelled, mlp

__all__ = ["lora", "muon", "sac", "wgan_gp"]


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

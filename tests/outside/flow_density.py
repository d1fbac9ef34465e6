"""A normalizing flow of coupling layers on two moons: a base distribution of torch.distributions, masks as buffers, a
cosine schedule, samples for a picture now and then, early stopping by a validation loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal


class Coupling(nn.Module):
    def __init__(self, width: int, mask: list[float]) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor(mask))
        self.net = nn.Sequential(nn.Linear(2, width), nn.LeakyReLU(0.1), nn.Linear(width, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        held = x * self.mask
        shift, scale = self.net(held).chunk(2, dim=-1)
        scale = torch.tanh(scale) * (1 - self.mask)
        return held + (1 - self.mask) * (x - shift) * torch.exp(-scale), -scale.sum(-1)

    def inverse(self, z: Tensor) -> Tensor:
        held = z * self.mask
        shift, scale = self.net(held).chunk(2, dim=-1)
        return held + (1 - self.mask) * (z * torch.exp(torch.tanh(scale) * (1 - self.mask)) + shift)


class Flow(nn.Module):
    def __init__(self, layers: int = 4, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(width, [k % 2, 1 - k % 2]) for k in range(layers))
        self.register_buffer("zero", torch.zeros(2))
        self.register_buffer("one", torch.ones(2))

    @property
    def base(self) -> Independent:
        return Independent(Normal(self.zero, self.one), 1)

    def log_prob(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for layer in self.layers:
            x, log_det = layer(x)
            total = total + log_det
        return self.base.log_prob(x) + total

    @torch.no_grad()
    def sample(self, count: int) -> Tensor:
        z = self.base.sample((count,))
        for layer in reversed(self.layers):
            z = layer.inverse(z)
        return z


def moons(count: int, noise: float = 0.05) -> Tensor:
    half = count // 2
    angle = math.pi * torch.rand(half)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    return torch.cat([upper, lower]) + noise * torch.randn(2 * half, 2)


class Trainer:
    def __init__(self) -> None:
        self.flow = Flow()
        self.optimizer = torch.optim.AdamW(self.flow.parameters(), lr=2e-3, weight_decay=1e-4)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=60)
        self.best, self.waited, self.samples = float("inf"), 0, []

    def validate(self, batch: Tensor) -> float:
        self.flow.eval()
        with torch.no_grad():
            loss = -self.flow.log_prob(batch).mean()
        self.flow.train()
        return float(loss)

    def step(self, number: int, batch: Tensor, held_out: Tensor) -> dict[str, Any]:
        self.optimizer.zero_grad(set_to_none=True)
        loss = -self.flow.log_prob(batch).mean()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"loss is {loss.item()} at step {number}")
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.flow.parameters(), 5.0)
        self.optimizer.step()
        self.scheduler.step()
        logs = {"nll": loss.item(), "norm": float(norm), "lr": self.scheduler.get_last_lr()[0]}
        if number % 10 == 9:
            value = self.validate(held_out)
            self.waited = 0 if value < self.best else self.waited + 1
            self.best = min(self.best, value)
            logs["val"] = value
            self.samples.append(self.flow.sample(3))
            print(f"[{number:3d}] nll {logs['nll']:.4f} val {value:.4f} lr {logs['lr']:.2e}")
        return logs


def make() -> Any:
    trainer, held_out = Trainer(), moons(64)
    calls = [(number, moons(32), held_out) for number in range(40)]
    return trainer.step, calls, lambda: (trainer.flow, trainer.samples, trainer.best, trainer.waited)

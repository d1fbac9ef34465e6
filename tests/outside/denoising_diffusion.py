"""A denoising diffusion model of small signals: a noise schedule as a dataclass of tensors, an embedding of the time
step, weights averaged over time, a loss kept for each time step in a NumPy array."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Schedule:
    betas: Tensor
    alphas_bar: Tensor

    @classmethod
    def linear(cls, steps: int) -> Schedule:
        betas = torch.linspace(1e-4, 0.05, steps)
        return cls(betas, torch.cumprod(1 - betas, 0))

    def noisy(self, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        kept = self.alphas_bar[t].view(-1, 1, 1)
        return kept.sqrt() * x + (1 - kept).sqrt() * noise


def embedded(t: Tensor, width: int) -> Tensor:
    half = width // 2
    rates = torch.exp(-math.log(10000.0) * torch.arange(half) / half)
    angles = t[:, None].float() * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Block(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.conv = nn.Conv1d(channels, channels, 3, padding=1)
        self.time = nn.Linear(width, channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return x + self.conv(F.silu(self.norm(x)) + self.time(time)[..., None])


class Denoiser(nn.Module):
    def __init__(self, channels: int = 8, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.width = width
        self.inward, self.outward = nn.Conv1d(1, channels, 1), nn.Conv1d(channels, 1, 1)
        self.blocks = nn.ModuleList([Block(channels, width) for _ in range(depth)])
        self.embed = nn.Sequential(nn.Linear(width, width), nn.SiLU())

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = self.embed(embedded(t, self.width))
        h = self.inward(x)
        for block in self.blocks:
            h = block(h, time)
        return self.outward(h)


class Average:
    """Parameters averaged over time."""

    def __init__(self, model: nn.Module, decay: float = 0.95) -> None:
        self.decay, self.model = decay, copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mine, its in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(its, 1 - self.decay)


class Trainer:
    steps = 50

    def __init__(self) -> None:
        self.model, self.schedule = Denoiser(), Schedule.linear(self.steps)
        self.average = Average(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.by_time, self.counts = np.zeros(self.steps), np.zeros(self.steps, dtype=np.int64)

    def step(self, x: Tensor) -> float:
        t = torch.randint(0, self.steps, (len(x),))
        noise = torch.randn_like(x)
        guess = self.model(self.schedule.noisy(x, t, noise), t)
        losses = F.mse_loss(guess, noise, reduction="none").mean(dim=(1, 2))
        loss = losses.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.average.update(self.model)
        np.add.at(self.by_time, t.numpy(), losses.detach().numpy())
        np.add.at(self.counts, t.numpy(), 1)
        return loss.item()

    @torch.no_grad()
    def sample(self, count: int) -> Tensor:
        x = torch.randn(count, 1, 16)
        for number in reversed(range(self.steps)):
            t = torch.full((count,), number)
            beta, kept = self.schedule.betas[number], self.schedule.alphas_bar[number]
            x = (x - beta / (1 - kept).sqrt() * self.average.model(x, t)) / (1 - beta).sqrt()
            if number:
                x = x + beta.sqrt() * torch.randn_like(x)
        return x


def make() -> Any:
    trainer = Trainer()
    calls = [(torch.sin(torch.linspace(0, 6, 16) + 6 * torch.rand(8, 1)).unsqueeze(1),) for _ in range(40)]
    return (
        trainer.step,
        calls,
        lambda: (trainer.model, trainer.average.model, trainer.by_time.tolist(), trainer.counts.tolist()),
    )

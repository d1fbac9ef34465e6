"""Two networks against each other: spectral norms, a gradient penalty, several steps of the critic for one of the
generator, images clamped and kept for a grid, statistics in a history."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, autograd, nn


@dataclass
class Config:
    latent: int = 8
    side: int = 8
    channels: int = 8
    critic_steps: int = 2
    penalty: float = 10.0
    sample_every: int = 6


def weights_init(m: nn.Module) -> None:
    name = m.__class__.__name__
    if name.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)  # type: ignore[arg-type]
    elif name.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)  # type: ignore[arg-type]
        nn.init.constant_(m.bias.data, 0)  # type: ignore[arg-type]


class Generator(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.channels
        self.main = nn.Sequential(
            nn.ConvTranspose2d(config.latent, 2 * width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.main(z)


class Critic(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.channels
        self.main = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 1, 4, 1, 0),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x).view(-1)


class Training:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.netG, self.netD = Generator(config), Critic(config)
        self.netG.apply(weights_init)
        self.netD.apply(weights_init)
        self.optimizerD = torch.optim.Adam(self.netD.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.optimizerG = torch.optim.Adam(self.netG.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.fixed = torch.randn(4, config.latent, 1, 1)
        self.history: defaultdict[str, list[float]] = defaultdict(list)
        self.grids: list[np.ndarray] = []
        self.iteration = 0

    def gradient_penalty(self, real: Tensor, fake: Tensor) -> Tensor:
        alpha = torch.rand(real.size(0), 1, 1, 1)
        between = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        scores = self.netD(between)
        gradients = autograd.grad(scores, between, torch.ones_like(scores), create_graph=True, retain_graph=True)[0]
        return ((gradients.view(real.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()

    def train_critic(self, real: Tensor) -> dict[str, float]:
        self.optimizerD.zero_grad()
        noise = torch.randn(real.size(0), self.config.latent, 1, 1)
        fake = self.netG(noise).detach()
        score_real, score_fake = self.netD(real).mean(), self.netD(fake).mean()
        penalty = self.config.penalty * self.gradient_penalty(real, fake)
        (score_fake - score_real + penalty).backward()
        self.optimizerD.step()
        return {"wasserstein": (score_real - score_fake).item(), "penalty": penalty.item()}

    def train_generator(self, size: int) -> float:
        for p in self.netD.parameters():
            p.requires_grad_(False)
        self.optimizerG.zero_grad()
        loss = -self.netD(self.netG(torch.randn(size, self.config.latent, 1, 1))).mean()
        loss.backward()
        self.optimizerG.step()
        for p in self.netD.parameters():
            p.requires_grad_(True)
        return loss.item()

    def step(self, real: Tensor) -> float:
        for _ in range(self.config.critic_steps):
            for name, value in self.train_critic(real).items():
                self.history[name].append(value)
        loss = self.train_generator(real.size(0))
        self.history["generator"].append(loss)
        if self.iteration % self.config.sample_every == 0:
            self.netG.eval()
            with torch.no_grad():
                images = self.netG(self.fixed).detach().cpu()
            self.netG.train()
            self.grids.append(((images.clamp(-1, 1) + 1) / 2).numpy().transpose(0, 2, 3, 1))
        self.iteration += 1
        return loss


def make() -> Any:
    training = Training(Config())
    calls = [(torch.tanh(torch.randn(8, 1, 8, 8) + 0.5),) for _ in range(36)]

    def state() -> Any:
        return training.netG, training.netD, dict(training.history), [float(grid.sum()) for grid in training.grids]

    return training.step, calls, state

"""Private training: gradients of each sample by torch.func, clipped by their norms, noise added, and an account of what
has been spent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap


class SmallConvNet(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.fc = nn.Linear(8 * 2 * 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv1(x))
        x = torch.tanh(self.norm(self.conv2(x)))
        return self.fc(x.flatten(1))


@dataclass
class Accountant:
    noise: float
    rate: float
    steps: int = 0

    def step(self) -> None:
        self.steps += 1

    def epsilon(self, delta: float) -> float:
        rho = self.steps * (self.rate / self.noise) ** 2 / 2
        return rho + 2 * math.sqrt(rho * math.log(1 / delta))


class PrivateTrainer:
    def __init__(self, model: nn.Module, clip: float, noise: float, rate: float) -> None:
        self.model, self.clip, self.noise = model, clip, noise
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        self.accountant = Accountant(noise, rate)
        self.per_sample = vmap(grad(self.sample_loss), in_dims=(None, None, 0, 0))

    def sample_loss(self, params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(self.model, (params, buffers), (x.unsqueeze(0),))
        return nn.functional.cross_entropy(logits, y.unsqueeze(0))

    def step(self, images: Tensor, labels: Tensor) -> dict[str, float]:
        params = {name: p.detach() for name, p in self.model.named_parameters()}
        buffers = {name: b.detach() for name, b in self.model.named_buffers()}
        grads = self.per_sample(params, buffers, images, labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()], 1).norm(dim=1)
        factor = (self.clip / (norms + 1e-6)).clamp(max=1.0)
        for name, p in self.model.named_parameters():
            clipped = torch.einsum("n,n...->...", factor, grads[name])
            noise = torch.randn_like(clipped) * self.noise * self.clip
            p.grad = (clipped + noise) / len(images)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.accountant.step()
        with torch.no_grad():
            right = (self.model(images).argmax(1) == labels).float().mean()
        return {
            "norm": norms.mean().item(),
            "clipped": (norms > self.clip).float().mean().item(),
            "accuracy": right.item(),
            "epsilon": self.accountant.epsilon(1e-5),
        }


def make() -> Any:
    trainer = PrivateTrainer(SmallConvNet(), clip=1.0, noise=0.4, rate=0.05)
    means = torch.randn(4, 1, 8, 8)
    calls = []
    for _ in range(30):
        y = torch.randint(0, 4, (12,))
        calls.append((means[y] + 0.5 * torch.randn(12, 1, 8, 8), y))
    return trainer.step, calls, lambda: (trainer.model, trainer.accountant.steps)

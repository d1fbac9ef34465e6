"""Momentum contrast: two views of each image by random crops and flips, a queue of keys with a pointer that wraps, an
encoder that follows the other slowly."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class View:
    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, image: Tensor) -> Tensor:
        top = random.randint(0, image.shape[1] - self.side)
        left = random.randint(0, image.shape[2] - self.side)
        out = image[:, top : top + self.side, left : left + self.side]
        if random.random() < 0.5:
            out = out.flip(-1)
        return out + 0.05 * torch.randn_like(out)


class Encoder(nn.Sequential):
    def __init__(self, width: int = 16) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, width),
        )


class Contrast(nn.Module):
    def __init__(self, size: int = 64, width: int = 16, momentum: float = 0.99, temperature: float = 0.2) -> None:
        super().__init__()
        self.query = Encoder(width)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.momentum, self.temperature = momentum, temperature
        self.register_buffer("queue", F.normalize(torch.randn(width, size), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self) -> None:
        for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
            k.data = k.data * self.momentum + q.data * (1.0 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        at = int(self.pointer)
        self.queue[:, at : at + len(keys)] = keys.T
        self.pointer[0] = (at + len(keys)) % self.queue.shape[1]

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(self.query(one), dim=1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.key(other), dim=1)
        same = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        others = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([same, others], 1) / self.temperature
        self.enqueue(k)
        return logits, torch.zeros(len(logits), dtype=torch.long)


class Trainer:
    def __init__(self) -> None:
        self.model, self.view = Contrast(), View(10)
        self.optimizer = torch.optim.SGD(self.model.query.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        self.right = 0

    def step(self, images: Tensor) -> float:
        one = torch.stack([self.view(image) for image in images])
        other = torch.stack([self.view(image) for image in images])
        logits, labels = self.model(one, other)
        loss = F.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.right += logits.argmax(1).eq(labels).sum().item()
        return loss.item()


def make() -> Any:
    trainer = Trainer()
    return trainer.step, [(torch.rand(8, 1, 12, 12),) for _ in range(40)], lambda: (trainer.model, trainer.right)

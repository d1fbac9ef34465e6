"""Gradients accumulated over micro-batches, an average of the weights, early stopping, and a log of lines that somebody
else may drop."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor, nn


class Listener:
    """Somebody who wants to know. The trainer does not keep it alive."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, line: str) -> None:
        self.lines.append(line)


class Average:
    """The exponential moving average of a model's weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p, alpha=1 - self.decay)


class Stopper:
    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.waited = patience, math.inf, 0

    def __call__(self, loss: float) -> bool:
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        return self.waited >= self.patience


class Trainer:
    def __init__(self, listener: Listener, parts: int = 3) -> None:
        self.model = nn.Sequential(nn.Linear(10, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 1))
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": 0.01}, {"params": others}]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: min(1.0, (n + 1) / 5))
        self.average, self.stopper = Average(self.model, 0.99), Stopper(patience=40)
        self.parts, self.listener = parts, weakref.ref(listener)

    def backward(self, x: Tensor, y: Tensor) -> float:
        loss = nn.functional.smooth_l1_loss(self.model(x).squeeze(-1), y) / self.parts
        loss.backward()
        return loss.item()

    def step(self, x: Tensor, y: Tensor) -> tuple[float, bool]:
        total = 0.0
        self.optimizer.zero_grad()
        for a, b in zip(x.chunk(self.parts), y.chunk(self.parts), strict=True):
            total += self.backward(a, b)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.average.update(self.model)
        if (listener := self.listener()) is not None:
            listener.tell(f"loss {total:.4f} norm {norm.item():.4f} lr {self.scheduler.get_last_lr()[0]:.6f}")
        return total, self.stopper(total)


def make() -> Any:
    listener = Listener()
    trainer = Trainer(listener)
    calls = []
    for _ in range(30):
        x = torch.randn(12, 10)
        calls.append((x, x[:, :3].sum(1)))
    return trainer.step, calls, lambda: (trainer.model, list(trainer.average.shadow.values()), listener.lines)

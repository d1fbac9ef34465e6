"""A layer of experts of which each token takes two: tokens are gathered for each expert by Python, and loads are
balanced by a loss and counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Mixture(nn.Module):
    def __init__(self, width: int, count: int, top: int = 2) -> None:
        super().__init__()
        self.gate, self.top = nn.Linear(width, count, bias=False), top
        self.experts = nn.ModuleList(Expert(width) for _ in range(count))
        self.loads: Counter[int] = Counter()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.reshape(-1, x.shape[-1])
        odds = self.gate(flat).softmax(-1)
        weights, chosen = odds.topk(self.top, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            if token.numel() == 0:
                continue
            self.loads[number] += token.numel()
            out.index_add_(0, token, weights[token, rank, None] * expert(flat[token]))
        share = F.one_hot(chosen, len(self.experts)).float().sum(1).mean(0)
        return out.view_as(x), len(self.experts) * (share * odds.mean(0)).sum()


class Model(nn.Module):
    def __init__(self, words: int = 30, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixers = nn.ModuleList([Mixture(width, 4), Mixture(width, 4)])
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x, balance = self.words(ids), torch.zeros(())
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            moved, extra = mixer(norm(x))
            x, balance = x + moved, balance + extra
        return self.head(x), balance


class Trainer:
    def __init__(self) -> None:
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def step(self, ids: Tensor) -> tuple[float, float]:
        logits, balance = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        self.optimizer.zero_grad()
        (loss + 0.01 * balance).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item(), balance.item()


def make() -> Any:
    trainer = Trainer()
    calls = [(torch.randint(0, 30, (4, 9)),) for _ in range(40)]
    return trainer.step, calls, lambda: (trainer.model, [sorted(m.loads.items()) for m in trainer.model.mixers])

"""Training steps for tests: models and optimizers as users write them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "plain": lambda p: torch.optim.SGD(p, 0.05),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05, lr_decay=0.01),
    "sgd-foreach": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3, foreach=True),
    "adam-foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "rmsprop-foreach": lambda p: torch.optim.RMSprop(p, 0.01, foreach=True),
    "adagrad-foreach": lambda p: torch.optim.Adagrad(p, 0.05, foreach=True),
}


class Tied(nn.Module):
    """Embedding and output share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.mix(self.embedding(x))))


class Cell(nn.Module):
    """An LSTM written by hand, looped over time."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inputs = nn.Linear(5, 4 * width)
        self.hidden = nn.Linear(width, 4 * width)
        self.out = nn.Linear(width, 3)
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], self.width)
        c = torch.zeros_like(h)
        for t in range(x.shape[1]):
            i, f, g, o = (self.inputs(x[:, t]) + self.hidden(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.out(h)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Dropout(0.3), nn.Linear(10, 3))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor]]]] = {
    "mlp": (mlp, lambda: (torch.randn(5, 6), torch.randint(0, 3, (5,)))),
    "convnet": (convnet, lambda: (torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,)))),
    "lstm": (Cell, lambda: (torch.randn(4, 6, 5), torch.randint(0, 3, (4,)))),
    "tied": (Tied, lambda: (torch.randint(0, 11, (7,)), torch.randint(0, 11, (7,)))),
}


def make_state(model: str, optimizer: str) -> SimpleNamespace:
    torch.manual_seed(7)
    net = MODELS[model][0]()
    return SimpleNamespace(net=net, optimizer=OPTIMIZERS[optimizer](net.parameters()), rate=None)


def data_of(model: str) -> Callable[[int], tuple[Any, ...]]:
    def data(at: int) -> tuple[Any, ...]:
        with torch.random.fork_rng():
            torch.manual_seed(1000 + at)
            return MODELS[model][1]()

    return data


def schedule(state: Any, at: int) -> None:
    """A learning rate that is another one at each step."""
    for group in state.optimizer.param_groups:
        group["lr"] = 0.05 / (1 + 0.1 * at)


def plain_step(state: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    state.optimizer.zero_grad()
    loss = F.cross_entropy(state.net(x), y)
    loss.backward()
    state.optimizer.step()
    return loss


def kept_grads_step(state: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """zero_grad(set_to_none=False): gradients are live at entry and zeroed in place."""
    state.optimizer.zero_grad(set_to_none=False)
    loss = F.cross_entropy(state.net(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(state.net.parameters(), 0.5)
    state.optimizer.step()
    return loss.detach()


def accumulate_step(state: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Gradients pile up over calls: live at entry, added to, never applied."""
    loss = F.cross_entropy(state.net(x), y) / 4
    loss.backward()
    return loss

"""A physics-informed network: LBFGS with a line search asks a method for the loss of a differential equation."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad


class Network(nn.Module):
    def __init__(self, layers: tuple[int, ...] = (1, 16, 16, 1)) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(layers)])
        for layer in self.layers:
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


class Solver:
    def __init__(self) -> None:
        self.model = Network()
        self.x = torch.linspace(0, 1, 32).view(-1, 1).requires_grad_(True)
        self.border = torch.tensor([[0.0], [1.0]])
        self.optimizer = torch.optim.LBFGS(
            self.model.parameters(), lr=1.0, max_iter=6, history_size=10, line_search_fn="strong_wolfe"
        )
        self.evaluations = 0
        self.history: list[float] = []

    def loss(self) -> Tensor:
        self.optimizer.zero_grad()
        u = self.model(self.x)
        first = grad(u, self.x, torch.ones_like(u), create_graph=True)[0]
        second = grad(first, self.x, torch.ones_like(first), create_graph=True)[0]
        residual = second + torch.pi**2 * torch.sin(torch.pi * self.x)
        loss = residual.pow(2).mean() + 10 * self.model(self.border).pow(2).mean()
        loss.backward()
        self.evaluations += 1
        if self.evaluations % 20 == 0:
            print(f"evaluation {self.evaluations}: {loss.item():.5e}")
        self.history.append(loss.item())
        return loss

    def epoch(self, number: int) -> tuple[float, int]:
        loss = self.optimizer.step(self.loss)
        if number % 5 == 0:
            print(number, f"{loss.item():.6e}", len(self.history))
        return float(loss), self.evaluations


def make() -> Any:
    solver = Solver()
    return solver.epoch, [(number,) for number in range(30)], lambda: [solver.model, solver.history]

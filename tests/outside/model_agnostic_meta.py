"""Meta-learning of sine waves: an inner loop of gradient steps on copies of the weights, by ``torch.func``, and an
outer step through all of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F


class Task:
    def __init__(self) -> None:
        self.height, self.phase = 0.1 + 4.9 * torch.rand(()), 3.14 * torch.rand(())

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        x = 10 * torch.rand(count, 1) - 5
        return x, self.height * torch.sin(x + self.phase)


class Learner:
    def __init__(self, inner: int = 2, rate: float = 0.01, first_order: bool = False) -> None:
        self.model = nn.Sequential(
            OrderedDict(a=nn.Linear(1, 20), act=nn.ReLU(), b=nn.Linear(20, 20), act2=nn.ReLU(), c=nn.Linear(20, 1))
        )
        self.inner, self.rate, self.first_order = inner, rate, first_order
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.history: dict[str, list[float]] = {"before": [], "after": []}

    def adapted(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        weights = dict(self.model.named_parameters())
        for _ in range(self.inner):
            loss = F.mse_loss(functional_call(self.model, weights, (x,)), y)
            grads = torch.autograd.grad(loss, tuple(weights.values()), create_graph=not self.first_order)
            weights = {name: w - self.rate * g for (name, w), g in zip(weights.items(), grads, strict=True)}
        return weights

    def step(self, tasks: list[Task]) -> float:
        self.optimizer.zero_grad()
        total = torch.zeros(())
        before = 0.0
        for task in tasks:
            support, query = task.draw(5), task.draw(10)
            with torch.no_grad():
                before += F.mse_loss(self.model(query[0]), query[1]).item()
            total = total + F.mse_loss(functional_call(self.model, self.adapted(*support), (query[0],)), query[1])
        loss = total / len(tasks)
        loss.backward()
        self.optimizer.step()
        self.history["before"].append(before / len(tasks))
        self.history["after"].append(loss.item())
        return self.history["after"][-1]


def make() -> Any:
    learner = Learner()
    calls = [([Task() for _ in range(3)],) for _ in range(30)]
    return learner.step, calls, lambda: (learner.model, learner.history)

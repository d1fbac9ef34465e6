"""A model fitted by `scipy.optimize`, which calls back: flat parameters, gradients as arrays, reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor, nn


class Fitter:
    """Keeps a model's parameters as one array for SciPy."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names = [name for name, _ in model.named_parameters()]
        self.evaluations = 0
        self.reports: list[float] = []

    def flat(self) -> Any:
        return np.concatenate([p.detach().numpy().ravel() for p in self.model.parameters()]).astype(np.float64)

    def load(self, weights: Any) -> None:
        begin = 0
        for p in self.model.parameters():
            count = p.numel()
            p.data.copy_(torch.from_numpy(weights[begin : begin + count]).view_as(p))
            begin += count

    def objective(self, weights: Any, x: Tensor, y: Tensor) -> tuple[float, Any]:
        self.load(weights)
        self.model.zero_grad()
        loss = (self.model(x) - y).pow(2).mean() + 1e-4 * sum(p.pow(2).sum() for p in self.model.parameters())
        loss.backward()
        self.evaluations += 1
        gradient = np.concatenate([p.grad.numpy().ravel() for p in self.model.parameters()])
        return loss.item(), gradient.astype(np.float64)

    def fit(self, x: Tensor, y: Tensor) -> tuple[float, int]:
        def report(weights: Any) -> None:
            self.reports.append(float(np.abs(weights).max()))

        found = optimize.minimize(
            self.objective,
            self.flat(),
            args=(x, y),
            jac=True,
            method="L-BFGS-B",
            callback=report,
            options={"maxiter": 4},
        )
        self.load(found.x)
        return float(found.fun), self.evaluations


def make() -> Any:
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))
    fitter = Fitter(model)
    calls = []
    for _ in range(30):
        x = torch.randn(24, 6)
        calls.append((x, torch.sin(x[:, :1] * 2) + x[:, 1:2] * x[:, 2:3]))
    return fitter.fit, calls, lambda: [model, fitter.reports]

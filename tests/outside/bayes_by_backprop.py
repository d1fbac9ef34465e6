"""Bayes by backprop: weights are drawn from a learned Gaussian, priors and posteriors are kept on the layers, and the
evidence bound is estimated by some samples. Options are a namespace of argparse; the last batch of an epoch prints."""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset


class Gaussian:
    def __init__(self, mu: Tensor, rho: Tensor) -> None:
        self.mu, self.rho = mu, rho
        self.normal = Normal(0, 1)

    @property
    def sigma(self) -> Tensor:
        return torch.log1p(torch.exp(self.rho))

    def sample(self) -> Tensor:
        return self.mu + self.sigma * self.normal.sample(self.rho.size())

    def log_prob(self, value: Tensor) -> Tensor:
        quadratic = (value - self.mu) ** 2 / (2 * self.sigma**2)
        return (-math.log(math.sqrt(2 * math.pi)) - torch.log(self.sigma) - quadratic).sum()


class Mixture:
    def __init__(self, pi: float, wide: float, narrow: float) -> None:
        self.pi, self.wide, self.narrow = pi, Normal(0, wide), Normal(0, narrow)

    def log_prob(self, value: Tensor) -> Tensor:
        first, second = (torch.exp(one.log_prob(value)) for one in (self.wide, self.narrow))
        return torch.log(self.pi * first + (1 - self.pi) * second).sum()


class BayesianLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.empty(outputs, inputs).uniform_(-0.2, 0.2))
        self.rho = nn.Parameter(torch.empty(outputs, inputs).uniform_(-5, -4))
        self.weight, self.prior = Gaussian(self.mu, self.rho), Mixture(0.5, 1.0, 0.1)
        self.log_prior: Any = 0
        self.log_posterior: Any = 0

    def forward(self, x: Tensor, sample: bool = False) -> Tensor:
        if not (self.training or sample):
            self.log_prior, self.log_posterior = 0, 0
            return F.linear(x, self.weight.mu)
        weight = self.weight.sample()
        self.log_prior, self.log_posterior = self.prior.log_prob(weight), self.weight.log_prob(weight)
        return F.linear(x, weight)


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.layers = nn.ModuleList([BayesianLinear(4, 10), BayesianLinear(10, 3)])
        self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=args.lr)
        data = torch.randn(48, 4)
        self.loader = DataLoader(TensorDataset(data, (data.sum(1) > 0).long()), batch_size=args.batch_size)
        self.history: list[float] = []

    def predict(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.layers[0](x, sample=True))
        return F.log_softmax(self.layers[1](hidden, sample=True), dim=1)

    def step(self, number: int, x: Tensor, y: Tensor) -> str:
        self.optimizer.zero_grad()
        outputs = torch.zeros(self.args.samples, len(x), 3)
        bounds = torch.zeros(self.args.samples)
        for k in range(self.args.samples):
            outputs[k] = self.predict(x)
            bounds[k] = sum(one.log_posterior - one.log_prior for one in self.layers)
        loss = bounds.mean() / len(self.loader) + F.nll_loss(outputs.mean(0), y, reduction="sum")
        loss.backward()
        self.optimizer.step()
        self.history.append(loss.item())
        if (number + 1) % len(self.loader) == 0:
            return f"{number // len(self.loader)}: {loss.item():.4f} of {len(self.loader.dataset)}"  # type: ignore[arg-type]
        return ""


def make() -> Any:
    trainer = Trainer(argparse.Namespace(lr=1e-2, samples=2, batch_size=16))
    batches = [tuple(one) for _ in range(12) for one in trainer.loader]
    calls = [(number, x, y) for number, (x, y) in enumerate(batches)]
    return trainer.step, calls, lambda: (trainer.layers, trainer.history)

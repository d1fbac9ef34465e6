"""An evolution strategy: a population of perturbed copies of a policy plays a cart with a pole, rewards become ranks,
and the parameters move along the weighted noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Pole:
    def __init__(self, rng: np.random.Generator) -> None:
        self.state = rng.uniform(-0.05, 0.05, 4)

    def step(self, action: int) -> tuple[np.ndarray, bool]:
        x, speed, angle, turn = self.state
        force = 10.0 if action else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        inner = (force + 0.05 * turn**2 * sin) / 1.1
        bend = (9.8 * sin - cos * inner) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        push = inner - 0.05 * bend * cos / 1.1
        self.state = np.array([x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend])
        return self.state, bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21)


class Policy(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def centred_ranks(rewards: np.ndarray) -> np.ndarray:
    ranks = np.empty(len(rewards), dtype=np.float32)
    ranks[rewards.argsort(kind="stable")] = np.arange(len(rewards), dtype=np.float32)
    return ranks / (len(rewards) - 1) - 0.5


class Evolution:
    def __init__(self, population: int = 8, sigma: float = 0.3, lr: float = 0.1, longest: int = 12) -> None:
        self.policy, self.trial = Policy(), Policy()
        self.population, self.sigma, self.longest = population, sigma, longest
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.rng = np.random.default_rng(0)
        self.best, self.history = -np.inf, []  # type: ignore[var-annotated]

    @torch.no_grad()
    def rollout(self, weights: Tensor) -> float:
        vector_to_parameters(weights, self.trial.parameters())
        pole, total = Pole(self.rng), 0.0
        seen = pole.state
        for _ in range(self.longest):
            action = self.trial(torch.as_tensor(seen, dtype=torch.float32)).argmax().item()
            seen, over = pole.step(int(action))
            total += 1.0 - abs(seen[2])
            if over:
                break
        return total

    def generation(self) -> float:
        centre = parameters_to_vector(self.policy.parameters()).detach()
        noise = torch.randn(self.population // 2, centre.numel())
        noise = torch.cat([noise, -noise])
        rewards = np.array([self.rollout(centre + self.sigma * one) for one in noise])
        shaped = torch.from_numpy(centred_ranks(rewards))
        gradient = -(shaped[:, None] * noise).mean(0) / self.sigma
        vector_to_parameters_grad(gradient, self.policy)
        self.optimizer.step()
        self.best = max(self.best, float(rewards.max()))
        self.history.append(float(rewards.mean()))
        return self.history[-1]


def vector_to_parameters_grad(vector: Tensor, model: nn.Module) -> None:
    pointer = 0
    for param in model.parameters():
        count = param.numel()
        param.grad = vector[pointer : pointer + count].view_as(param).clone()
        pointer += count


def make() -> Any:
    evolution = Evolution()
    return evolution.generation, [()] * 30, lambda: (evolution.policy, evolution.best, evolution.history)

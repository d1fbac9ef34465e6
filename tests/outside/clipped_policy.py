"""A clipped policy update in the style of PPO scripts: epochs of shuffled mini-batches, an early stop by the divergence
of policies, then the explained variance by NumPy, of arrays that share memory with the tensors of the rollout."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def layer(given: int, out: int, gain: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(given, out)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.constant_(made.bias, 0.0)
    return made


class Agent(nn.Module):
    def __init__(self, seen: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(layer(seen, 16), nn.Tanh(), layer(16, 1, 1.0))
        self.actor = nn.Sequential(layer(seen, 16), nn.Tanh(), layer(16, actions, 0.01))

    def value(self, x: Tensor) -> Tensor:
        return self.critic(x).view(-1)

    def judge(self, x: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chosen = torch.distributions.Categorical(logits=self.actor(x))
        return chosen.log_prob(actions), chosen.entropy(), self.value(x)


class Learner:
    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.agent = Agent(4, 2)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=options.lr, eps=1e-5)
        self.returns, self.values = torch.zeros(options.batch), torch.zeros(options.batch)

    def minibatch(self, x: Tensor, actions: Tensor, logs: Tensor, gains: Tensor, returns: Tensor) -> dict[str, float]:
        new, entropy, value = self.agent.judge(x, actions)
        ratio = (new - logs).exp()
        with torch.no_grad():
            divergence = ((ratio - 1) - ratio.log()).mean()
            clipped = ((ratio - 1.0).abs() > self.options.clip).float().mean()
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        bounded = torch.clamp(ratio, 1 - self.options.clip, 1 + self.options.clip)
        policy = torch.max(-gains * ratio, -gains * bounded).mean()
        loss = policy - 0.01 * entropy.mean() + 0.5 * (0.5 * ((value - returns) ** 2).mean())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
        self.optimizer.step()
        return {"loss": loss.item(), "divergence": divergence.item(), "clipped": clipped.item()}

    def step(self, update: int, x: Tensor, actions: Tensor, logs: Tensor, gains: Tensor) -> tuple[Any, ...]:
        options = self.options
        self.optimizer.param_groups[0]["lr"] = options.lr * (1.0 - update / options.updates)
        with torch.no_grad():
            self.values.copy_(self.agent.value(x))
            self.returns.copy_(gains + self.values)
        order, measured = np.arange(options.batch), []
        for _ in range(options.epochs):
            np.random.shuffle(order)
            for start in range(0, options.batch, options.minibatch):
                rows = order[start : start + options.minibatch]
                measured.append(self.minibatch(x[rows], actions[rows], logs[rows], gains[rows], self.returns[rows]))
            if measured[-1]["divergence"] > options.most:
                break
        guessed, true = self.values.numpy(), self.returns.numpy()
        spread = np.var(true)
        explained = np.nan if spread == 0 else 1 - np.var(true - guessed) / spread
        return measured[-1]["loss"], float(np.mean([one["clipped"] for one in measured])), float(explained)


def make() -> Any:
    options = Namespace(lr=2.5e-3, clip=0.2, updates=40, batch=32, minibatch=16, epochs=2, most=0.5)
    learner = Learner(options)
    np.random.seed(0)
    calls = [
        (k, torch.randn(32, 4), torch.randint(0, 2, (32,)), torch.full((32,), -0.69), torch.randn(32))
        for k in range(30)
    ]
    return learner.step, calls, lambda: learner.agent

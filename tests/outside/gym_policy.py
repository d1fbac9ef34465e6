"""Proximal policy optimisation on a gymnasium environment: the step plays some frames, computes advantages in NumPy,
and trains for some epochs of shuffled mini-batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical


@dataclass
class Rollout:
    seen: list[np.ndarray] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    over: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rewards)


class Agent(nn.Module):
    def __init__(self, inputs: int, actions: int, width: int = 32) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, actions))
        self.value = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 1))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)

    def act(self, seen: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        chances = Categorical(logits=self.policy(seen))
        if action is None:
            action = chances.sample()
        return action, chances.log_prob(action), chances.entropy(), self.value(seen).squeeze(-1)


class Learner:
    gamma, decay, clip = 0.99, 0.95, 0.2

    def __init__(self) -> None:
        self.env = gymnasium.make("CartPole-v1")
        self.seen, _ = self.env.reset(seed=1)
        self.agent = Agent(4, 2)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=3e-4, eps=1e-5)
        self.random = np.random.default_rng(3)
        self.lengths: list[int] = []
        self.length = 0

    def play(self, frames: int) -> tuple[Rollout, float]:
        rollout = Rollout()
        for _ in range(frames):
            with torch.no_grad():
                action, log_prob, _, value = self.agent.act(torch.as_tensor(self.seen).unsqueeze(0))
            following, reward, ended, cut, _ = self.env.step(int(action))
            rollout.seen.append(self.seen)
            rollout.actions.append(int(action))
            rollout.log_probs.append(float(log_prob))
            rollout.values.append(float(value))
            rollout.rewards.append(float(reward))
            rollout.over.append(ended or cut)
            self.length += 1
            self.seen = following
            if ended or cut:
                self.lengths.append(self.length)
                self.length = 0
                self.seen, _ = self.env.reset()
        with torch.no_grad():
            last = float(self.agent.value(torch.as_tensor(self.seen)))
        return rollout, last

    def advantages(self, rollout: Rollout, last: float) -> np.ndarray:
        out, running, following = np.zeros(len(rollout), dtype=np.float32), 0.0, last
        for k in reversed(range(len(rollout))):
            alive = 1.0 - rollout.over[k]
            delta = rollout.rewards[k] + self.gamma * following * alive - rollout.values[k]
            running = delta + self.gamma * self.decay * alive * running
            out[k], following = running, rollout.values[k]
        return out

    def update(self, seen: Tensor, actions: Tensor, old: Tensor, gains: Tensor, returns: Tensor) -> float:
        _, log_probs, entropy, values = self.agent.act(seen, actions)
        ratio = (log_probs - old).exp()
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        policy = -torch.min(gains * ratio, gains * ratio.clamp(1 - self.clip, 1 + self.clip)).mean()
        loss = policy + 0.5 * (values - returns).square().mean() - 0.01 * entropy.mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
        self.optimizer.step()
        return loss.item()

    def step(self) -> dict[str, float]:
        rollout, last = self.play(64)
        gains = self.advantages(rollout, last)
        returns = gains + np.array(rollout.values, dtype=np.float32)
        seen, actions = torch.from_numpy(np.stack(rollout.seen)), torch.tensor(rollout.actions)
        old, losses = torch.tensor(rollout.log_probs), []
        for _ in range(2):
            order = self.random.permutation(len(rollout))
            for begin in range(0, len(order), 32):
                rows = torch.from_numpy(order[begin : begin + 32])
                chosen = torch.from_numpy(gains)[rows], torch.from_numpy(returns)[rows]
                losses.append(self.update(seen[rows], actions[rows], old[rows], *chosen))
        explained = 1 - np.var(returns - np.array(rollout.values)) / (np.var(returns) + 1e-8)
        return {"loss": float(np.mean(losses)), "explained": float(explained), "episodes": len(self.lengths)}


def make() -> Any:
    learner = Learner()
    return learner.step, [()] * 30, lambda: (learner.agent, learner.lengths)

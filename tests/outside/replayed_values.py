"""A value learner with a replay buffer of NumPy arrays, a target network, and exploration by chance: each step plays,
remembers and trains."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class Transition(NamedTuple):
    seen: np.ndarray
    action: int
    reward: float
    after: np.ndarray
    over: bool


class Corridor:
    """An environment: walk along a line to its end."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.at, self.time = 0.0, 0

    def observe(self) -> np.ndarray:
        return np.array([self.at, self.time / 20, self.random.normal(), 1.0], dtype=np.float32)

    def act(self, action: int) -> tuple[np.ndarray, float, bool]:
        self.at += (0.3 if action else -0.2) + 0.05 * self.random.normal()
        self.time += 1
        over = abs(self.at) > 1.0 or self.time >= 20
        reward = 1.0 if self.at > 1.0 else -0.01
        if over:
            self.at, self.time = 0.0, 0
        return self.observe(), float(reward), bool(over)


class Learner:
    def __init__(self) -> None:
        def network() -> nn.Sequential:
            return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

        self.online, self.target = network(), network()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.RMSprop(self.online.parameters(), lr=2e-3)
        self.memory: deque[Transition] = deque(maxlen=200)
        self.environment, self.seen = Corridor(1), np.zeros(4, dtype=np.float32)
        self.epsilon, self.random = 0.9, random.Random(2)

    @torch.no_grad()
    def choose(self, seen: np.ndarray) -> int:
        if self.random.random() < self.epsilon:
            return self.random.randrange(2)
        return int(self.online(torch.from_numpy(seen)).argmax())

    def batch(self, size: int) -> tuple[Tensor, ...]:
        rows = Transition(*zip(*self.random.sample(list(self.memory), size), strict=True))
        seen, after = torch.from_numpy(np.stack(rows.seen)), torch.from_numpy(np.stack(rows.after))
        return seen, torch.tensor(rows.action), torch.tensor(rows.reward), after, torch.tensor(rows.over)

    def train(self, seen: Tensor, actions: Tensor, rewards: Tensor, after: Tensor, over: Tensor) -> float:
        with torch.no_grad():
            best = self.target(after).max(1).values
            wanted = rewards + 0.95 * best * (~over).float()
        values = self.online(seen).gather(1, actions[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(values, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.online.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        return loss.item()

    def step(self) -> float:
        for _ in range(4):
            action = self.choose(self.seen)
            after, reward, over = self.environment.act(action)
            self.memory.append(Transition(self.seen, action, reward, after, over))
            self.seen = after
        self.epsilon = max(0.1, self.epsilon * 0.98)
        return self.train(*self.batch(min(len(self.memory), 16))) if len(self.memory) >= 16 else 0.0


def make() -> Any:
    learner = Learner()
    return learner.step, [()] * 40, lambda: (learner.online, learner.target)

"""A3C and PPO (JANUS, table 2): reinforcement learning on CartPole, whose physics are written out here with NumPy.

As in the paper the environment is no part of the step: policies play outside of it, and the step trains on what was
played. A3C has a Python loop over episodes of any length up to 20; PPO goes several times through its batch in shuffled
pieces, and stops when the policy has moved too far. Both keep what they monitor on Python objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.papers.base import Batch, Program, program

__all__ = ["CartPole"]

Array = np.ndarray[Any, Any]


class CartPole:
    """Many carts at once, each with a pole to be kept upright (Barto, Sutton and Anderson, 1983)."""

    def __init__(self, random: np.random.Generator, count: int) -> None:
        self.random = random
        self.state = random.uniform(-0.05, 0.05, (count, 4))

    def step(self, actions: Array) -> tuple[Array, Array]:
        """The states before, and which poles fell; those start anew."""
        _, speed, angle, turning = self.state.T
        force = np.where(actions == 1, 10.0, -10.0)
        pushed = (force + 0.05 * turning**2 * np.sin(angle)) / 1.1
        swing = (9.8 * np.sin(angle) - np.cos(angle) * pushed) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        thrust = pushed - 0.05 * swing * np.cos(angle) / 1.1
        before = self.state
        change = np.stack([speed, thrust, turning, swing], 1)
        self.state = before + 0.02 * change
        fell = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        self.state[fell] = self.random.uniform(-0.05, 0.05, (int(fell.sum()), 4))
        return before, fell

    def sensible(self) -> Array:
        """Mostly what keeps the pole up, now and then anything."""
        good = (self.state[:, 2] + 0.3 * self.state[:, 3] > 0).astype(np.int64)
        return np.where(self.random.random(len(good)) < 0.25, self.random.integers(2, size=len(good)), good)


class ActorCritic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.shared = nn.Linear(4, width)
        self.middle = nn.Linear(width, width)
        self.actor = nn.Linear(width, 2)
        self.critic = nn.Linear(width, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(self.middle(torch.tanh(self.shared(states))))
        return F.log_softmax(self.actor(x), -1), self.critic(x).squeeze(-1)


class A3CWorker:
    """One worker: its gradients come from its copy of the model, and go into the shared one."""

    def __init__(self, width: int) -> None:
        self.shared = ActorCritic(width)
        self.local = ActorCritic(width)
        self.optimizer = torch.optim.RMSprop(self.shared.parameters(), lr=1e-3, alpha=0.99, eps=0.1)
        self.episodes = 0
        self.scores: deque[float] = deque(maxlen=100)
        self.running = 0.0

    def train(self, states: Tensor, actions: list[int], rewards: list[float], done: bool) -> float:
        self.local.load_state_dict(self.shared.state_dict())
        policy_loss = torch.zeros(())
        value_loss = torch.zeros(())
        entropy = torch.zeros(())
        target = torch.zeros(())
        if not done:
            with torch.no_grad():
                target = self.local(states[-1])[1]
        # From the end of the episode to its beginning.
        for turn in reversed(range(len(rewards))):
            target = rewards[turn] + 0.99 * target
            log_policy, value = self.local(states[turn])
            advantage = target - value
            policy_loss = policy_loss - log_policy[actions[turn]] * advantage.detach()
            value_loss = value_loss + advantage.square()
            entropy = entropy - (log_policy.exp() * log_policy).sum()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        self.local.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.local.parameters(), 40.0)
        for own, shared in zip(self.local.parameters(), self.shared.parameters(), strict=True):
            shared.grad = own.grad
        self.optimizer.step()
        self.running += sum(rewards)
        if done:
            self.episodes += 1
            self.scores.append(self.running)
            self.running = 0.0
        return loss.item()


@program(
    "a3c",
    paper="JANUS",
    dynamic="a loop over episodes of any length, branches on the end of a game, scores kept in Python",
    size="CartPole, up to 20 moves (the paper's), 2 layers of 64",
    period=20,
)
def a3c(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    longest = 4 if small else 20
    worker = A3CWorker(4 if small else 64)

    def batches() -> Iterator[Batch]:
        cart = CartPole(random, 1)
        while True:
            states, actions, fell = [], [], False
            while len(states) < longest and not fell:
                action = cart.sensible()
                before, ended = cart.step(action)
                states.append(before[0])
                actions.append(int(action[0]))
                fell = bool(ended[0])
            states.append(cart.state[0])
            yield torch.tensor(np.array(states), dtype=torch.float32), actions, [1.0] * len(actions), fell

    return Program(worker.train, batches(), worker)


class PPO:
    """Schulman et al., 2017, with a limit to how far the policy moves in one call."""

    def __init__(self, width: int, epochs: int, pieces: int, limit: float) -> None:
        self.model = ActorCritic(width)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2.5e-4, eps=1e-5)
        self.epochs, self.pieces, self.limit = epochs, pieces, limit
        self.updates = 0
        self.clipped: list[float] = []

    def step(self, states: Tensor, actions: Tensor, rewards: Tensor, alive: Tensor) -> float:
        with torch.no_grad():
            before, values = self.model(states)
            chances = before[:-1].gather(-1, actions[..., None]).squeeze(-1)
            # Generalised advantages, from the last move to the first.
            advantages = torch.zeros_like(rewards)
            running = torch.zeros_like(rewards[0])
            for turn in reversed(range(rewards.shape[0])):
                error = rewards[turn] + 0.99 * values[turn + 1] * alive[turn] - values[turn]
                running = error + 0.99 * 0.95 * alive[turn] * running
                advantages[turn] = running
            targets = (advantages + values[:-1]).flatten()
            advantages = advantages.flatten()
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        states, actions, chances = states[:-1].flatten(0, 1), actions.flatten(), chances.flatten()
        count = len(targets) // self.pieces
        total = 0.0
        for _ in range(self.epochs):
            order = torch.randperm(len(targets))
            for piece in range(self.pieces):
                picked = order[piece * count : (piece + 1) * count]
                now, value = self.model(states[picked])
                ratio = (now.gather(1, actions[picked, None]).squeeze(1) - chances[picked]).exp()
                gain = torch.min(ratio * advantages[picked], ratio.clamp(0.8, 1.2) * advantages[picked]).mean()
                entropy = -(now.exp() * now).sum(1).mean()
                loss = F.mse_loss(value, targets[picked]) - gain - 0.01 * entropy
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()
                self.updates += 1
                total += loss.item()
            with torch.no_grad():
                moved = (chances - self.model(states)[0].gather(1, actions[:, None]).squeeze(1)).mean()
            if moved > self.limit:
                break
        self.clipped.append(((ratio - 1).abs() > 0.2).float().mean().item())
        return total


@program(
    "ppo",
    paper="JANUS",
    dynamic="loops over epochs and shuffled pieces, an early stop that a tensor decides, counts kept in Python",
    size="CartPole (the paper: Pong), 16 carts x 16 moves = 256 (the paper's), 2 epochs of 4 pieces, 2 layers of 64",
)
def ppo(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    carts, moves = (4, 3) if small else (16, 16)
    learner = PPO(4 if small else 64, 2, 2 if small else 4, 0.0005)

    def batches() -> Iterator[Batch]:
        game = CartPole(random, carts)
        while True:
            states, actions, alive = [], [], []
            for _ in range(moves):
                action = game.sensible()
                before, fell = game.step(action)
                states.append(before)
                actions.append(action)
                alive.append(1.0 - fell)
            states.append(game.state)
            kept = torch.tensor(np.array(alive), dtype=torch.float32)
            yield torch.tensor(np.array(states), dtype=torch.float32), torch.tensor(np.array(actions)), kept, kept

    return Program(learner.step, batches(), learner)

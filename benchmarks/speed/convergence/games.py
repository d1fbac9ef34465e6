"""PPO (Schulman et al., 2017) on gymnasium's CartPole: Python plays, policy and learning are torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.convergence.base import Jit, Training, training

__all__: list[str] = []


class ActorCritic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)
        )
        self.critic = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)
        nn.init.orthogonal_(self.actor[-1].weight, 0.01)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return F.log_softmax(self.actor(states), -1), self.critic(states).squeeze(-1)


@training(
    "ppo",
    about="8 games of CartPole, 64 moves of each, 4 epochs of 4 pieces, two networks of 2 x 64, an early stop, "
    "rates that fall",
    metric="mean return of 20 games",
    target=400.0,
    steps=3000,
    every=32,
)
def ppo(jit: Jit, seed: int, small: bool = False) -> Training:
    count, moves, width = (2, 8, 8) if small else (8, 64, 64)
    games = gymnasium.make_vec(
        "CartPole-v1",
        num_envs=count,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
    )
    model = ActorCritic(width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-5)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / 3000))
    returns: deque[float] = deque(maxlen=20)
    progress = {"updates": 0, "stopped": 0, "clipped": 0.0}

    @jit
    def act(states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            chances, values = model(states)
            actions = torch.multinomial(chances.exp(), 1)
        return actions.squeeze(1), chances.gather(1, actions).squeeze(1), values

    @jit
    def advantages(rewards: Tensor, values: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
        found, running = [], torch.zeros(rewards.shape[1])
        for move in reversed(range(rewards.shape[0])):
            error = rewards[move] + 0.99 * values[move + 1] * alive[move] - values[move]
            running = error + 0.99 * 0.95 * alive[move] * running
            found.append(running)
        gains = torch.stack(found[::-1])
        return gains, gains + values[:-1]

    @jit
    def learn(states: Tensor, actions: Tensor, before: Tensor, gains: Tensor, targets: Tensor) -> tuple[float, float]:
        chances, values = model(states)
        change = chances.gather(1, actions[:, None]).squeeze(1) - before
        ratio = change.exp()
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        gain = torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
        entropy = -(chances.exp() * chances).sum(1).mean()
        loss = 0.5 * F.mse_loss(values, targets) - gain - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        progress["updates"] += 1
        progress["clipped"] = ((ratio - 1).abs() > 0.2).float().mean().item()
        return loss.item(), (ratio - 1 - change).mean().item()

    def losses() -> Iterator[float]:
        seen, _ = games.reset(seed=seed)
        scores = np.zeros(count)
        while True:
            kept = []
            for _ in range(moves):
                states = torch.from_numpy(seen.copy())
                actions, chances, values = act(states)
                seen, rewards, fell, late, _ = games.step(actions.numpy())
                scores += rewards
                over = fell | late
                returns.extend(scores[over].tolist())
                scores[over] = 0
                kept.append(
                    (
                        states,
                        actions,
                        chances,
                        torch.tensor(rewards, dtype=torch.float32),
                        torch.tensor(1.0 - over).float(),
                        values,
                    )
                )
            states, actions, chances, rewards, alive, values = (torch.stack(part) for part in zip(*kept, strict=True))
            last = act(torch.from_numpy(seen.copy()))[2]
            gains, targets = advantages(rewards, torch.cat([values, last[None]]), alive)
            batch = [part.flatten(0, 1) for part in (states, actions, chances, gains, targets)]
            for _ in range(4):
                moved = 0.0
                for piece in torch.randperm(count * moves).chunk(4):
                    loss, moved = learn(*(part[piece] for part in batch))
                    rate.step()
                    yield loss
                if moved > 0.03:
                    progress["stopped"] += 1
                    break

    def score() -> float:
        return sum(returns) / len(returns) if returns else 0.0

    return Training(losses(), score, (model, optimizer, rate, returns, progress))

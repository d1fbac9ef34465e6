"""The agents written by hand as graphs: an episode as whole tensors, an epoch as one graph."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.speed.papers.base import Program
from benchmarks.speed.papers.symbolic import Graphs, Kept, Net, Part, Step, clip, float_of

__all__ = ["a3c", "ppo"]


def a3c(program: Program) -> Step:
    worker = program.state
    graphs = Graphs([Net(worker.shared, worker.optimizer)])

    def train(
        parts: list[Part], kept: Kept, states: Tensor, actions: Tensor, rewards: Tensor, alive: Tensor
    ) -> list[Tensor]:
        (net,) = parts
        count = rewards.shape[0]
        turns = torch.arange(count)
        later = turns[None, :] - turns[:, None]  # how much later the reward of a column is than the move of a row
        discounts = torch.where(later >= 0, 0.99 ** later.clamp(min=0).float(), 0.0)
        last = net.without_gradient(states[-1])[1] * alive
        targets = (discounts * rewards).sum(1) + 0.99 ** (count - turns).float() * last
        log_policy, value = net(states[:-1])
        advantage = targets - value
        policy_loss = -(log_policy.gather(1, actions[:, None]).squeeze(1) * advantage.detach()).sum()
        entropy = -(log_policy.exp() * log_policy).sum()
        loss = policy_loss + 0.5 * advantage.square().sum() - 0.01 * entropy
        net.update(clip(net.gradients(loss), 40.0))
        return [loss]

    def step(states: Tensor, actions: list[int], rewards: list[float], done: bool) -> float:
        given = states, torch.tensor(actions), torch.tensor(rewards), torch.tensor(0.0 if done else 1.0)
        # Episodes of one move have a graph of their own: a size of one is another matter to broadcasting.
        opened = {0: 0, 1: 0, 2: 0} if len(rewards) > 1 else {}
        loss = float_of(graphs.run(train, *given, opened=opened))
        worker.running += sum(rewards)
        if done:
            worker.episodes += 1
            worker.scores.append(worker.running)
            worker.running = 0.0
        return loss

    return step


def ppo(program: Program) -> Step:
    learner = program.state
    graphs = Graphs([Net(learner.model, learner.optimizer)])

    def epoch(
        parts: list[Part],
        kept: Kept,
        states: Tensor,
        actions: Tensor,
        chances: Tensor,
        advantages: Tensor,
        targets: Tensor,
    ) -> list[Tensor]:
        (net,) = parts
        order = torch.randperm(len(targets))
        total = torch.zeros(())
        ratio = torch.zeros(())
        for picked in order.split(len(targets) // learner.pieces):
            now, value = net(states[picked])
            ratio = (now.gather(1, actions[picked, None]).squeeze(1) - chances[picked]).exp()
            gain = torch.min(ratio * advantages[picked], ratio.clamp(0.8, 1.2) * advantages[picked]).mean()
            entropy = -(now.exp() * now).sum(1).mean()
            loss = F.mse_loss(value, targets[picked]) - gain - 0.01 * entropy
            net.update(clip(net.gradients(loss), 0.5))
            net.renew()
            total = total + loss.detach()
        moved = (chances - net.without_gradient(states)[0].gather(1, actions[:, None]).squeeze(1)).mean()
        return [total, moved, ((ratio.detach() - 1).abs() > 0.2).float().mean()]

    def first(
        parts: list[Part], kept: Kept, states: Tensor, actions: Tensor, rewards: Tensor, alive: Tensor
    ) -> list[Tensor]:
        before, values = parts[0].without_gradient(states)
        chances = before[:-1].gather(-1, actions[..., None]).squeeze(-1)
        errors = rewards + 0.99 * values[1:] * alive - values[:-1]
        running = torch.zeros_like(rewards[0])
        found = []
        for turn in reversed(range(rewards.shape[0])):
            running = errors[turn] + 0.99 * 0.95 * alive[turn] * running
            found.append(running)
        advantages = torch.stack(found[::-1])
        targets = (advantages + values[:-1]).flatten()
        advantages = advantages.flatten()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        given = states[:-1].flatten(0, 1), actions.flatten(), chances.flatten(), advantages, targets
        return [*epoch(parts, kept, *given), *given]

    def step(states: Tensor, actions: Tensor, rewards: Tensor, alive: Tensor) -> float:
        total, moved, clipped, *given = graphs.run(first, states, actions, rewards, alive)
        loss = total.item()
        for _ in range(learner.epochs - 1):
            if moved > learner.limit:
                break
            total, moved, clipped = graphs.run(epoch, *given)
            loss += total.item()
        learner.clipped.append(clipped.item())
        return loss

    return step

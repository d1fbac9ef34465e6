"""Actor-critic: saved log probabilities on the policy, returns of an episode, one update for each episode."""

import argparse
from collections import namedtuple

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.distributions import Categorical

SavedAction = namedtuple("SavedAction", ["log_prob", "value"])


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 64)
        self.action_head = nn.Linear(64, 2)
        self.value_head = nn.Linear(64, 1)
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


parser = argparse.ArgumentParser()
parser.add_argument("--episodes", type=int, default=300)
args = parser.parse_args()
env = gym.make("CartPole-v1")
env.reset(seed=0)
torch.manual_seed(0)
model = Policy()
optimizer = optim.Adam(model.parameters(), lr=3e-3)


def select_action(state):
    probs, value = model(torch.from_numpy(state).float())
    m = Categorical(probs)
    action = m.sample()
    model.saved_actions.append(SavedAction(m.log_prob(action), value))
    return action.item()


def finish_episode():
    R = 0
    policy_losses, value_losses, returns = [], [], []
    for r in model.rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    for (log_prob, value), R in zip(model.saved_actions, returns):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    del model.rewards[:]
    del model.saved_actions[:]


def main():
    running = 10
    for episode in range(args.episodes):
        state, _ = env.reset()
        ep_reward = 0
        for _t in range(1, 500):
            action = select_action(state)
            state, reward, done, _, _ = env.step(action)
            model.rewards.append(reward)
            ep_reward += reward
            if done:
                break
        running = 0.05 * ep_reward + 0.95 * running
        finish_episode()
        if episode % 10 == 0:
            print(f"Episode {episode}\tLast reward: {ep_reward:.2f}\tAverage reward: {running:.2f}")


if __name__ == "__main__":
    main()

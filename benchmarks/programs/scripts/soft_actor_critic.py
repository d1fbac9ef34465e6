"""Soft actor-critic on a pendulum: twin critics, a temperature that is learnt, a replay buffer, delayed updates."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class Pendulum:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.th, self.thd, self.t = self.rng.uniform(-np.pi, np.pi), self.rng.uniform(-1, 1), 0
        return self._obs()

    def _obs(self):
        return np.array([np.cos(self.th), np.sin(self.th), self.thd], dtype=np.float32)

    def step(self, u):
        u = float(np.clip(u[0], -2, 2))
        norm = ((self.th + np.pi) % (2 * np.pi)) - np.pi
        cost = norm**2 + 0.1 * self.thd**2 + 0.001 * u**2
        self.thd = np.clip(self.thd + (15 * np.sin(self.th) + 3 * u) * 0.05, -8, 8)
        self.th += self.thd * 0.05
        self.t += 1
        return self._obs(), -cost, False, self.t >= 200


class ReplayBuffer:
    def __init__(self, size, obs_dim, act_dim):
        self.obs, self.next = np.zeros((size, obs_dim), np.float32), np.zeros((size, obs_dim), np.float32)
        self.act, self.rew, self.done = (
            np.zeros((size, act_dim), np.float32),
            np.zeros(size, np.float32),
            np.zeros(size, np.float32),
        )
        self.ptr = self.n = 0
        self.size = size

    def add(self, o, a, r, o2, d):
        i = self.ptr
        self.obs[i], self.act[i], self.rew[i], self.next[i], self.done[i] = o, a, r, o2, d
        self.ptr = (i + 1) % self.size
        self.n = min(self.n + 1, self.size)

    def sample(self, n):
        idx = np.random.randint(0, self.n, n)
        return tuple(torch.as_tensor(x[idx]) for x in (self.obs, self.act, self.rew, self.next, self.done))


class SoftQNetwork(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x, a):
        x = torch.cat([x, a], 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


LOG_STD_MAX, LOG_STD_MIN = 2, -5


class Actor(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, width), nn.Linear(width, width)
        self.fc_mean, self.fc_logstd = nn.Linear(width, 1), nn.Linear(width, 1)
        self.register_buffer("action_scale", torch.tensor(2.0))
        self.register_buffer("action_bias", torch.tensor(0.0))

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        mean = self.fc_mean(x)
        log_std = torch.tanh(self.fc_logstd(x))
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)

    def get_action(self, x):
        mean, log_std = self(x)
        std = log_std.exp()
        normal = torch.distributions.Normal(mean, std)
        x_t = normal.rsample()
        y_t = torch.tanh(x_t)
        action = y_t * self.action_scale + self.action_bias
        log_prob = normal.log_prob(x_t)
        log_prob -= torch.log(self.action_scale * (1 - y_t.pow(2)) + 1e-6)
        log_prob = log_prob.sum(1, keepdim=True)
        return action, log_prob, torch.tanh(mean) * self.action_scale + self.action_bias


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--total-timesteps", type=int, default=4000)
    p.add_argument("--learning-starts", type=int, default=500)
    p.add_argument("--policy-frequency", type=int, default=2)
    p.add_argument("--target-network-frequency", type=int, default=1)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--gamma", type=float, default=0.99)
    p.add_argument("--tau", type=float, default=0.005)
    p.add_argument("--alpha", type=float, default=0.2)
    p.add_argument("--autotune", type=bool, default=True)
    args = p.parse_args()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    env = Pendulum(1)
    actor = Actor(64)
    qf1, qf2, qf1_target, qf2_target = [SoftQNetwork(64) for _ in range(4)]
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    q_optimizer = optim.Adam(list(qf1.parameters()) + list(qf2.parameters()), lr=1e-3)
    actor_optimizer = optim.Adam(list(actor.parameters()), lr=3e-4)
    if args.autotune:
        target_entropy = -1.0
        log_alpha = torch.zeros(1, requires_grad=True)
        alpha = log_alpha.exp().item()
        a_optimizer = optim.Adam([log_alpha], lr=1e-3)
    else:
        alpha = args.alpha
    rb = ReplayBuffer(10000, 3, 1)
    obs = env.reset()
    episode_return = 0.0
    for global_step in range(args.total_timesteps):
        if global_step < args.learning_starts:
            actions = np.random.uniform(-2, 2, 1).astype(np.float32)
        else:
            actions, _, _ = actor.get_action(torch.Tensor(obs[None]))
            actions = actions.detach().cpu().numpy()[0]
        next_obs, reward, terminated, truncated = env.step(actions)
        episode_return += reward
        rb.add(obs, actions, reward, next_obs, terminated)
        obs = next_obs
        if terminated or truncated:
            print(f"global_step={global_step}, episodic_return={episode_return:.3f}")
            obs, episode_return = env.reset(), 0.0
        if global_step > args.learning_starts:
            b_obs, b_act, b_rew, b_next, b_done = rb.sample(args.batch_size)
            with torch.no_grad():
                next_actions, next_log_pi, _ = actor.get_action(b_next)
                q1n = qf1_target(b_next, next_actions)
                q2n = qf2_target(b_next, next_actions)
                min_q = torch.min(q1n, q2n) - alpha * next_log_pi
                next_q = b_rew.flatten() + (1 - b_done.flatten()) * args.gamma * (min_q).view(-1)
            qf1_a = qf1(b_obs, b_act).view(-1)
            qf2_a = qf2(b_obs, b_act).view(-1)
            qf1_loss = F.mse_loss(qf1_a, next_q)
            qf2_loss = F.mse_loss(qf2_a, next_q)
            qf_loss = qf1_loss + qf2_loss
            q_optimizer.zero_grad()
            qf_loss.backward()
            q_optimizer.step()
            if global_step % args.policy_frequency == 0:
                for _ in range(args.policy_frequency):
                    pi, log_pi, _ = actor.get_action(b_obs)
                    min_qf_pi = torch.min(qf1(b_obs, pi), qf2(b_obs, pi))
                    actor_loss = ((alpha * log_pi) - min_qf_pi).mean()
                    actor_optimizer.zero_grad()
                    actor_loss.backward()
                    actor_optimizer.step()
                    if args.autotune:
                        with torch.no_grad():
                            _, log_pi, _ = actor.get_action(b_obs)
                        alpha_loss = (-log_alpha.exp() * (log_pi + target_entropy)).mean()
                        a_optimizer.zero_grad()
                        alpha_loss.backward()
                        a_optimizer.step()
                        alpha = log_alpha.exp().item()
            if global_step % args.target_network_frequency == 0:
                for param, target_param in zip(qf1.parameters(), qf1_target.parameters()):
                    target_param.data.copy_(args.tau * param.data + (1 - args.tau) * target_param.data)
                for param, target_param in zip(qf2.parameters(), qf2_target.parameters()):
                    target_param.data.copy_(args.tau * param.data + (1 - args.tau) * target_param.data)
            if global_step % 100 == 0:
                losses = f"loss {qf_loss.item() / 2.0:.5f} actor {actor_loss.item():.5f}"
                print(f"{global_step} qf1 {qf1_a.mean().item():.4f} {losses} alpha {alpha:.5f}")

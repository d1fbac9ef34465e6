"""Deep Q-learning on a small world: replay memory of named tuples, a target network, an epsilon that falls."""

import argparse
import random
from collections import deque, namedtuple

import torch
import torch.nn.functional as F
from torch import nn, optim

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, size):
        return random.sample(self.memory, size)

    def __len__(self):
        return len(self.memory)


class World:
    """A point that is to stay near the middle."""

    def reset(self):
        self.x, self.v, self.t = random.uniform(-1, 1), 0.0, 0
        return [self.x, self.v]

    def step(self, action):
        self.t += 1
        self.v += 0.05 if action else -0.05
        self.x += self.v
        return [self.x, self.v], 1 - abs(self.x), abs(self.x) > 2, self.t >= 60


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, x):
        return self.layer3(F.relu(self.layer2(F.relu(self.layer1(x)))))


parser = argparse.ArgumentParser()
parser.add_argument("--episodes", type=int, default=250)
options = parser.parse_args()
torch.manual_seed(0)
random.seed(0)
BATCH_SIZE, GAMMA, TAU = 64, 0.99, 0.005
policy_net, target_net = DQN(), DQN()
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
memory = ReplayMemory(2000)
steps_done = 0


def select_action(state):
    global steps_done
    threshold = max(0.05, 0.9 - steps_done / 1500)
    steps_done += 1
    if random.random() > threshold:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]], dtype=torch.long)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    transitions = memory.sample(BATCH_SIZE)
    batch = Transition(*zip(*transitions))
    mask = torch.tensor(tuple(map(lambda s: s is not None, batch.next_state)), dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_batch = torch.cat(batch.state)
    action_batch = torch.cat(batch.action)
    reward_batch = torch.cat(batch.reward)
    values = policy_net(state_batch).gather(1, action_batch)
    next_values = torch.zeros(BATCH_SIZE)
    with torch.no_grad():
        next_values[mask] = target_net(non_final_next_states).max(1).values
    expected = (next_values * GAMMA) + reward_batch
    loss = nn.SmoothL1Loss()(values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


world = World()
for episode in range(options.episodes):
    state = torch.tensor([world.reset()], dtype=torch.float32)
    total = 0.0
    while True:
        action = select_action(state)
        observation, reward, terminated, truncated = world.step(action.item())
        total += reward
        reward = torch.tensor([reward])
        next_state = None if terminated else torch.tensor([observation], dtype=torch.float32)
        memory.push(state, action, next_state, reward)
        state = next_state
        optimize_model()
        target_state, policy_state = target_net.state_dict(), policy_net.state_dict()
        for key in policy_state:
            target_state[key] = policy_state[key] * TAU + target_state[key] * (1 - TAU)
        target_net.load_state_dict(target_state)
        if terminated or truncated:
            break
    if episode % 10 == 9:
        print(f"episode {episode}: {total:.6f} in {world.t} steps")

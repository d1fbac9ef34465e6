"""Episodes of any length: distributions made, sampled and asked in iterations, with their argument checks."""

import random

import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Normal

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

CALLS = 16


def episodes(act):
    model = nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step():
        logs, state = [], torch.zeros(4)
        for _ in range(random.randrange(5, 20)):
            log, state = act(model, state)
            logs.append(log)
        loss = -torch.stack(logs).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, [()] * CALLS, state=model)


@program(speculated=12, close=1e-5)
def actions_by_logits():
    def act(model, state):
        chosen = Categorical(logits=model(state))
        action = chosen.sample()
        return chosen.log_prob(action) + 0.01 * chosen.entropy(), torch.tanh(state + action)

    return episodes(act)


@program(speculated=12, close=1e-5)
def actions_by_probabilities():
    def act(model, state):
        chosen = Categorical(torch.softmax(model(torch.randn(4)), -1))
        action = chosen.sample()
        return chosen.log_prob(action), state + action

    return episodes(act)


@program(speculated=12, close=1e-5)
def actions_of_any_size():
    def act(model, state):
        mean, width, _ = model(state).unbind()
        chosen = Normal(mean, width.exp())
        action = chosen.sample()
        return chosen.log_prob(action), torch.tanh(state + action)

    return episodes(act)


@program(speculated=12, close=1e-5)
def coins():
    def act(model, state):
        chosen = Bernoulli(logits=model(state)[0])
        action = chosen.sample()
        return chosen.log_prob(action), torch.tanh(state - action)

    return episodes(act)


@program(speculated=12, close=1e-5)
def turned_where_a_tensor_decides():
    weights = torch.eye(4)

    def act(model, state):
        out = model(state)
        if out.sum() > 0:
            out = weights.mT @ torch.cat([out, out[:1]])
        else:
            out = weights.T @ torch.cat([out * 2, out[:1]])
        return out.sum(), torch.tanh(out.detach() + torch.randn(4))

    return episodes(act)


@program(speculated=12, close=1e-5)
def tours():
    """What the iterations have collected is used twice, and something is fetched behind that, of tensors that
    change."""
    model, seen = nn.Linear(4, 8), torch.zeros(())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step():
        logs, tour, state, gone = [], [], torch.zeros(4), torch.zeros(8, dtype=torch.bool)
        for _ in range(random.randrange(3, 8)):
            chosen = Categorical(logits=model(state).masked_fill(gone, -1e9))
            place = chosen.sample()
            logs.append(chosen.log_prob(place))
            tour.append(place)
            gone = gone.scatter(0, place[None], True)
            state = torch.tanh(state + place)
        length = torch.stack(tour).float().mean()
        loss = (length - 3) * torch.stack(logs).sum()
        seen.add_(length)
        sofar = seen.item()
        seen.mul_(0.5)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return sofar, seen.item(), length.item()

    return Program(step, [()] * CALLS, state=(model, seen))

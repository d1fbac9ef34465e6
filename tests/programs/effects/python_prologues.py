"""Steps whose first statements differ at each call: Python runs those, and the rest is speculated."""

import collections
import copy
import random
import re

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from tests.programs.harness import Call, Program, program

Transition = collections.namedtuple("Transition", "state action next_state reward")
CALLS = 24


def model_and_optimizer(inputs=4, outputs=2):
    model = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(opt, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def transitions(count=60):
    for number in range(count):
        following = None if number % 5 == 0 else torch.randn(1, 4)
        yield Transition(torch.randn(1, 4), torch.tensor([[number % 2]]), following, torch.tensor([float(number % 3)]))


@program(speculated=7, slow=True)
def transitions_of_which_some_are_the_last():
    """The step of PyTorch's tutorial on deep Q-learning."""
    policy, opt = model_and_optimizer()
    target = copy.deepcopy(policy)
    memory = collections.deque(transitions(), maxlen=100)

    def step():
        batch = Transition(*zip(*random.sample(memory, 16)))
        going_on = torch.tensor(tuple(map(lambda s: s is not None, batch.next_state)), dtype=torch.bool)
        following = torch.cat([s for s in batch.next_state if s is not None])
        state, action, reward = torch.cat(batch.state), torch.cat(batch.action), torch.cat(batch.reward)
        values = policy(state).gather(1, action)
        future = torch.zeros(16)
        with torch.no_grad():
            future[going_on] = target(following).max(1).values
        loss = F.smooth_l1_loss(values, (reward + 0.9 * future).unsqueeze(1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(policy.parameters(), 100)
        opt.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), policy.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
        return loss.item()

    return Program(step, [()] * CALLS, state=(policy, target, opt))


@program(speculated=15)
def flags_among_samples():
    model, opt = model_and_optimizer()
    memory = [(np.random.rand(4).astype(np.float32), n % 2, n / 10, n % 3 == 0) for n in range(50)]

    def step():
        states, actions, rewards, done = zip(*random.sample(memory, 12))
        states = torch.tensor(np.array(states))
        targets = torch.tensor(rewards) * (1 - torch.tensor(done, dtype=torch.float32))
        values = model(states).gather(1, torch.tensor(actions).unsqueeze(1)).squeeze(1)
        return train(opt, F.mse_loss(values, targets))

    return Program(step, [()] * CALLS, state=(model, opt))


@program(speculated=14, slow=True)
def sequences_of_any_length_padded():
    model, opt = nn.Embedding(20, 3), None
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(count):
        rows = [[random.randrange(20) for _ in range(random.randrange(1, 9))] for _ in range(4)]
        lengths = torch.tensor([len(row) for row in rows])
        padded = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        mask = torch.arange(padded.shape[1]) < lengths.unsqueeze(1)
        loss = (model(padded).sum(2) * mask).pow(2).sum() / lengths.sum() * count
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, [(1.0 + n,) for n in range(CALLS)], state=(model, opt))


@program(speculated=6)
def a_method_that_keeps_count_and_prints(jit):
    class Trainer:
        def __init__(self):
            self.model, self.opt = model_and_optimizer()
            self.rows, self.count, self.seen = [], 0, collections.Counter()

        def step(self, x, *more, scale=1.0, **named):
            self.count += 1
            chosen = [n for n in range(6) if random.random() < 0.5]
            self.seen.update(chosen)
            print("chosen", chosen, named)
            picked = x[chosen] if chosen else x[:1]
            loss = train(self.opt, self.model(picked).pow(2).mean() * scale)
            self.rows.append((self.count, loss))
            return loss, len(more)

    trainer = Trainer()
    calls = [Call(torch.randn(6, 4), n, scale=0.5, name="it") for n in range(CALLS)]
    return Program(jit(trainer.step), calls, state=(trainer.rows, trainer.seen))


@program(speculated=11)
def a_method_of_its_own(jit):
    class Trainer:
        def __init__(self):
            self.model, self.opt = model_and_optimizer()
            self.count = 0

        def step(self, x):
            self.count += 1
            chosen = [n for n in range(6) if random.random() < 0.5]
            picked = x[chosen] if chosen else x[:1]
            return train(self.opt, self.model(picked).pow(2).mean()), self.count

    trainer = Trainer()
    return Program(jit(trainer.step), [(torch.randn(6, 4),) for _ in range(CALLS)], state=(trainer.model, trainer))


@program(speculated=8)
def errors_in_the_first_statements_and_behind_them():
    model, opt = model_and_optimizer()

    def step(number, x):
        kinds = [random.choice(("a", "b", "c", None)) for _ in range(5)]
        if number % 7 == 6:
            raise ValueError(f"{kinds} in call {number}")
        weight = sum(kind == "a" for kind in kinds) + 1.0
        loss = train(opt, model(x).pow(2).mean() * weight)
        if number % 9 == 8:
            raise KeyError(kinds[0])
        return loss

    return Program(step, [(n, torch.randn(3, 4)) for n in range(40)], state=(model, opt))


@program(speculated=7, slow=True)
def a_variable_of_an_enclosing_function_and_random_tensors():
    model, opt = model_and_optimizer()
    drawn = 0

    def step(x):
        nonlocal drawn
        flips = [random.random() < 0.5 for _ in range(5)]
        drawn += sum(flips)
        noise = torch.stack([torch.randn(4) if flip else torch.zeros(4) for flip in flips])
        again = lambda: noise.sum() + drawn
        return train(opt, model(x + noise).pow(2).mean() + 0.01 * model(torch.rand(5, 4)).mean()), float(again())

    return Program(step, [(torch.randn(5, 4),) for _ in range(CALLS)], state=(model, opt), between=lambda _: drawn)


@program(speculated=0)
def what_differs_comes_after_the_training():
    model, opt = model_and_optimizer()
    log = []

    def step(x):
        loss = train(opt, model(x).pow(2).mean())
        log.append([random.choice((None, "a", True)) for _ in range(6)])
        return loss

    return Program(step, [(torch.randn(3, 4),) for _ in range(CALLS)], state=(model, opt, log))


@program(speculated=16, reported="native code is given the function")
def what_cannot_be_speculated_on_comes_first():
    model, opt = model_and_optimizer()

    def step(x, number):
        text = re.sub("a", lambda found: str(number), "banana")
        return train(opt, model(x).pow(2).mean() * (1 + len(text) / 10))

    return Program(step, [(torch.randn(3, 4), n) for n in range(CALLS)], state=(model, opt))


@program(speculated=3)
def called_by_another_one(jit):
    model, opt = model_and_optimizer()

    def inner(x, flips):
        kinds = [bool(flip) for flip in flips.tolist()]
        rows = x[[n for n, kind in enumerate(kinds) if kind]]
        return train(opt, model(rows).pow(2).sum())

    fast = jit(inner)

    def step(x, flips, number):
        return fast(x, flips) if number < 16 else outer(x, flips)

    @jit
    def outer(x, flips):
        return fast(x, flips) + 1

    calls = [(torch.randn(6, 4), (torch.rand(6) < 0.5).float(), n) for n in range(CALLS)]
    return Program(step, calls, state=(model, opt))

"""Random numbers: after every call torch's, Python's and NumPy's generators are where eager's would be."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


@program()
def dropout_and_noise():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = F.dropout(model(x + 0.1 * torch.randn_like(x)), 0.3).pow(2).sum()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=(model, opt))


@program()
def python_random_kinds():
    def step(x):
        k = random.randint(1, 6)
        return x * k + random.uniform(-1, 1) + random.gauss(0, 1)

    return Program(step, inputs())


@program()
def choice_of_a_scale():
    scales = [0.5, 1.0, 2.0]

    def step(x):
        return x * random.choice(scales)

    return Program(step, inputs())


@program()
def sample_of_indices():
    def step(x):
        rows = torch.tensor(random.sample(range(4), 2))
        return x[rows]

    return Program(step, inputs())


@program()
def numpy_global_generator():
    def step(x):
        noise = np.random.randn(4, 5).astype(np.float32)
        return x + torch.from_numpy(noise)

    return Program(step, inputs())


@program()
def numpy_generator_object():
    rng = np.random.default_rng(5)

    def step(x):
        scale = rng.uniform(0.5, 1.5)
        return x * scale + torch.as_tensor(rng.normal(size=5), dtype=torch.float32)

    return Program(step, inputs(), between=lambda _: print(rng.bit_generator.state["state"]))


@program()
def own_random_object():
    rng = random.Random(4)

    def step(x):
        return x * rng.random()

    return Program(step, inputs(), between=lambda _: print(rng.getstate()[1][:3]))


@program(speculated=5, compiles=4)
def augmentation_now_and_then():
    def step(x):
        if random.random() < 0.5:
            x = x.flip(1)
        if random.random() < 0.5:
            x = x * -1
        return F.dropout(x, 0.5).sum()

    return Program(step, inputs(30))


@program()
def mixup():
    def step(x, y):
        lam = np.random.beta(0.4, 0.4)
        index = torch.randperm(x.size(0))
        mixed = lam * x + (1 - lam) * x[index]
        return mixed, y, y[index], lam

    return Program(step, [(torch.randn(4, 3), torch.arange(4)) for _ in range(CALLS)])


@program(speculated=5, compiles=4)
def teacher_forcing():
    cell = nn.GRUCell(3, 4)
    out = nn.Linear(4, 3)

    def step(target):
        h = torch.zeros(2, 4)
        x = torch.zeros(2, 3)
        loss = 0.0
        for t in range(2):
            h = cell(x, h)
            y = out(h)
            loss = loss + (y - target[t]).pow(2).mean()
            x = target[t] if random.random() < 0.5 else y
        loss.backward()
        return loss.item()

    return Program(step, inputs(30, 2, 2, 3), state=(cell, out))


@program()
def seeded_at_the_start():
    def step(x, k):
        torch.manual_seed(k)
        return x + torch.randn(5)

    return Program(step, [(torch.randn(4, 5), k) for k in range(CALLS)])


@program()
def seeded_after_a_draw():
    def step(x, k):
        first = torch.rand(5)
        torch.manual_seed(k)
        return x + first + torch.rand(5)

    return Program(step, [(torch.randn(4, 5), k) for k in range(CALLS)])


@program()
def forked_generator():
    def step(x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            fixed = torch.rand(5)
        return F.dropout(x + fixed, 0.5)

    return Program(step, inputs())


@program()
def state_saved_and_put_back():
    def step(x):
        state = torch.get_rng_state()
        first = torch.rand(5)
        torch.set_rng_state(state)
        return x + first - torch.rand(5)

    return Program(step, inputs())


@program()
def python_seed_in_the_step():
    def step(x, k):
        random.seed(k)
        return x * random.random()

    return Program(step, [(torch.randn(3), k) for k in range(CALLS)])


@program()
def generator_argument():
    g = torch.Generator().manual_seed(3)

    def step(x):
        return x + torch.randn(5, generator=g)

    return Program(step, inputs(), between=lambda _: print(g.get_state().sum()))


@program(speculated=4)
def draws_before_a_failing_assertion():
    def step(x):
        scale = random.random() + np.random.rand()
        y = F.dropout(x, 0.5) * scale
        if x.sum() > 0:
            return y + 1
        return y - random.random()

    calls = [(torch.full((4,), 1.0 if k % 6 else -1.0) * (k + 1),) for k in range(1, 16)]
    return Program(step, calls)


@program(speculated=4)
def draws_after_an_assertion():
    def step(x):
        y = F.dropout(x, 0.5)
        if y.sum() > -100:
            return y * random.random()
        return y * np.random.rand()

    calls = [(torch.full((4,), 1.0 if k % 6 else -100.0),) for k in range(1, 16)]
    return Program(step, calls)


@program(speculated=4)
def other_draws_of_one_generator_on_each_way():
    """What one way has drawn for nothing is given back before the other draws."""

    def step(x):
        if F.dropout(x, 0.5).sum() > -100:
            return x * random.random()
        return x * random.gauss(0, 1)

    calls = [(torch.full((4,), 1.0 if k % 4 else -100.0),) for k in range(1, 16)]
    return Program(step, calls)


@program()
def draws_between_two_draws_of_torch():
    def step(x):
        a = torch.rand(5)
        k = random.random()
        b = torch.rand(5)
        return x + a * k + b * np.random.rand()

    return Program(step, inputs())


@program()
def reinforce():
    policy = nn.Linear(4, 3)
    opt = torch.optim.SGD(policy.parameters(), lr=0.01)

    def step(obs):
        probabilities = F.softmax(policy(obs), -1)
        action = torch.multinomial(probabilities.detach(), 1).item()
        reward = 1.0 + np.random.rand() if action >= 0 else 0.0
        loss = -torch.log(probabilities.sum()) * reward
        opt.zero_grad()
        loss.backward()
        opt.step()
        return action, reward

    return Program(step, inputs(CALLS, 4), state=(policy, opt))

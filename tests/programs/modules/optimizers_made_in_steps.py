"""Optimizers that are made in the step: their state and step count begin anew in each call."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 20  # Each takes seconds: it is served only after many of its loops or calls have been merged.

MANY = 16
COUNTS = (5, 9, 4, 7, 12, 3, 8, 6)


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(counts=COUNTS):
    return [(torch.randn(8, 6), torch.randint(0, 3, (8,)), counts[n % len(counts)]) for n in range(MANY)]


def trained(optimizer, counts=COUNTS):
    """So many iterations of an optimizer of the step's own."""
    model = net()

    def step(x, y, iterations):
        opt = optimizer(model.parameters())
        loss = torch.zeros(())
        for _ in range(iterations):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        return loss.item()

    return Program(step, batches(counts), state=model)


@program(speculated=13, compiles=1)
def adam_of_as_many_iterations():
    return trained(lambda parameters: torch.optim.Adam(parameters, 1e-2), (4,))


@program(speculated=11, compiles=2)
def adam():
    return trained(lambda parameters: torch.optim.Adam(parameters, 1e-2))


@program(speculated=11, compiles=2)
def adamw_that_keeps_the_largest():
    return trained(lambda parameters: torch.optim.AdamW(parameters, 1e-2, amsgrad=True))


@program(speculated=11, compiles=2)
def momentum():
    return trained(lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9))


@program(speculated=13, compiles=1)
def radam_of_as_many_iterations():
    return trained(lambda parameters: torch.optim.RAdam(parameters, 1e-2), (7,))


@program(speculated=13, compiles=1)
def nadam_of_as_many_iterations():
    return trained(lambda parameters: torch.optim.NAdam(parameters, 1e-2), (4,))


@program(speculated=13, compiles=1)
def lists_of_as_many_iterations():
    return trained(lambda parameters: torch.optim.Adam(parameters, 1e-2, foreach=True), (4,))


@program(speculated=11, compiles=2)
def an_image_that_fools():
    model = net()

    def step(x, y, iterations):
        image = x.clone().requires_grad_(True)
        opt = torch.optim.Adam([image], lr=0.05)
        for _ in range(iterations):
            opt.zero_grad()
            F.cross_entropy(model(image), y).backward()
            opt.step()
        return image.detach()

    return Program(step, batches(), state=model)


@program(speculated=8, compiles=6)
def rates_from_outside():
    """What is decayed, and how, changes from call to call: a rate is an input, what counts with it no constant."""
    model = net()

    def step(x, y, iterations, rate, decay):
        opt = torch.optim.Adam(model.parameters(), lr=rate, betas=(decay, 0.99))
        for _ in range(iterations):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        return loss.detach()

    calls = [(*call, 0.1 / (1 + n), 0.9 if n < 8 else 0.8 + n / 100) for n, call in enumerate(batches((4,)))]
    return Program(step, calls, state=model)


def counting(act):
    """A tensor of the step's own that counts, and what Python makes of it. ``act``: what else is done to it."""
    w = torch.ones(3)

    def step(x, number):
        count = torch.tensor(0.0)
        for _ in range(3):
            count += 1
        count = act(count, x, number) or count
        w.mul_(0.9 ** count.item())
        return w * 0.5 ** count.item()

    return Program(step, [(torch.full((3,), float(n % 4)), n % 3) for n in range(10)], state=w)


@program(speculated=7, compiles=1)
def counts():
    return counting(lambda count, x, number: None)


@program(refused="computes")
def counts_by_a_tensor():
    return counting(lambda count, x, number: count.add_(x[0]) and None)


@program(refused="computes")
def counts_in_another_name():
    def act(count, x, number):
        other = count.view(1)
        other.add_(x[:1])

    return counting(act)


@program(refused="computes")
def counts_by_a_number():
    """A number of the call is another one each time."""
    return counting(lambda count, x, number: count.add_(number) and None)


@program(refused="computes")
def counts_by_chance():
    return counting(lambda count, x, number: count.add_(torch.rand(())) and None)


@program(refused="computes")
def counts_in_a_hook():
    """What autograd calls counts, too."""
    w = torch.ones(3, requires_grad=True)

    def step(x):
        count = torch.tensor(0.0)
        y = w * x
        y.register_hook(lambda grad: count.add_(x[0]) and None)
        y.sum().backward()
        with torch.no_grad():
            w.mul_(0.9 ** count.item())
        w.grad = None
        return count

    return Program(step, [(torch.full((3,), float(n % 4)),) for n in range(10)], state=w)

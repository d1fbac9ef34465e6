"""Loops that end when a tensor decides or an iteration limit is reached: convergence, training to a loss."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

MOST = 12


class Solver:
    def __init__(self):
        self.most = 12
        self.matrix = torch.eye(4) * 0.5

    def solve(self, x, most=12, tolerance=1e-2):
        steps, error = 0, torch.tensor(1.0)
        while error > tolerance and steps < most:
            new = torch.tanh(x @ self.matrix)
            error = (new - x).abs().max()
            x = new
            steps += 1
        return x, steps


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)
        self.sgd = torch.optim.SGD(self.parameters(), lr=0.1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def inputs(calls=30):
    """Each with a divisor of the limit: the more, the more iterations."""
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(6, 4, generator=generator) * (1 if k % 5 else 4), 2.0 + 6 * (k % 7)) for k in range(calls)]


def with_most():
    return [(x, c, 4 + k % 9) for k, (x, c) in enumerate(inputs())]


def pairs(calls=24):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(6, 4, generator=generator), torch.randn(6, 2, generator=generator)) for _ in range(calls)]


@program(speculated=26, compiles=2)
def asked_first():
    def step(x, c):
        n = 0
        while x.norm() > 2 / c and n < 12:
            x = torch.tanh(x * 0.9)
            n += 1
        return x, n

    return Program(step, inputs())


@program(speculated=26, compiles=2)
def counted_first():
    def step(x, c):
        n = 1
        while n <= 12 and x.norm() > 2 / c:
            n = n + 1
            x = torch.tanh(x * 0.9)
        return x, n

    return Program(step, inputs())


@program(speculated=26, compiles=2)
def down_to_none():
    def step(x, c):
        left = 12
        while x.norm() > 2 / c and left > 0:
            x = torch.tanh(x * 0.9)
            left -= 1
        return x, left

    return Program(step, inputs())


@program(speculated=26, compiles=2)
def two_breaks():
    def step(x, c):
        n = 0
        while True:
            x = torch.tanh(x * 0.9)
            n += 1
            if x.norm() < 2 / c:
                break
            if n >= 12:
                break
        return x, n

    return Program(step, inputs())


@program(speculated=26, compiles=2)
def one_break_for_both():
    def step(x, c):
        n = 0
        while True:
            x = torch.tanh(x * 0.9)
            n += 1
            if x.norm() < 2 / c or n == 12:
                break
        return x, n

    return Program(step, inputs())


@program(speculated=26, compiles=2)
def not_done_yet():
    def step(x, c):
        n, done = 0, False
        while not done and n < 12:
            x = torch.tanh(x * 0.9)
            n += 1
            done = bool(x.norm() < 2 / c)
        return x, n

    return Program(step, inputs())


@program(speculated=26, compiles=2)
def an_attribute_as_limit():
    solver = Solver()

    def step(x, c):
        n = 0
        while x.norm() > 2 / c and n < solver.most:
            x = torch.tanh(x * 0.9)
            n += 1
        return x, n

    return Program(step, inputs())


@program(speculated=25, compiles=4)
def an_attribute_that_changes():
    solver = Solver()

    def step(x, c):
        n = 0
        while x.norm() > 2 / c and n < solver.most:
            x = torch.tanh(x * 0.9)
            n += 1
        return x, n

    def calls():
        for k, call in enumerate(inputs()):
            solver.most = {15: 5, 16: 12, 22: 7}.get(k, solver.most)
            yield call

    return Program(step, calls(), state=solver)


@program(speculated=26, compiles=2)
def a_global_as_limit():
    def step(x, c):
        n = 0
        while n < MOST and x.norm() > 2 / c:
            x = torch.tanh(x * 0.9)
            n += 1
        return x, n

    return Program(step, inputs())


@program(speculated=19, compiles=1)
def an_argument_as_limit():
    def step(x, c, most):
        n = 0
        while x.norm() > 2 / c and n < most:
            x = torch.tanh(x * 0.9)
            n += 1
        return x, n

    return Program(step, with_most())


@program(speculated=19, compiles=1)
def below_an_argument_left_by_a_tensor():
    def step(x, c, most):
        n = 0
        while n < most:
            x = torch.tanh(x * 0.9)
            n += 1
            if x.norm() < 2 / c:
                break
        return x, n

    return Program(step, with_most())


@program(speculated=26, compiles=2)
def below_an_attribute_left_by_a_tensor():
    solver = Solver()

    def step(x, c):
        n = 0
        while n < solver.most:
            x = torch.tanh(x * 0.9)
            n += 1
            if x.norm() < 2 / c:
                break
        return x, n

    return Program(step, inputs())


@program(speculated=27, compiles=1)
def in_a_method():
    solver = Solver()

    def step(x, c):
        return solver.solve(x, tolerance=0.4 / c)

    return Program(step, inputs())


@program(speculated=18, compiles=5)
def other_iterations_at_first():
    def step(x, c):
        n = 0
        while x.norm() > 2 / c and n < 15:
            x = torch.tanh(x * 0.9) if n < 4 else x * 0.8
            n += 1
        return x, n

    return Program(step, inputs())


@program(speculated=25, compiles=2)
def differentiated():
    layer = nn.Linear(4, 4)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.05)

    def step(x, c):
        n, h = 0, x
        while h.norm() > 2 / c and n < 12:
            h = torch.tanh(layer(h))
            n += 1
        loss = h.pow(2).mean() + layer.weight.pow(2).mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        return loss.item(), n

    return Program(step, inputs(), state=layer)


@program(speculated=20, compiles=2)
def adaptive_computation_time():
    cell, halting = nn.Linear(4, 4), nn.Linear(4, 1)
    sgd = torch.optim.SGD([*cell.parameters(), *halting.parameters()], lr=0.1)

    def step(x, y):
        h, total, out, n = x, torch.zeros(6, 1), torch.zeros(6, 4), 0
        while (total < 0.95).any() and n < 12:
            h = torch.tanh(cell(h) + x)
            share = torch.sigmoid(halting(h)) * 0.5
            share = torch.where(total + share > 0.95, 1 - total, share)
            out = out + share * h
            total = total + share
            n += 1
        loss = (out[:, :2] - y).pow(2).mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        return loss.item(), n

    return Program(step, pairs(), state=(cell, halting))


@program(speculated=18, compiles=3)
def trained_until_it_fits():
    net = Net()

    def step(x, y):
        for i in range(60):
            net.sgd.zero_grad()
            loss = (net(x) - y).pow(2).mean()
            loss.backward()
            net.sgd.step()
            if loss.item() < 0.6:
                break
        return loss.item(), i

    return Program(step, pairs(), state=net)


@program(speculated=18, compiles=3)
def trained_while_it_does_not_fit():
    net = Net()

    def step(x, y):
        steps = 0
        loss = torch.tensor(float("inf"))
        while loss > 0.6 and steps < 100:
            net.sgd.zero_grad()
            loss = (net(x) - y).pow(2).mean()
            loss.backward()
            net.sgd.step()
            steps += 1
        return loss.item(), steps

    return Program(step, pairs(), state=net)

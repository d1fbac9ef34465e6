"""Loops that compute with untraced numbers, by recurrences: times that grow by a step, rates that decay, fractions."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 20  # Each takes seconds: it is served only after many of its loops or calls have been merged.

MANY = 24
COUNTS = (5, 9, 4, 7, 6, 11, 3, 8)


class Field(nn.Module):
    """What an ordinary differential equation asks for."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.opt = torch.optim.Adam(self.parameters(), 1e-2)
        self.asked = 0

    def forward(self, t, y):
        self.asked += 1
        return self.net(torch.cat([y, torch.full_like(y[:, :1], t)], 1))

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def calls(counts=COUNTS):
    return [(torch.randn(4, 2), torch.randn(4, 2), counts[n % len(counts)]) for n in range(MANY)]


def solved(solve, counts=COUNTS):
    net = Field()

    def step(y, goal, n):
        net.asked = 0
        loss = net.update(F.mse_loss(solve(net, y, n), goal))
        return loss, net.asked

    return Program(step, calls(counts), {"net": net})


@program(speculated=21, compiles=1, close=1e-5)
def euler_by_a_fixed_step():
    def solve(net, y, n):
        t, h = 0.0, 0.1
        for _ in range(n):
            y = y + h * net(t, y)
            t += h
        return y

    return solved(solve)


@program(speculated=21, compiles=1, close=1e-5)
def euler_by_a_share_of_the_way():
    def solve(net, y, n):
        t, h = 0.0, 1.0 / n
        for _ in range(n):
            y = y + h * net(t, y)
            t = t + h
        return y

    return solved(solve)


@program(speculated=21, compiles=1, close=1e-5)
def runge_kutta():
    def solve(net, y, n):
        t, h = 0.0, 1.0 / n
        for _ in range(n):
            k1 = net(t, y)
            k2 = net(t + h / 2, y + h / 2 * k1)
            k3 = net(t + h / 2, y + h / 2 * k2)
            k4 = net(t + h, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            t += h
        return y

    return solved(solve)


@program(speculated=21, compiles=1, close=1e-5)
def time_by_the_number():
    def solve(net, y, n):
        for i in range(n):
            y = y + net(i / n, y) * (1 / (i + 1))
        return y

    return solved(solve)


@program(speculated=21, compiles=1, close=1e-5)
def falling_rates():
    def solve(net, y, n):
        rate = 0.5
        for i in range(n):
            y = y + rate * net(0.9**i, y) + math.cos(0.3 * i)
            rate *= 0.8
        return y

    return solved(solve)


@program(speculated=19, close=1e-5)
def discounted_losses():
    net = Field()

    def step(y, goal, n):
        total, weight = 0.0, 1.0
        for t in range(n):
            y = y + net(1.0, y)
            total = total + weight * F.mse_loss(y, goal)
            weight = weight * 0.9
        return net.update(total)

    return Program(step, calls(), {"net": net})


@program(speculated=21, compiles=1, close=1e-5)
def numbers_as_tensors():
    net = Field()

    def step(y, goal, n):
        for i in range(n):
            time = torch.full((4, 1), i / 10)
            place = torch.full((4,), i, dtype=torch.long)
            scale = torch.tensor(0.5 * i)
            y = y + net.net(torch.cat([y, time], 1)) * scale + place.unsqueeze(1) + y.new_full((4, 2), 0.1 * i)
        return net.update(F.mse_loss(y, goal))

    return Program(step, calls(), {"net": net})


@program(speculated=21, compiles=1, close=1e-5)
def backwards_in_time():
    def solve(net, y, n):
        for i in reversed(range(n)):
            y = y + 0.1 * net(i * 0.1, y)
        return y

    return solved(solve)


@program(speculated=18, compiles=1, close=1e-5)
def beta_grows_to_its_limit():
    # The limit is reached in some calls only.
    def solve(net, y, n):
        for i in range(n):
            beta = min(1.0, 0.15 * i)
            y = y + beta * net(0.0, y)
        return y

    return solved(solve)


@program(speculated=0, compiles=24, close=1e-5, slow=True)
def the_limit_is_used_after_the_loop():
    # Of five rounds and more it is 1.0: a graph made of those must not serve three.
    def solve(net, y, n):
        beta = 0.0
        for i in range(n):
            beta = min(1.0, 0.25 * i)
            y = y + beta * net(0.0, y)
        return y * beta

    return solved(solve, (5, 9, 7, 8, 6, 11, 5, 9, 7, 8, 6, 11, 3, 4, 3, 4))


@program(speculated=0, compiles=24, close=1e-5)
def the_time_is_used_after_the_loop():
    def solve(net, y, n):
        t = 0.0
        for _ in range(n):
            y = y + 0.1 * net(t, y)
            t += 0.1
        return y * t

    return solved(solve)


@program(speculated=0, compiles=24, close=1e-5)
def a_time_decides():
    # Not before the eighth round.
    def solve(net, y, n):
        t = 0.0
        for _ in range(n):
            if t > 0.75:
                y = y * 0.5
            y = y + 0.1 * net(t, y)
            t += 0.1
        return y

    return solved(solve, (5, 6, 4, 7, 5, 6, 4, 7, 5, 6, 12, 11, 9, 10))


@program(speculated=0, compiles=24, close=1e-5)
def nearly_always_the_same():
    # A number that rounds make is the same in all that were seen first.
    def solve(net, y, n):
        for i in range(n):
            y = y + 0.1 * max(1.0, 0.13 * i) * net(0.0, y)
        return y

    return solved(solve, (5, 6, 4, 7, 5, 6, 4, 7, 5, 6, 12, 11, 9, 10))


@program(speculated=21, compiles=1, close=1e-5)
def a_rate_of_the_call():
    # One number for all iterations, and another one at each call.
    net = Field()

    def step(y, goal, n, rate):
        for _ in range(n):
            y = y + rate * net(0.5, y)
        return net.update(F.mse_loss(y, goal))

    given = [(*call, 0.05 * (number % 7 + 1)) for number, call in enumerate(calls())]
    return Program(step, given, {"net": net})


@program(speculated=21, compiles=1, close=1e-5)
def integers_beside_tensors_of_integers():
    net = Field()

    def step(y, goal, n):
        seen = torch.arange(4)
        for i in range(n):
            y = y + 0.1 * net(0.0, y) + (seen * (0.5 * i)).unsqueeze(1) + (seen * (3 * i)).unsqueeze(1)
        return net.update(F.mse_loss(y, goal))

    return Program(step, calls(), {"net": net})


@program(speculated=21, compiles=1, close=1e-5)
def counted_over_all_calls():
    net = Field()

    def step(y, goal, n):
        for i in range(n):
            y = y + 0.1 * net(i * 0.5, y)
        return net.update(F.mse_loss(y, goal)), net.asked

    return Program(step, calls(), {"net": net})


@program(speculated=0, compiles=24, close=1e-5)
def no_share_of_nothing():
    # In some calls the first iteration divides by zero.
    net = Field()

    def step(y, goal, n, first):
        try:
            for i in range(n):
                y = y + 1 / (i + first) * net(0.0, y)
        except ZeroDivisionError:
            return None
        return net.update(F.mse_loss(y, goal))

    given = [(*call, 0 if number % 6 == 5 else 1 + number % 3) for number, call in enumerate(calls())]
    return Program(step, given, {"net": net})

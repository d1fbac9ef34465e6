"""Solvers whose times are a tensor of as many steps (``linspace(0, 1, n + 1)``): one loop for every trip count."""

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

    def forward(self, t, y):
        return self.net(torch.cat([y, torch.ones_like(y[:, :1]) * t], 1))


def solved(solve, counts=COUNTS):
    net = Field()

    def step(y, goal, n):
        loss = F.mse_loss(solve(net, y, n), goal)
        net.opt.zero_grad()
        loss.backward()
        net.opt.step()
        return loss.item()

    calls = [(torch.randn(4, 2), torch.randn(4, 2), counts[n % len(counts)]) for n in range(MANY)]
    return Program(step, calls, {"net": net})


@program(speculated=21, compiles=1, close=1e-5)
def each_time():
    def solve(net, y, n):
        for t in torch.linspace(0.0, 1.0, n):
            y = y + net(t, y) / n
        return y

    return solved(solve)


@program(speculated=21, compiles=1, close=1e-5)
def pairs_of_times():
    def solve(net, y, n):
        ts = torch.linspace(0.0, 1.0, n + 1)
        for t0, t1 in zip(ts[:-1], ts[1:], strict=True):  # noqa: RUF007
            y = y + (t1 - t0) * net(t0, y)
        return y

    return solved(solve)


@program(speculated=21, compiles=1, close=1e-5)
def by_index():
    def solve(net, y, n):
        ts = torch.linspace(0, 2, n + 1, dtype=torch.float32)
        for i in range(len(ts) - 1):
            h = ts[i + 1] - ts[i]
            y = y + h * net(ts[i] + h / 2, y + h / 2 * net(ts[i], y))
        return y

    return solved(solve)


@program(speculated=12, compiles=2, close=1e-5)
def few_times():
    def solve(net, y, n):
        for t in torch.linspace(0.0, 1.0, n):
            y = y + 0.1 * net(t, y)
        return y + net(0.5, y)

    return solved(solve, (5, 9, 4, 7, 0, 1, 2, 5))


@program(speculated=21, compiles=1)
def many_times_without_a_loop():
    """The numbers are torch's own, whatever their number."""

    def step(x, n):
        weights = torch.linspace(-1, 3, n)
        return (weights * x[:n]).sum(), torch.linspace(0.5, 0.25, 2 * n, dtype=torch.float64)

    return Program(step, [(torch.randn(100), 3 + 7 * (n % 9)) for n in range(MANY)])

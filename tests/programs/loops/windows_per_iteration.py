"""Iterations that slice a window of a tensor each: ``x[t : t + 1]``, ``x[s : s + 8]``, ``x[:, t : t + 3]``."""

import random

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

N = 14


def numbers(least, most, seed=0):
    drawn = random.Random(seed)
    return [drawn.randint(least, most) for _ in range(N)]


class Trainer:
    def __init__(self, *modules):
        self.opt = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
        self.modules = modules

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


@program(speculated=9, compiles=2, close=1e-4)
def rows_as_slices():
    cell = nn.RNNCell(4, 5)
    o = Trainer(cell)

    def step(x):
        h = torch.zeros(1, 5)
        for t in range(x.size(0)):
            h = cell(x[t : t + 1], h)
        return o.update(h.pow(2).mean())

    return Program(step, [(torch.randn(n, 4),) for n in numbers(4, 10)], state=o)


@program(speculated=9, compiles=2, close=1e-4)
def chunks_by_range():
    m = nn.Linear(4, 2)
    o = Trainer(m)

    def step(x):
        loss = 0
        for s in range(0, x.size(0), 8):
            loss = loss + m(x[s : s + 8]).pow(2).mean()
        return o.update(loss)

    return Program(step, [(torch.randn(8 * n, 4),) for n in numbers(4, 10)], state=o)


@program(speculated=0, compiles=4, close=1e-4)
def chunks_of_which_the_last_is_smaller():
    m = nn.Linear(4, 2)
    o = Trainer(m)

    def step(x):
        loss = 0
        for s in range(0, x.size(0), 8):
            loss = loss + m(x[s : s + 8]).pow(2).mean()
        return o.update(loss)

    return Program(step, [(torch.randn(n, 4),) for n in numbers(30, 60)], state=o)


@program(speculated=9, compiles=2, close=1e-4)
def columns_as_slices():
    cell = nn.GRUCell(4, 5)
    o = Trainer(cell)

    def step(x):
        h = torch.zeros(3, 5)
        for t in range(x.size(1)):
            h = cell(x[:, t : t + 1].squeeze(1), h)
        return o.update(h.pow(2).mean())

    return Program(step, [(torch.randn(3, n, 4),) for n in numbers(4, 10)], state=o)


@program(speculated=9, compiles=2, close=1e-4)
def overlapping_windows():
    m = nn.Linear(4, 4)
    o = Trainer(m)

    def step(x):
        h = torch.zeros(4)
        for t in range(x.size(0) - 2):
            h = torch.tanh(m(x[t : t + 3]).mean(0) + h)
        return o.update(h.pow(2).mean())

    return Program(step, [(torch.randn(n, 4),) for n in numbers(6, 12)], state=o)


@program(speculated=0, compiles=8, close=1e-4)
def windows_cut_off_at_the_end():
    m = nn.Linear(4, 4)
    o = Trainer(m)

    def step(x):
        h = torch.zeros(4)
        for t in range(x.size(0)):
            h = torch.tanh(m(x[t : t + 3]).mean(0) + h)
        return o.update(h.pow(2).mean())

    return Program(step, [(torch.randn(n, 4),) for n in numbers(6, 9)], state=o)


@program(speculated=9, compiles=2, close=1e-4)
def learnt_windows():
    cell, table = nn.RNNCell(4, 5), nn.Linear(4, 4)
    o = Trainer(cell, table)

    def step(x):
        y = table(x)
        h = torch.zeros(2, 5)
        for s in range(0, x.size(0), 2):
            h = cell(y[s : s + 2], h)
        return o.update(h.pow(2).mean())

    return Program(step, [(torch.randn(2 * n, 4),) for n in numbers(4, 10)], state=o)


@program(speculated=9, compiles=2, close=1e-4)
def windows_by_a_number():
    cell = nn.RNNCell(4, 5)
    o = Trainer(cell)

    def step(x, n):
        h = torch.zeros(1, 5)
        for t in range(n):
            h = cell(x[t : t + 1], h)
        return o.update(h.pow(2).mean())

    return Program(step, [(torch.randn(12, 4), n) for n in numbers(4, 12)], state=o)


@program(speculated=9, compiles=2, close=1e-4)
def chunks_in_evaluation():
    m = nn.Linear(4, 2)

    def step(x):
        outs = []
        with torch.no_grad():
            for s in range(0, len(x), 4):
                outs.append(m(x[s : s + 4]).relu())
            return torch.cat(outs)

    return Program(step, [(torch.randn(4 * n, 4),) for n in numbers(4, 10)], state=m)

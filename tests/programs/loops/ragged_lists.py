"""Lists of tensors whose sizes differ in each call, tensors of one row among them."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

N = 14


class Trainer:
    def __init__(self, *modules):
        self.opt = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
        self.modules = modules

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def numbers(least, most, seed=0):
    drawn = random.Random(seed)
    return [drawn.randint(least, most) for _ in range(N)]


@program(speculated=7, compiles=4, close=1e-4)
def each_by_itself_and_stacked():
    m = nn.Linear(4, 3)
    o = Trainer(m)

    def step(xs):
        outs = [m(x).mean(0) for x in xs]
        return o.update(torch.stack(outs).pow(2).mean())

    r = random.Random(1)
    return Program(
        step, [([torch.randn(r.randint(1, 8), 4) for _ in range(3 + r.randint(0, 1))],) for _ in range(N)], state=o
    )


@program(speculated=7, compiles=4, close=1e-4)
def one_behind_the_other():
    m = nn.Linear(4, 3)
    o = Trainer(m)

    def step(xs):
        return o.update(m(torch.cat(xs)).pow(2).mean())

    r = random.Random(1)
    return Program(
        step, [([torch.randn(r.randint(1, 8), 4) for _ in range(3 + r.randint(0, 1))],) for _ in range(N)], state=o
    )


@program(speculated=11, compiles=2, close=1e-4)
def padded_to_the_longest():
    m = nn.Linear(4, 3)
    o = Trainer(m)

    def step(xs):
        p = pad_sequence(xs, batch_first=True)
        return o.update(m(p).pow(2).mean())

    r = random.Random(1)
    return Program(step, [([torch.randn(r.randint(2, 12), 4) for _ in range(4)],) for _ in range(N)], state=o)


@program(speculated=11, compiles=2, close=1e-4)
def padded_on_the_left():
    m = nn.Linear(4, 3)
    o = Trainer(m)

    def step(xs):
        y = pad_sequence([m(x) for x in xs], padding_value=-1.0, padding_side="left")
        return o.update(y.pow(2).mean()), y.detach()

    drawn = random.Random(1)
    return Program(step, [([torch.randn(drawn.randint(2, 12), 4) for _ in range(3)],) for _ in range(N)], state=o)

"""Loops over collected outputs, where gradient mode or another loop's length might decide what they take."""

import torch
from torch import nn

from tests.programs.harness import Program, program

LENGTHS = (5, 5, 7, 5, 9, 12, 6, 4, 17, 8, 5)


class Rolling:
    """A recurrent layer, and an optimizer."""

    def __init__(self):
        self.cell = nn.Linear(4, 4)
        self.opt = torch.optim.SGD(self.cell.parameters(), lr=0.05)

    def outputs(self, x):
        outs, h = [], torch.zeros(2, 4)
        for t in range(x.size(1)):
            h = torch.tanh(self.cell(x[:, t]) + h)
            outs.append(h)
        return outs

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def sequences():
    return [(torch.randn(2, n, 4),) for n in LENGTHS]


def two():
    """Sequences, and others that are equally long at first, and later not."""
    lengths = [(5, 5)] * 4 + [(7, 6), (7, 5), (7, 7), (9, 8), (5, 3), (4, 3), (6, 5), (8, 6), (8, 8), (6, 4)]
    return [(torch.randn(2, n, 4), torch.randn(m, 2, 4)) for n, m in lengths]


@program(speculated=8, compiles=1, close=1e-5)
def the_first_after_something_quiet():
    m = Rolling()

    def step(x):
        outs = m.outputs(x)
        with torch.no_grad():
            norm = m.cell.weight.abs().sum()
        loss = 0.0
        for o in outs:
            loss = loss + o.pow(2).mean()
        return m.update(loss + outs[0].sum() / norm)

    return Program(step, sequences(), state=m)


@program(speculated=8, compiles=1, close=1e-5)
def iterations_that_begin_quietly():
    m = Rolling()

    def step(x):
        outs = m.outputs(x)
        loss = 0.0
        for o in outs:
            with torch.no_grad():
                norm = o.abs().sum()
            loss = loss + o.pow(2).mean() * norm
        return m.update(loss + outs[-1].mean())

    return Program(step, sequences(), state=m)


@program(speculated=3, compiles=8, close=1e-5)
def backwards_from_the_end_of_another():
    m = Rolling()

    def step(x, y):
        outs = m.outputs(x)
        loss = 0.0
        for t in reversed(range(y.size(0))):
            loss = loss * 0.9 + outs[t].mean()
        return m.update(loss)

    return Program(step, two(), state=m)


@program(speculated=1, compiles=8, close=1e-5)
def backwards_from_the_end_of_the_rows():
    m = Rolling()

    def step(x, y):
        outs = m.outputs(x)
        loss = 0.0
        for o, row in zip(reversed(outs), y.unbind(0), strict=False):
            loss = loss * 0.9 + (o * row).mean()
        return m.update(loss)

    return Program(step, two(), state=m)

"""Loops of changing trip counts that start from a Python number: the first iteration differs from the others."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

LENGTHS = (5, 9, 7, 4, 12, 30, 6, 5, 3, 8, 11, 2, 1, 20)


def sequences(lengths=LENGTHS):
    return [(torch.randn(n, 2, 3), torch.randn(n, 2, 4)) for n in lengths]


@program(speculated=8, compiles=1)
def losses_of_a_sequence():
    cell = nn.RNNCell(3, 4)
    opt = torch.optim.SGD(cell.parameters(), lr=0.05)

    def step(xs, ys):
        h, total = torch.zeros(2, 4), 0.0
        for t in range(xs.shape[0]):
            h = cell(xs[t], h)
            total = total + F.mse_loss(h, ys[t])
        opt.zero_grad()
        (total / 3).backward()
        opt.step()
        return total.detach()

    return Program(step, sequences(), state=cell)


@program(speculated=8, compiles=1)
def a_sum_of_rows():
    def step(xs, ys):
        total = 0
        for x in xs:
            total = total + torch.tanh(x).sum()
        return total

    return Program(step, sequences())


@program(speculated=8, compiles=1)
def a_state_that_is_none_at_first():
    cell = nn.GRUCell(3, 4)
    opt = torch.optim.SGD(cell.parameters(), lr=0.05)

    def step(xs, ys):
        h = None
        for x in xs:
            h = cell(x) if h is None else cell(x, h)
        opt.zero_grad()
        h.pow(2).sum().backward()
        opt.step()
        return h.detach()

    return Program(step, sequences(), state=cell)


@program(speculated=0, compiles=12)
def a_list_of_changing_length():
    def step(xs):
        total = 0
        for x in xs:
            total = total + torch.tanh(x)
        return total

    return Program(step, [(list(torch.randn(n, 3)),) for n in LENGTHS])

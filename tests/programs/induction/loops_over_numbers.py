"""Loops over lists of numbers and flags, alone and beside tensors: the graph takes each list as a scanned input."""

import random

import torch
from torch import nn

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


@program(speculated=10, compiles=2, close=1e-4)
def flags_beside_rows():
    cell = nn.RNNCell(4, 5)
    o = Trainer(cell)

    def step(x, flags):
        h = torch.zeros(3, 5)
        for x_t, flag in zip(x, flags):
            if flag:
                h = torch.zeros(3, 5)
            h = cell(x_t, h)
        return o.update(h.pow(2).mean())

    r = random.Random(2)
    return Program(
        step, [(torch.randn(n, 3, 4), [r.random() < 0.3 for _ in range(n)]) for n in numbers(4, 10)], state=o
    )


@program(speculated=11, compiles=2, close=1e-4)
def weights_beside_rows():
    cell = nn.RNNCell(4, 5)
    o = Trainer(cell)

    def step(x, ws):
        h = torch.zeros(3, 5)
        loss = 0
        for x_t, w in zip(x, ws):
            h = cell(x_t, h)
            loss = loss + w * h.pow(2).mean()
        return o.update(loss)

    r = random.Random(2)
    return Program(step, [(torch.randn(n, 3, 4), [r.random() for _ in range(n)]) for n in numbers(4, 10)], state=o)


@program(speculated=10, compiles=2, close=1e-4)
def flags_and_weights_beside_rows():
    cell = nn.RNNCell(4, 5)
    o = Trainer(cell)

    def step(x, flags, ws):
        h = torch.zeros(3, 5)
        loss = 0
        for x_t, flag, w in zip(x, flags, ws):
            if flag:
                h = h * 0.5
            h = cell(x_t, h)
            loss = loss + w * h.pow(2).mean()
        return o.update(loss)

    r = random.Random(2)
    return Program(
        step,
        [
            (torch.randn(n, 3, 4), [r.random() < 0.3 for _ in range(n)], [r.random() for _ in range(n)])
            for n in numbers(4, 10)
        ],
        state=o,
    )


@program(speculated=11, compiles=2, close=1e-4)
def flags_alone():
    cell = nn.RNNCell(4, 5)
    o = Trainer(cell)

    def step(x, flags):
        h = torch.zeros(3, 5)
        for flag in flags:
            h = cell(x, h)
            if flag:
                h = h * 0.5
        return o.update(h.pow(2).mean())

    r = random.Random(2)
    return Program(step, [(torch.randn(3, 4), [r.random() < 0.3 for _ in range(n)]) for n in numbers(4, 10)], state=o)


@program(speculated=1, compiles=9, close=1e-4)
def widths_stay_constants():
    w = nn.Parameter(torch.randn(8, 4))

    def step(x, widths):
        t = 0
        for k in widths:
            t = t + (x @ w[:k].t()).sum()
        return t.detach()

    r = random.Random(2)
    return Program(step, [(torch.randn(3, 4), [r.randint(1, 8) for _ in range(n)]) for n in numbers(2, 5)], state=w)


@program(speculated=0, compiles=4, close=1e-4)
def lists_of_other_lengths_end_sooner():
    cell = nn.RNNCell(4, 5)
    o = Trainer(cell)

    def step(x, flags):
        h = torch.zeros(3, 5)
        for x_t, flag in zip(x, flags):
            if flag:
                h = torch.zeros(3, 5)
            h = cell(x_t, h)
        return o.update(h.pow(2).mean())

    r = random.Random(2)
    return Program(
        step,
        [
            (torch.randn(n, 3, 4), [r.random() < 0.3 for _ in range(m)])
            for n, m in zip(numbers(4, 10), numbers(4, 10, 7))
        ],
        state=o,
    )


@program(speculated=1, compiles=6, close=1e-4)
def a_flag_ends_the_loop():
    w = nn.Linear(4, 4)

    def step(x, xs, b):
        k = 0
        for x_t, g in zip(xs, b):
            x = torch.tanh(w(x)) * 0.5 + x_t
            k += 1
            if g:
                break
        return x.detach(), k

    r = random.Random(2)
    return Program(
        step,
        [(torch.randn(2, 4), torch.randn(n, 4), [r.random() < 0.2 for _ in range(n)]) for n in numbers(3, 6)],
        state=w,
    )


@program(speculated=0, compiles=4, close=1e-4)
def flags_that_texts_depend_on():
    w = nn.Linear(4, 4)

    def step(x, flags):
        for f in flags:
            if f:
                x = torch.tanh(w(x))
            else:
                x = x * 0.9
        k = sum(flags)
        names = []
        for f in flags:
            names.append("a" if f else "b")
        return x.detach(), k, names

    r = random.Random(2)
    return Program(step, [(torch.randn(2, 4), [r.random() < 0.5 for _ in range(n)]) for n in numbers(3, 6)], state=w)


@program(speculated=0, compiles=4, close=1e-4)
def trip_counts_in_a_list():
    lin = nn.Linear(4, 4)

    def step(x, ks):
        out = []
        for k in ks:
            for _ in range(k):
                x = torch.tanh(lin(x))
            out.append(k)
        return x.detach(), out

    r = random.Random(2)
    return Program(step, [(torch.randn(2, 4), [r.randint(1, 3) for _ in range(n)]) for n in numbers(2, 4)], state=lin)

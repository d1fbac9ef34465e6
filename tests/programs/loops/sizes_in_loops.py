"""Loops whose iterations work on tensors of changing sizes: batches, memories that are attended to."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

N = 12


def sizes(least, most, seed=0):
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


def attending():
    """A step that attends to a memory in each iteration, and what it trains."""
    cell, q = nn.GRUCell(6, 6), nn.Linear(6, 6)
    o = Trainer(cell, q)

    def step(memory, T):
        h = memory.mean(0, keepdim=True)
        outs = []
        for t in range(T):
            ctx = torch.softmax(q(h) @ memory.T, -1) @ memory
            h = cell(ctx, h)
            outs.append(h)
        return o.update(torch.stack(outs).pow(2).mean())

    return o, step


@program(speculated=9, compiles=1, close=1e-4)
def memory_changes():
    o, step = attending()

    return Program(step, [(torch.randn(s, 6), 7) for s in sizes(3, 20)], state=o)


@program(speculated=9, compiles=1, close=1e-4)
def memory_and_time_change():
    o, step = attending()

    return Program(
        step, [(torch.randn(s, 6), t) for s, t in zip(sizes(3, 20), sizes(3, 12, seed=1), strict=True)], state=o
    )


@program(speculated=9, compiles=1, close=1e-4)
def batch_and_time_change():
    cell, head = nn.LSTMCell(5, 6), nn.Linear(6, 3)
    o = Trainer(cell, head)

    def step(x, y):
        b, t, _ = x.shape
        h = x.new_zeros(b, 6)
        c = x.new_zeros(b, 6)
        for i in range(t):
            h, c = cell(x[:, i], (h, c))
        return o.update(F.cross_entropy(head(h), y))

    return Program(
        step,
        [
            (torch.randn(b, t, 5), torch.randint(3, (b,)))
            for b, t in zip(sizes(2, 9), sizes(4, 20, seed=1), strict=True)
        ],
        state=o,
    )


@program(speculated=9, compiles=1, close=1e-4)
def batch_and_time_change_masked():
    cell, head = nn.GRUCell(5, 6), nn.Linear(6, 3)
    o = Trainer(cell, head)

    def step(x, lengths, y):
        h = torch.zeros(x.size(0), 6)
        outs = []
        for t in range(x.size(1)):
            mask = (t < lengths).float().unsqueeze(1)
            new = cell(x[:, t, :], h)
            h = mask * new + (1 - mask) * h
            outs.append(h)
        seq = torch.stack(outs, 1)
        return o.update(F.cross_entropy(head(seq.mean(1)), y)), seq.detach()

    calls = []
    for b, t in zip(sizes(2, 9), sizes(4, 20, seed=1), strict=True):
        calls.append((torch.randn(b, t, 5), torch.randint(1, t + 1, (b,)), torch.randint(3, (b,))))
    return Program(step, calls, state=o)


@program(speculated=9, compiles=1, close=1e-4)
def beam_forward():
    w = torch.randn(6, 6)

    def step(x, keys, T):
        with torch.no_grad():
            h = x
            for _ in range(T):
                s = (h @ w) @ keys.T
                h = torch.tanh(h + s.softmax(-1) @ keys)
            return h

    return Program(
        step,
        [
            (torch.randn(b, 6), torch.randn(k, 6), t)
            for b, k, t in zip(sizes(2, 9), sizes(2, 30, seed=2), sizes(3, 20, seed=1), strict=True)
        ],
    )


@program(speculated=9, compiles=1, close=1e-4)
def views_with_batch_in_loop():
    linear = nn.Linear(6, 6)
    o = Trainer(linear)

    def step(xs):
        b = xs.shape[1]
        h = torch.zeros(b, 2, 3)
        for x in xs:
            z = torch.cat([x, h.view(b, 6)], 0)
            h = torch.tanh(linear(z)[:b].reshape(b, 2, 3) + torch.ones(b, 2, 3))
        return o.update(h.pow(2).sum())

    return Program(
        step, [(torch.randn(t, b, 6),) for b, t in zip(sizes(2, 9), sizes(4, 20, seed=1), strict=True)], state=o
    )


@program(speculated=9, compiles=1, close=1e-4)
def attention_over_time_bahdanau():
    wq, wk, v, cell = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 1, bias=False), nn.LSTMCell(6, 6)
    o = Trainer(wq, wk, v, cell)

    def step(enc, mask, T):
        b = enc.size(0)
        keys = wk(enc)
        h, c = enc.mean(1), torch.zeros(b, 6)
        outs, atts = [], []
        for t in range(T):
            score = v(torch.tanh(keys + wq(h).unsqueeze(1))).squeeze(-1)
            score = score.masked_fill(~mask, -1e9)
            a = F.softmax(score, dim=1)
            ctx = torch.bmm(a.unsqueeze(1), enc).squeeze(1)
            h, c = cell(ctx, (h, c))
            outs.append(h)
            atts.append(a)
        y = torch.stack(outs, 1)
        return o.update(y.pow(2).mean()), torch.stack(atts, 1).detach()

    calls = []
    for b, s, t in zip(sizes(2, 9), sizes(4, 20, seed=1), sizes(3, 12, seed=5), strict=True):
        calls.append((torch.randn(b, s, 6), torch.rand(b, s) < 0.8, t))
    return Program(step, calls, state=o)


@program(speculated=9, compiles=1, close=1e-4)
def a_count_is_used_elsewhere():
    linear = nn.Linear(5, 5)
    o = Trainer(linear)

    def step(x, count):
        h = torch.zeros(2, 5)
        outs = []
        for _ in range(count):
            h = torch.tanh(linear(h) + x)
            outs.append(h)
        found = torch.stack(outs)
        loss = found.sum() / count + found.view(count * 2, 5).mean()
        loss = loss + (torch.arange(count).float() * found.mean((1, 2))).sum()
        return o.update(loss), count * 2, found.shape[0], found.detach()

    return Program(step, [(torch.randn(2, 5), t) for t in sizes(3, 12)], state=o)


@program(speculated=9, compiles=1, close=1e-4)
def two_counts():
    def step(x, a, b):
        first, second = [], []
        for _ in range(a):
            x = torch.tanh(x)
            first.append(x)
        for _ in range(b):
            x = torch.sin(x)
            second.append(x)
        one, other = torch.stack(first), torch.stack(second)
        return (one.mean(0) @ other.mean(0).T).sum(), torch.cat([one, other]).mean(), a * b

    return Program(step, [(torch.randn(3, 3), a, b) for a, b in zip(sizes(3, 9), sizes(3, 9, seed=4), strict=True)])


@program(speculated=8, compiles=2)
def two_counts_that_are_equal_mostly():
    def step(x, a, b):
        first, second = [], []
        for _ in range(a):
            x = torch.tanh(x)
            first.append(x)
        for _ in range(b):
            x = torch.sin(x)
            second.append(x)
        return torch.stack(first) + torch.stack(second)

    return Program(step, [(torch.randn(3, 3), a, a if n % 5 else 1) for n, a in enumerate(sizes(3, 9))])


@program(speculated=8, compiles=1)
def counts_of_all_kinds():
    def step(x, count):
        outs = []
        for _ in range(count):
            x = torch.tanh(x)
            outs.append(x)
        return torch.stack(outs).mean() if outs else x

    counts = [3, 4, 5, 6, True, 7, False, 0, 1, 2, 8, -1, -4, 60, 5, 3]
    return Program(step, [(torch.randn(3, 3), count) for count in counts])


@program(speculated=9, compiles=1)
def rows_are_concatenated():
    def step(xs):
        outs, h = [], torch.zeros(2, 3)
        for x in xs:
            h = torch.tanh(h + x)
            outs.append(h)
        return torch.cat(outs[::-1], dim=1), torch.cat(outs, 1), torch.stack(outs[::-1], 1), torch.cat(outs)

    return Program(step, [(torch.randn(t, 2, 3),) for t in sizes(3, 9)])


@program(speculated=9, compiles=1)
def attributes_in_iterations():
    def step(x, count):
        for _ in range(count):
            x = torch.tanh(x.T @ x + x.mT)
        return x

    return Program(step, [(torch.randn(3, 3), t) for t in sizes(3, 9)])

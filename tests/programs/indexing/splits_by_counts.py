"""Batches split by sizes that native code has counted: lists of counts that are asked for after the call."""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def calls(n=14):
    return [(torch.randn(6, 3), torch.randint(2, (6,))) for _ in range(n)]


@program(speculated=2, compiles=6)
def split_and_train():
    net = nn.Linear(3, 3)

    def step(x, k):
        net.zero_grad()
        h = net(x)
        parts = h.split(torch.bincount(k, minlength=2).tolist())
        loss = sum(p.sum() for p in parts)
        loss.backward()
        return loss.item()

    return Program(step, calls(), state=net)


@program(speculated=2, compiles=6)
def split_list():
    def step(x, k):
        return [p.sum() for p in x.split(torch.bincount(k, minlength=2).tolist())]

    return Program(step, calls())


@program(speculated=2, compiles=6)
def split_twice():
    def step(x, k):
        c = torch.bincount(k, minlength=2)
        a, b = x.split(c.tolist())
        d, e = (x * 2).split(torch.bincount(1 - k, minlength=2).tolist())
        return a.sum(), b.sum(), d.sum(), e.sum()

    return Program(step, calls())


@program(speculated=2, compiles=6)
def unique_counts():
    def step(x, k):
        _, c = torch.unique(k.sort()[0], return_counts=True)
        return [p.mean(0) for p in x.split(c.tolist())]

    return Program(step, calls())


@program(speculated=2, compiles=6)
def nonzero_sizes():
    def step(x, k):
        n = int(k.nonzero().size(0))
        a, b = x.split([n, 6 - n])
        return a.sum(), b.sum()

    return Program(step, calls())


@program(speculated=2, compiles=6)
def repeats():
    def step(x, k):
        y = x.repeat_interleave(k, 0)
        return y.sum(0), y.shape[0]

    return Program(step, calls())


@program(speculated=2, compiles=6)
def ragged():
    def step(x, k):
        counts = torch.bincount(k, minlength=2)
        order = k.argsort(stable=True)
        parts = x[order].split(counts.tolist())
        return nn.utils.rnn.pad_sequence(list(parts), batch_first=True)

    return Program(step, calls())


@program(speculated=2, compiles=6)
def same_counts():
    def step(x, k):
        parts = x.split(torch.bincount(k, minlength=2).tolist())
        return [p.sum() for p in parts], k.sum().item()

    return Program(step, [(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])) for _ in range(14)])


@program(speculated=2, compiles=6)
def same_counts_then_other():
    def step(x, k):
        parts = x.split(torch.bincount(k, minlength=2).tolist())
        return [p.sum() for p in parts], float(k.sum())

    return Program(step, [(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, int(i > 9)])) for i in range(14)])


@program(speculated=2, compiles=6)
def by_counts_in_two():
    def step(x, k):
        c = torch.bincount(k, minlength=2).tolist()
        out = []
        for part in x.split(c):
            if part.numel():
                out.append(part.max())
        print(c)
        return out

    return Program(step, calls())

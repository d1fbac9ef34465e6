"""Batches of any size that the step collates: lists of samples, taken apart and stacked."""

import random

import torch
from torch import nn

from tests.programs.harness import Program, program

CALLS = 16


class Trainer:
    def __init__(self, *modules):
        self.modules = modules
        self.opt = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def batches(make):
    """As many samples as it comes, the same number several times in a row."""
    drawn = random.Random(3)
    samples = [make() for _ in range(30)]
    counts = [7, 7, 7, *(drawn.randint(4, 12) for _ in range(CALLS - 3))]
    return [(drawn.sample(samples, count),) for count in counts]


def row():
    return torch.randn(1, 4)


def pair():
    return torch.randn(4), torch.randn(2)


@program(speculated=9)
def gone_through_and_put_together():
    net = nn.Linear(4, 2)
    trainer = Trainer(net)

    def step(rows):
        return trainer.update(net(torch.cat([one for one in rows])).pow(2).mean())

    return Program(step, batches(row), state=trainer)


@program(speculated=9)
def pairs_stacked_by_places():
    net = nn.Linear(4, 2)
    trainer = Trainer(net)

    def step(samples):
        x = torch.stack([first for first, _ in samples])
        y = torch.stack([second for _, second in samples])
        return trainer.update((net(x) - y).pow(2).mean())

    return Program(step, batches(pair), state=trainer)


@program(speculated=9)
def dictionaries_stacked_by_keys():
    net = nn.Linear(4, 2)
    trainer = Trainer(net)

    def step(samples):
        x = torch.stack([sample["x"] for sample in samples])
        y = torch.stack([sample["y"] for sample in samples])
        return trainer.update((net(x) - y).pow(2).sum() / len(samples))

    def make():
        return dict(zip("xy", pair(), strict=True))

    return Program(step, batches(make), state=trainer)


@program(speculated=0, compiles=8)
def how_many_there_are_is_used():
    """The new list's length is a number of Python's: a graph for each."""
    net = nn.Linear(4, 2)
    trainer, seen = Trainer(net), []

    def step(rows):
        taken = [one for one in rows]
        seen.append(len(taken))
        return trainer.update(net(torch.cat(taken)).pow(2).sum() / len(taken))

    return Program(step, batches(row), state=trainer, between=lambda _: list(seen))


@program(speculated=0, compiles=8)
def iterations_count_beside_it():
    net = nn.Linear(4, 2)
    trainer = Trainer(net)

    def step(rows):
        taken, count = [], 0
        for one in rows:
            taken.append(one)
            count += 1
        return trainer.update(net(torch.cat(taken)).pow(2).sum() / count)

    return Program(step, batches(row), state=trainer)

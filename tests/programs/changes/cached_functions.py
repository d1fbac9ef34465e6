"""Functions of the program whose results ``functools`` caches: masks, tables, schedules."""

import functools
import math

import torch
from torch import nn

from tests.programs.harness import Program, program


@functools.lru_cache(maxsize=None)
def mask(size):
    return torch.full((size, size), float("-inf")).triu(1)


@functools.cache
def tables(size, width):
    angles = torch.outer(torch.arange(size).float(), 1.0 / 10 ** (torch.arange(0, width, 2).float() / width))
    return angles.cos(), angles.sin()


@functools.lru_cache
def rate(step, *, warm=5):
    return min(step + 1, warm) / warm * math.exp(-step / 50)


@functools.lru_cache(maxsize=1)
def drawn(size):
    return torch.randn(size)


def inputs(sizes, width=4):
    return [(torch.randn(2, size, width),) for size in sizes]


SIZES = [3, 5, 4, 6, 3, 5, 6, 4, 7, 3, 6, 5, 8, 4, 3, 7, 5, 6]


@program(speculated=15)
def masks_of_changing_size():
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    optimizer = torch.optim.SGD(layers.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        for layer in layers:
            h = layer(x)
            x = x + (h @ h.mT + mask(x.shape[1])).softmax(-1) @ h
        loss = x.pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, inputs(SIZES), state=(layers, optimizer))


@program(speculated=15)
def pairs_of_tables():
    def step(x):
        cos, sin = tables(x.shape[1], x.shape[2])
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    return Program(step, inputs(SIZES))


@program(speculated=15)
def numbers_of_a_schedule():
    state = {"step": 0}

    def step(x):
        state["step"] += 1
        return x * rate(state["step"], warm=4)

    return Program(step, [(torch.ones(2),)] * 20, state=state)


@program(speculated=9)
def a_method_whose_results_are_kept():
    class Grid:
        def __init__(self):
            self.made = 0

        @functools.lru_cache(maxsize=None)
        def points(self, rows, columns):
            self.made += 1
            return torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), -1).float()

    grid = Grid()

    def step(x):
        return x.sum() + grid.points(x.shape[1], x.shape[2]).mul(0.5)

    return Program(step, inputs([3] * 12), state=grid)


@program(speculated=8, compiles=3)
def what_is_kept_is_forgotten_and_changed_in_between():
    def step(x):
        return x @ mask(4).exp() + drawn(4)

    change = {
        5: lambda: mask(4).fill_(-1.0),
        8: lambda: mask.cache_clear(),
        10: lambda: drawn.cache_clear(),
        13: lambda: drawn(3),
    }
    return Program(step, inputs([4] * 17), change)


@program(speculated=8)
def what_is_kept_is_changed_by_the_step():
    def step(x):
        kept = drawn(4)
        kept.mul_(0.5).add_(x.sum())
        again = drawn(4)
        return again * 2, again is kept

    return Program(step, inputs([4] * 14), state=drawn)


@program(speculated=5)
def what_is_kept_was_made_by_the_step():
    kept = []

    @functools.lru_cache(maxsize=None)
    def last(key):
        return kept[-1]

    def step(x):
        kept.append(x * 2)
        return last("only") + x

    return Program(step, inputs([3] * 8))

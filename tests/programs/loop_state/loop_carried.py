"""Loops of changing length with values that are carried over more than one iteration: ``a, b = b, a + b``."""

import random

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 20  # Each takes seconds: it is served only after many of its loops or calls have been merged.

N = 14
H = 4


def numbers(least, most, seed=0):
    drawn = random.Random(seed)
    return [drawn.randint(least, most) for _ in range(N)]


def calls(least=3, most=9):
    return [(torch.randn(2, H), n) for n in numbers(least, most)]


class Trainer:
    def __init__(self, *modules):
        self.opt = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
        self.modules = modules

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


@program(speculated=10, compiles=1, close=1e-4)
def two_variables_by_turns():
    layer = nn.Linear(H, H)
    o = Trainer(layer)

    def step(x, n):
        h, c = x, torch.zeros(2, H)
        for _ in range(n):
            h, c = c + torch.tanh(layer(h)), h
        return o.update((h + 2 * c).pow(2).mean())

    return Program(step, calls(), state=o)


@program(speculated=10, compiles=1, close=1e-4)
def polynomials_of_a_graph():
    layer = nn.Linear(H, H)
    o = Trainer(layer)

    def step(x, n):
        a, b = x, x * 0.5
        out = layer(a) + layer(b)
        for _ in range(n):
            c = b - a
            out = out + layer(c)
            a, b = b, c
        return o.update(out.pow(2).mean())

    return Program(step, calls(), state=o)


@program(speculated=10, compiles=1, close=1e-4)
def momentum_that_begins_with_the_start():
    layer = nn.Linear(H, H)
    o = Trainer(layer)

    def step(x, n):
        before = x
        for _ in range(n):
            y = x + 0.9 * (x - before)
            before = x
            x = y - 0.1 * torch.tanh(layer(y))
        return o.update((x - before).pow(2).mean())

    return Program(step, calls(4, 9), state=o)


@program(speculated=10, compiles=1, close=1e-4)
def chains_of_three():
    layer = nn.Linear(H, H)
    o = Trainer(layer)

    def step(x, n):
        a, b, c = x, torch.zeros(2, H), torch.ones(2, H)
        for _ in range(n):
            a, b, c = b, c, torch.tanh(layer(a))
        return o.update((a * 3 + b * 2 + c).pow(2).mean())

    return Program(step, calls(4, 9), state=o)


@program(speculated=4, compiles=4)
def chains_that_begin_with_one_tensor():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(x, n):
        a = b = c = x
        for _ in range(n):
            a, b, c = b, c, torch.tanh(layer(c))
        return a, b, c, a is x, b is x

    return Program(step, calls(2, 8), state=layer)


@program(speculated=10, compiles=1)
def the_value_before_the_last_one():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(x, n):
        before = x
        for _ in range(n):
            before, x = x, torch.tanh(layer(x))
        return before, x

    return Program(step, calls(4, 9), state=layer)


@program(speculated=0, compiles=4)
def one_tensor_by_two_ways():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(x, n):
        found, before = [], torch.zeros(2, H)
        for _ in range(n):
            before, x = x, torch.tanh(layer(x))
            found.append(x)
        return before, found, before is found[-2]

    return Program(step, calls(), state=layer)


@program(speculated=0, compiles=4)
def what_was_carried_is_changed():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(x, n):
        h, c = x, torch.zeros(2, H)
        for _ in range(n):
            h, c = c + torch.tanh(layer(h)), h
        c[0] = 1
        return h, c

    return Program(step, calls(), state=layer)


@program(speculated=0, compiles=4)
def picked_by_a_number_that_was_the_last_but_one():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(x, n, k):
        found = []
        for _ in range(n):
            x = torch.tanh(layer(x))
            found.append(x)
        return found[k] * 2

    given = [(x, n, n - 2 if number < 10 else 0) for number, (x, n) in enumerate(calls())]
    return Program(step, given, state=layer)


@program(speculated=0, compiles=4)
def chains_of_four_that_may_still_hold_what_was_there():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(x, n):
        a, b, c, d = x, torch.zeros(2, H), torch.ones(2, H), x * 2
        last = d
        for _ in range(n):
            a, b, c, d = b, c, d, torch.tanh(layer(a))
        return a, b, c, d, a is last

    return Program(step, calls(3, 7), state=layer)


@program(speculated=8, compiles=2)
def values_shown_at_the_end_of_iterations():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(x, n):
        h, c = x, torch.zeros(2, H)
        for _ in range(n):
            h, c = c + torch.tanh(layer(h)), h
            print(c.sum())
        return h, c.sum().item()

    return Program(step, calls(), state=layer)


@program(speculated=0, compiles=4)
def what_a_chain_of_four_still_is():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(x, n):
        a = b = c = d = x
        for _ in range(n):
            a, b, c, d = b, c, d, torch.tanh(layer(d))
        return d, a is x

    return Program(step, [(x, n if i < 8 else 3) for i, (x, n) in enumerate(calls(6, 9))], state=layer)


@program(speculated=0, compiles=4)
def which_of_four_it_still_is():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(x, n):
        first = x * 2
        a, b, c, d = x, x + 1, x + 2, first
        for _ in range(n):
            a, b, c, d = b, c, d, torch.tanh(layer(d))
        return d, a is first

    return Program(step, [(x, n if i < 8 else 3) for i, (x, n) in enumerate(calls(6, 9))], state=layer)

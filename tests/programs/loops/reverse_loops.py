"""Loops of changing trip counts that run from the last element to the first, and what prevents one graph for all."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program
from tests.programs.loops.sizes_in_loops import Trainer, sizes

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


@program(speculated=9, compiles=1, close=1e-4)
def both_directions():
    forth, back, head = nn.GRUCell(5, 6), nn.GRUCell(5, 6), nn.Linear(12, 3)
    o = Trainer(forth, back, head)

    def step(xs, y):
        h = torch.zeros(2, 6)
        first = []
        for x in xs.unbind(0):
            h = forth(x, h)
            first.append(h)
        h = torch.zeros(2, 6)
        second = []
        for x in reversed(xs.unbind(0)):
            h = back(x, h)
            second.append(h)
        seq = torch.cat([torch.stack(first), torch.stack(second[::-1])], -1)
        return o.update(F.cross_entropy(head(seq.mean(0)), y))

    return Program(step, [(torch.randn(t, 2, 5), torch.randint(3, (2,))) for t in sizes(3, 20)], state=o)


@program(speculated=9, compiles=1, close=1e-4)
def a_slice_of_rows():
    back = nn.GRUCell(5, 6)
    o = Trainer(back)

    def step(xs):
        h = torch.zeros(2, 6)
        for x in xs.unbind(1)[::-1]:
            h = back(x, h)
        return o.update(h.pow(2).sum())

    return Program(step, [(torch.randn(2, t, 5),) for t in sizes(3, 20)], state=o)


@program(speculated=9, compiles=1, close=1e-4)
def down_to_zero():
    back, head = nn.GRUCell(5, 6), nn.Linear(6, 3)
    o = Trainer(back, head)

    def step(xs, y):
        h = torch.zeros(2, 6)
        outs = []
        for t in range(xs.size(0) - 1, -1, -1):
            h = back(xs[t], h)
            outs.append(h)
        outs.reverse()
        return o.update(F.cross_entropy(head(torch.stack(outs).mean(0)), y)), torch.cat(outs[::-1]).detach()

    return Program(step, [(torch.randn(t, 2, 5), torch.randint(3, (2,))) for t in sizes(3, 20)], state=o)


@program(speculated=9, compiles=1, close=1e-4)
def advantages():
    value = nn.Linear(4, 1)
    o = Trainer(value)

    def step(states, rewards, dones):
        values = value(states).squeeze(-1)
        last, found = torch.zeros(()), []
        for t in reversed(range(len(rewards) - 1)):
            delta = rewards[t] + 0.99 * values[t + 1] * (1 - dones[t]) - values[t]
            last = delta + 0.9 * (1 - dones[t]) * last
            found.insert(0, last)
        return o.update((values[:-1] - torch.stack(found).detach()).pow(2).mean())

    calls = [(torch.randn(t, 4), torch.randn(t), (torch.rand(t) < 0.1).float()) for t in sizes(5, 20)]
    return Program(step, calls, state=o)


@program(speculated=9, compiles=1)
def discounted():
    def step(rewards):
        total = torch.zeros(())
        returns = []
        for r in reversed(rewards):
            total = r + 0.9 * total
            returns.insert(0, total)
        return torch.stack(returns)

    return Program(step, [(torch.randn(t),) for t in sizes(3, 20)])


@program(speculated=3, compiles=6)
def the_tensor_is_longer_than_the_range():
    def step(xs, length):
        h = torch.zeros(3)
        for t in range(length - 1, -1, -1):
            h = torch.tanh(h + xs[t])
        return h

    pairs = [(t + r, t) for t, r in zip(sizes(3, 9), sizes(0, 3, seed=3), strict=True)]
    return Program(step, [(torch.randn(n, 3), t) for n, t in pairs])


@program(speculated=3, compiles=6)
def the_size_is_asked_too():
    def step(xs, length):
        h = torch.zeros(3) + xs.size(0)
        for t in range(length - 1, -1, -1):
            h = torch.tanh(h + xs[t])
        return h

    pairs = [(t + r, t) for t, r in zip(sizes(3, 9), sizes(0, 3, seed=3), strict=True)]
    return Program(step, [(torch.randn(n, 3), t) for n, t in pairs])


@program(speculated=4, compiles=3)
def the_row_before_wraps_around():
    def step(xs):
        h = torch.zeros(3)
        for t in range(xs.size(0) - 1, -1, -1):
            h = torch.tanh(h + xs[t - 1] * xs[t])
        return h

    return Program(step, [(torch.randn(t, 3),) for t in sizes(3, 9)])


@program(speculated=4, compiles=3)
def iterations_know_their_number():
    def step(xs):
        h, seen = torch.zeros(3), []
        for t in range(xs.size(0) - 1, -1, -1):
            h = torch.tanh(h + xs[t])
            seen.append(t)
            print("round", t)
        return h, seen, t

    return Program(step, [(torch.randn(t, 3),) for t in sizes(3, 9)])


@program(speculated=4, compiles=3)
def numbers_are_computed_with():
    def step(xs):
        h, k = torch.zeros(3), 0
        for t in reversed(range(xs.size(0))):
            h = torch.tanh(h + xs[t] * t)
            k += 1
        return h + t, k

    return Program(step, [(torch.randn(t, 3),) for t in sizes(3, 9)])


@program(speculated=4, compiles=3)
def the_first_is_something_else():
    def step(xs):
        h = torch.zeros(3)
        n = xs.size(0)
        for t in reversed(range(n)):
            if t == n - 1:
                h = h + 1
            h = torch.tanh(h + xs[t])
        return h

    return Program(step, [(torch.randn(t, 3),) for t in sizes(3, 9)])


@program(speculated=3, compiles=3, close=1e-4)
def rows_are_taken_in_both_orders():
    cell = nn.GRUCell(5, 6)
    o = Trainer(cell)

    def step(xs):
        rows = xs.unbind(0)
        h = torch.zeros(2, 6)
        for x in rows:
            h = cell(x, h)
        for x in reversed(rows):
            h = cell(x, h)
        return o.update(h.pow(2).sum())

    return Program(step, [(torch.randn(t, 2, 5),) for t in sizes(3, 9)], state=o)


@program(speculated=5, compiles=3)
def another_tensor_is_as_long():
    def step(xs, ys):
        h = torch.zeros(3)
        for t in range(len(xs) - 1, -1, -1):
            h = torch.tanh(h + xs[t] - ys[t])
        return h

    pairs = [(t, t + r) for t, r in zip(sizes(3, 9), [0] * 8 + sizes(0, 3, seed=3), strict=False)]
    return Program(step, [(torch.randn(n, 3), torch.randn(m, 3)) for n, m in pairs])


@program(speculated=3, compiles=3, close=1e-4)
def lists_backwards():
    cell = nn.Linear(3, 3)
    o = Trainer(cell)

    def step(xs):
        h = torch.zeros(3)
        for x in reversed(xs):
            h = torch.tanh(cell(x) + h)
        return o.update(h.sum())

    return Program(step, [([torch.randn(3) for _ in range(t)],) for t in sizes(3, 9)], state=o)


@program(speculated=0, compiles=8)
def gradient_added_to_in_iterations_behind_it():
    """What lies in ``w.grad`` is the parameter's, too: it is changed where it lies."""
    w = nn.Parameter(torch.ones(5))

    def step(x):
        w.grad = None
        (x @ w).sum().backward()
        for row in x:
            w.grad.add_(row)

    return Program(step, [(torch.randn(1 + (n * 3) % 5, 5),) for n in range(16)], state=w)


@program(speculated=9)
def gradient_changed_where_a_tensor_decides_behind_a_deciding_loop():
    w = nn.Parameter(torch.ones(4))

    def step(x):
        loss = w.sum()
        for i in range(x.shape[0]):
            if x[i] > 5:
                loss = loss + w[i]
        w.grad = None
        loss.backward()
        if x.sum() > -100:
            w.grad.add_(1.0)

    return Program(step, [(torch.randn(4),) for _ in range(16)], state=w)

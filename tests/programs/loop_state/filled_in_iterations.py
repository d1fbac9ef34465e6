"""Loops of changing length that scatter results into rows of a tensor, or stack them behind others."""

import random

import torch
from torch import nn
from torch.nn import functional

from tests.programs.harness import Program, program

RUN_ONE_IN = 20  # Each takes seconds: it is served only after many of its loops or calls have been merged.

N = 14
H = 4


def numbers(least, most, seed=0):
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


def sequences(least=3, most=9):
    return [(torch.randn(n, 2, H),) for n in numbers(least, most)]


@program(speculated=10, compiles=1, close=1e-4)
def columns_of_batches():
    cell = nn.GRUCell(H, H)
    o = Trainer(cell)

    def step(x):
        out, h = x.new_zeros(x.size(0), x.size(1), H), torch.zeros(x.size(0), H)
        for t in range(x.size(1)):
            h = cell(x[:, t], h)
            out[:, t, :] = h
        return o.update(out.pow(2).mean())

    sizes = zip(numbers(2, 5, 1), numbers(3, 9), strict=True)
    return Program(step, [(torch.randn(b, n, H),) for b, n in sizes], state=o)


@program(speculated=10, compiles=1, close=1e-4)
def solution_of_an_equation():
    f = nn.Linear(H, H)
    o = Trainer(f)

    def step(y, ts):
        sol = torch.empty(len(ts), *y.shape)
        sol[0] = y
        for i in range(len(ts) - 1):
            y = y + (ts[i + 1] - ts[i]) * torch.tanh(f(y))
            sol[i + 1] = y
        return o.update(sol.pow(2).mean())

    return Program(step, [(torch.randn(3, H), torch.linspace(0, 1, n + 1)) for n in numbers(3, 9)], state=o)


@program(speculated=10, compiles=1, close=1e-4)
def advantages_backwards():
    value = nn.Linear(H, H)
    o = Trainer(value)

    def step(x):
        advantages, last = torch.zeros(x.size(0), 2, H), torch.zeros(2, H)
        for t in reversed(range(x.size(0))):
            last = value(x[t]) + 0.9 * last
            advantages[t] = last
        return o.update(advantages.pow(2).mean())

    return Program(step, sequences(), state=o)


@program(speculated=10, compiles=1, close=1e-4)
def two_tensors_and_a_change_later():
    cell = nn.GRUCell(H, H)
    o = Trainer(cell)

    def step(x):
        out, weights, h = torch.zeros(x.size(0), 2, H), torch.zeros(2, x.size(0)), torch.zeros(2, H)
        for t in range(x.size(0)):
            h = cell(x[t], h)
            out[t] = h
            weights[:, t] = h.sum(1)
        out = out * weights.T.unsqueeze(2)
        out[0] = 0
        return o.update(out.pow(2).mean())

    return Program(step, sequences(), state=o)


@program(speculated=7, compiles=2, close=1e-4)
def more_rows_than_iterations_and_too_few():
    cell = nn.GRUCell(H, H)
    o = Trainer(cell)

    def step(x):
        out, h = torch.ones(8, 2, H), torch.zeros(2, H)
        for t in range(x.size(0)):
            h = cell(x[t], h)
            out[t + 1] = h
        return o.update(out.pow(2).mean())

    return Program(step, sequences(3, 9), state=o)  # of 8 and 9 rows it raises


@program(speculated=10, compiles=1)
def filled_and_returned():
    cell = nn.GRUCell(H, H)

    @torch.no_grad()
    def step(x):
        out, h = torch.zeros(x.size(0), 2, H), torch.zeros(2, H)
        held = {"out": out}
        for t, row in enumerate(x):
            h = cell(row, h)
            out[t] = h
        return out, held, held["out"] is out, h

    return Program(step, sequences(), state=cell)


@program(speculated=8, compiles=2, close=1e-4)
def encoder_by_steps_and_attention_over_its_rows():
    words, encoder, decoder, out = nn.Embedding(9, H), nn.GRU(H, H), nn.GRU(H, H), nn.Linear(H, 9)
    o = Trainer(words, encoder, decoder, out)

    def step(source, target):
        h, rows, loss = torch.zeros(1, 1, H), torch.zeros(12, H), 0
        for t in range(source.size(0)):
            y, h = encoder(words(source[t]).view(1, 1, -1), h)
            rows[t] = y[0, 0]
        word = torch.tensor([[0]])
        for t in range(target.size(0)):
            y, h = decoder(words(word).view(1, 1, -1), h)
            weights = torch.softmax(rows @ h[0, 0], 0)
            loss += functional.cross_entropy(out(y[0] + weights @ rows), target[t])
            word = target[t]
        return o.update(loss)

    lengths = zip(numbers(3, 9), numbers(3, 9, 1), strict=True)
    calls = [(torch.randint(9, (n, 1)), torch.randint(9, (m, 1))) for n, m in lengths]
    return Program(step, calls, state=o)


@program(speculated=10, compiles=1, close=1e-4)
def stacked_behind_the_first():
    layer = nn.Linear(H, H)
    o = Trainer(layer)

    def step(y, n):
        rows = [y]
        for _ in range(n):
            rows.append(rows[-1] + 0.1 * layer(rows[-1]))
        whole, wide = torch.stack(rows), torch.cat([y, *rows, y], 1)
        return o.update(whole.pow(2).mean() + wide[:, :H].mean())

    return Program(step, [(torch.randn(2, H), n) for n in numbers(3, 9)], state=o)


@program(speculated=0, compiles=4)
def another_looks_at_the_tensor():
    cell = nn.GRUCell(H, H)

    @torch.no_grad()
    def step(x):
        out, h = torch.zeros(x.size(0), 2, H), torch.zeros(2, H)
        first = out[0]
        for t in range(x.size(0)):
            h = cell(x[t], h + first)
            out[t] = h
        return out, first

    return Program(step, sequences(), state=cell)


@program(speculated=0, compiles=4)
def rows_that_change_when_they_are_written():
    cell = nn.GRUCell(H, H)

    @torch.no_grad()
    def step(x):
        out, h = torch.zeros(x.size(0), 2, H), torch.zeros(2, H)
        for t in range(x.size(0)):
            h = cell(x[t], h)
            out[t] = h
            h.mul_(0.5)
        return out, h

    return Program(step, sequences(), state=cell)


@program(speculated=0, compiles=4)
def rows_of_which_an_element_is_set_later():
    cell = nn.GRUCell(H, H)

    @torch.no_grad()
    def step(x):
        out, h = torch.zeros(x.size(0), 2, H), torch.zeros(2, H)
        for t in range(x.size(0)):
            h = cell(x[t], h)
            out[t] = h
            h[0] = 1
        return out, h

    return Program(step, sequences(), state=cell)


@program(speculated=0, compiles=4)
def the_tensor_is_the_callers():
    cell = nn.GRUCell(H, H)

    @torch.no_grad()
    def step(x, out):
        h = torch.zeros(2, H)
        for t in range(x.size(0)):
            h = cell(x[t], h)
            out[t] = h
        return h

    return Program(step, [(x, torch.zeros(10, 2, H)) for (x,) in sequences()], state=cell)


@program(speculated=10, compiles=1, close=1e-4)
def rows_of_what_has_gradients():
    cell, layer = nn.GRUCell(H, H), nn.Linear(H, H)
    o = Trainer(cell, layer)

    def step(x):
        out, h = layer(x) * 2, torch.zeros(2, H)
        for t in range(1, x.size(0)):
            h = cell(x[t], h)
            out[t] = h
        return o.update(out.pow(2).mean())

    return Program(step, sequences(4, 9), state=o)


@program(speculated=10, compiles=1)
def rows_made_of_the_one_before():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(y, n):
        sol = torch.zeros(n + 1, 2, H)
        sol[0] = y
        for i in range(n):
            sol[i + 1] = sol[i] + 0.1 * torch.tanh(layer(sol[i]))
        return sol

    return Program(step, [(torch.randn(2, H), n) for n in numbers(3, 9)], state=layer)


@program(speculated=0, compiles=4)
def rows_read_and_kept():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(y, n):
        sol, seen = torch.zeros(n + 1, 2, H), None
        for i in range(n):
            seen = sol[i]
            sol[i + 1] = y + layer(seen)
        sol[n - 1] = 5
        return sol, seen

    return Program(step, [(torch.randn(2, H), n) for n in numbers(3, 9)], state=layer)


@program(speculated=0, compiles=4)
def rows_read_from_the_end():
    layer = nn.Linear(H, H)

    @torch.no_grad()
    def step(x):
        out = torch.zeros(x.size(0), 2, H)
        out[-1] = 1
        for t in range(x.size(0)):
            out[t] = layer(x[t] + out[t - 1])
        return out

    return Program(step, sequences(), state=layer)


@program(speculated=0, compiles=5, close=1e-4, slow=True)
def written_from_a_place_that_changes():
    cell = nn.GRUCell(H, H)
    o = Trainer(cell)

    def step(x, k):
        out, h = torch.zeros(20, 2, H), torch.zeros(2, H)
        for t in range(x.size(0)):
            h = cell(x[t], h)
            out[t + k] = h
        return o.update((out * torch.arange(20.0).view(-1, 1, 1)).pow(2).mean())

    return Program(step, [(x, 1 if i < 8 else i % 3) for i, (x,) in enumerate(sequences())], state=o)

"""Loops of changing length that iterate once or twice, after longer ones have shown what an iteration does."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

COUNTS = (5, 4, 6, 3, 7, 2, 1, 5, 2, 1, 0, 3, 1, 2, 8, 1, 2, 4)


class Trainer:
    def __init__(self, *modules):
        self.opt = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
        self.modules = modules

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def rows(counts=COUNTS):
    return [(torch.randn(n, 4),) for n in counts]


def counted(counts=COUNTS):
    return [(torch.randn(3, 4), n) for n in counts]


@program(speculated=12, compiles=2, close=1e-4)
def cell():
    m = nn.GRUCell(4, 5)
    o = Trainer(m)

    def step(x):
        h = torch.zeros(1, 5)
        for word in x:
            h = m(word.unsqueeze(0), h)
        return o.update(h.pow(2).mean()) if len(x) else h

    return Program(step, rows(), state=o)


@program(speculated=4, compiles=5, close=1e-4)
def stacked_and_broadcast():
    m = nn.GRUCell(4, 5)
    o = Trainer(m)

    def step(x):
        h, outs = torch.zeros(1, 5), []
        for t in range(x.size(0)):
            h = m(x[t].unsqueeze(0), h)
            outs.append(h)
        if not outs:
            return None
        whole = torch.cat(outs)
        return o.update((whole.squeeze() * torch.arange(5.0)).sum()), whole.detach().squeeze(0).shape, len(outs)

    return Program(step, rows(), state=o)


@program(speculated=4, compiles=5)
def chains():
    def step(x, n):
        a, b, before = x, x + 1, x * 0
        for _ in range(n):
            before, a, b = a, b, a + 0.5 * b
        return a * 1, b * 1, before * 1

    return Program(step, counted())


@program(speculated=10, compiles=3)
def chain_of_three():
    def step(x, n):
        a, b, c = x * 1, x * 2, x * 3
        for _ in range(n):
            a, b, c = b, c, torch.tanh(a - c)
        return a + 1, b + 2, c + 3

    return Program(step, counted())


@program(speculated=10, compiles=3)
def chain_that_is_returned():
    """After one iteration it is still what the call was given, and no copy of it."""

    def step(x, y, n):
        before = y
        for _ in range(n):
            before, x = x, torch.tanh(x + before)
        return before, x

    return Program(step, [(torch.randn(3), torch.randn(3), n) for n in COUNTS])


@program(speculated=4, compiles=5)
def chain_in_attributes():
    class State:
        pass

    state = State()

    def step(x, y, n):
        state.before, state.now = y, x
        for _ in range(n):
            new = torch.tanh(state.now + 0.5 * state.before)
            state.before = state.now
            state.now = new
        return state.now + 1

    return Program(step, [(torch.randn(3), torch.randn(3), n) for n in COUNTS], state=state)


@program(speculated=4, compiles=5)
def chain_in_a_list():
    def step(x, y, n):
        last = [x, y]
        for _ in range(n):
            last.append(torch.tanh(last[-1] + 0.5 * last[-2]))
            last.pop(0)
        return last

    return Program(step, [(torch.randn(3), torch.randn(3), n) for n in COUNTS])


@program(speculated=4, compiles=5)
def chain_that_is_changed_in_place():
    def step(x, y, n):
        before, now = y, x
        for _ in range(n):
            before, now = now, now * 2
        before.add_(1)
        return now

    return Program(step, [(torch.randn(3), torch.randn(3), n) for n in COUNTS])


@program(speculated=4, compiles=5)
def kept_of_the_first_iteration():
    def step(x, n):
        first = None
        for _ in range(n):
            x = torch.tanh(x)
            if first is None:
                first = x
        return first, x

    return Program(step, counted())


@program(speculated=4, compiles=5)
def set_from_the_second_iteration_on():
    def step(x, n):
        y = z = x
        for _ in range(n):
            y = z
            z = x * 3
        return y, z

    return Program(step, counted())


@program(speculated=14, compiles=1)
def last_number_and_counts():
    def step(x, n):
        t, steps = -1, 10
        for t in range(n):
            x = torch.sin(x) + 0.1
            steps += 2
        return x, t, steps

    return Program(step, counted())


@program(speculated=14, compiles=1)
def shown_and_appended():
    log = []

    def step(x, n):
        outs = []
        for t in range(n):
            x = torch.cos(x) * 0.9
            print("round", t, x.sum().item())
            log.append(t)
            outs.append(x.clone())
        return outs

    return Program(step, counted(), state=log)


@program(speculated=14, compiles=1)
def summed_on_the_host():
    seen = {"total": 0.0, "rounds": 0}

    def step(x, n):
        for _ in range(n):
            x = torch.cos(x) * 0.9
            seen["total"] += x.sum().item()
            seen["rounds"] += 1
        return x

    return Program(step, counted(), state=seen)


@program(speculated=12, compiles=2)
def filled():
    def step(x):
        out = torch.zeros(x.size(0), 4)
        h = torch.zeros(4)
        for t in range(x.size(0)):
            h = torch.tanh(h + x[t])
            out[t] = h
        return out, h

    return Program(step, rows())


@program(speculated=12, compiles=2)
def filled_by_the_row_before():
    def step(x):
        out = torch.zeros(x.size(0) + 1, 4)
        for t in range(x.size(0)):
            out[t + 1] = out[t] * 0.5 + x[t]
        return out

    return Program(step, rows())


@program(speculated=12, compiles=2)
def growing():
    def step(x, n):
        ys = x[:, :1]
        for _ in range(n):
            ys = torch.cat([ys, torch.tanh(ys[:, -1:] + x[:, 1:2])], 1)
        return ys

    return Program(step, counted())


@program(speculated=12, compiles=2)
def backwards():
    def step(x):
        h, outs = torch.zeros(4), []
        for t in reversed(range(x.size(0))):
            h = torch.tanh(h + x[t])
            outs.append(h)
        return (torch.stack(outs[::-1]) if outs else None), h

    return Program(step, rows())


@program(speculated=4, compiles=5)
def numbers_of_iterations():
    def step(x, n):
        t = 0.0
        for i in range(n):
            x = x + (1.0 / n) * torch.sin(x * t) * (i + 1)
            t += 1.0 / n
        return x, t

    return Program(step, counted())


@program(speculated=4, compiles=5)
def last_iteration_is_another():
    def step(x, n):
        for i in range(n):
            x = torch.sin(x)
            if i < n - 1:
                x = x * 2
        return x

    return Program(step, counted())


@program(speculated=10, compiles=11)
def tensors_decide():
    def step(x, n):
        for _ in range(n):
            x = x * 2 if x.sum() < 1 else x - 1
        return x

    return Program(step, counted(COUNTS * 2))


@program(speculated=14, compiles=1)
def trained_by_iterations():
    m = nn.Linear(4, 2)
    opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)

    def step(x, n):
        loss = torch.zeros(())
        for _ in range(n):
            opt.zero_grad()
            loss = m(x).pow(2).mean()
            loss.backward()
            opt.step()
        return loss.item()

    return Program(step, counted(), state=(m, opt))


@program(speculated=4, compiles=4)
def adam_of_the_step():
    m = nn.Linear(4, 2)

    def step(x, n):
        opt = torch.optim.Adam(m.parameters(), 0.01)
        for _ in range(n):
            opt.zero_grad()
            m(x).pow(2).mean().backward()
            opt.step()
        return None if m.weight.grad is None else m.weight.grad.clone()

    return Program(step, counted(), state=m)


@program(speculated=11, compiles=4)
def gradients_that_add_up():
    """Thrown away by some calls only."""
    m = nn.Linear(4, 2)

    def step(x, n):
        for _ in range(n):
            (m(x).pow(2).mean() / n).backward()
        return n

    def drop():
        m.zero_grad()

    return Program(step, counted(), {6: drop, 9: drop, 10: drop, 13: drop}, state=m)


@program(speculated=12, compiles=2, close=1e-4)
def batches():
    m = nn.Linear(4, 2)
    o = Trainer(m)

    def step(pairs):
        total = 0.0
        for x, y in pairs:
            total += o.update(F.mse_loss(m(x), y)).item()
        return total / max(len(pairs), 1)

    return Program(step, [([(torch.randn(3, 4), torch.randn(3, 2)) for _ in range(n)],) for n in COUNTS], state=o)


@program(speculated=10, compiles=3)
def windows():
    def step(x):
        total = torch.zeros(4)
        for t in range(x.size(0) - 1):
            total = total + (x[t : t + 2] ** 2).sum(0)
        return total

    return Program(step, rows())


@program(speculated=8, compiles=5)
def within_iterations():
    m = nn.Linear(4, 4)

    def step(x):
        outs = []
        with torch.no_grad():
            for i in range(x.size(0)):
                h = torch.zeros(4)
                for t in range(x.size(1)):
                    h = torch.tanh(m(x[i, t]) + h)
                outs.append(h)
        return torch.stack(outs) if outs else None

    drawn = random.Random(5)
    sizes = [(drawn.randint(3, 6), drawn.randint(3, 6)) for _ in range(5)]
    sizes += [(drawn.randint(0, 3), drawn.randint(0, 3)) for _ in range(15)]
    return Program(step, [(torch.randn(a, b, 4),) for a, b in sizes], state=m)


@program(speculated=14, compiles=1)
def drawn():
    def step(x, n):
        for _ in range(n):
            x = F.dropout(x, 0.5) + torch.rand(3, 1)
        return x

    return Program(step, counted())


@program(speculated=4, compiles=5)
def mean_of_a_list():
    w = torch.ones(4, requires_grad=True)

    def step(x):
        losses = [(row * w).pow(2).sum() for row in x]
        if not losses:
            return None
        loss = sum(losses) / len(losses)
        loss.backward()
        with torch.no_grad():
            w.sub_(0.01 * w.grad)
        w.grad = None
        return loss.detach(), torch.stack(losses).detach().std(unbiased=False)

    return Program(step, rows(), state=w)


@program(speculated=16, compiles=1, close=1e-4)
def ragged_sentences():
    """Of one word, some of them."""
    emb, m = nn.Embedding(20, 4), nn.GRUCell(4, 5)
    o = Trainer(emb, m)

    def step(sentences):
        outs = []
        for sentence in sentences:
            h = torch.zeros(1, 5)
            for word in emb(sentence):
                h = m(word.unsqueeze(0), h)
            outs.append(h)
        return o.update(torch.cat(outs).pow(2).mean())

    draw = random.Random(2)
    return Program(
        step, [([torch.randint(0, 20, (draw.randint(1, 7),)) for _ in range(3)],) for _ in range(24)], state=o
    )


@program(speculated=10, compiles=12)
def chain_beside_decisions():
    def step(x, y, n):
        before = y
        for _ in range(n):
            new = x * 2 if x.sum() < 1 else x - 1
            before, x = x, new
        return before, x

    return Program(step, [(torch.randn(3), torch.randn(3), n) for n in COUNTS * 2])


@program(speculated=8, compiles=12)
def best_of_the_iterations():
    def step(x, y, n):
        best = y
        for _ in range(n):
            x = torch.tanh(x) * 1.5
            if x.sum() > best.sum():
                best = x
        return best, x

    return Program(step, [(torch.randn(3), torch.randn(3), n) for n in COUNTS * 2])


@program(speculated=4, compiles=12)
def chain_within_iterations():
    def step(x):
        outs = []
        for row in x:
            before = now = row
            for t in range(x.size(1)):
                before, now = now, torch.tanh(now + 0.5 * before) + x[:, t].sum()
            outs.append(before)
        return outs[-1] if outs else x, x

    drawn = random.Random(5)
    sizes = [(drawn.randint(3, 6), drawn.randint(3, 6)) for _ in range(5)]
    sizes += [(drawn.randint(0, 3), drawn.randint(1, 3)) for _ in range(15)]
    return Program(step, [(torch.randn(a, b, 4),) for a, b in sizes])

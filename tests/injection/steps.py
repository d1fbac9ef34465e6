"""Programs whose calls all take one way: what may fail is made to fail in one call after the other."""

import collections

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

CALLS = 180


def inputs(*shape, count=CALLS):
    return [(torch.randn(*(shape or (4, 3))),) for _ in range(count)]


def trained(optimizer, model=None, count=CALLS, **options):
    model = model or nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    opt = optimizer(model.parameters(), **options)

    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, inputs(count=count), state=model)


@program()
def sgd():
    return trained(torch.optim.SGD, lr=0.01)


@program()
def momentum():
    return trained(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True)


@program()
def adam():
    return trained(torch.optim.Adam, lr=0.01)


@program()
def adamw_by_lists():
    return trained(torch.optim.AdamW, lr=0.01, foreach=True)


@program()
def batch_norm():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return trained(torch.optim.SGD, model, lr=0.01)


@program()
def dropout():
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    return trained(torch.optim.SGD, model, lr=0.01)


@program()
def by_hand():
    w = torch.randn(3, 2, requires_grad=True)

    def step(x):
        loss = (x @ w).square().mean()
        (grad,) = torch.autograd.grad(loss, [w])
        with torch.no_grad():
            w.sub_(0.01 * grad)
        return loss.detach(), w.norm().detach()

    return Program(step, inputs(), state=w)


@program()
def gradients_that_pile_up():
    model = nn.Linear(3, 2)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return Program(step, inputs(), state=model)


@program()
def appended_to_a_list():
    losses = []

    def step(x):
        losses.append(x.sum().item())
        losses.append(len(losses) % 2)
        if len(losses) > 6:
            del losses[0]
        return losses[-2]

    def shortened():
        losses[:] = losses[-4:]

    return Program(step, inputs(), dict.fromkeys(range(CALLS), shortened), state=losses)


@program()
def kept_in_a_dictionary():
    held = {"n": 0, "last": None, "seen": {}}

    def step(x):
        held["n"] += 1
        held["last"] = x.mean()
        held["seen"]["sum"] = x.sum().item()
        held.pop("old", None)
        held["old"] = (x.max(), [x.min()])
        return held["n"]

    return Program(step, inputs(), state=held)


@program()
def printed():
    total = torch.zeros(3)

    def step(x):
        total.add_(x.sum(0))
        print("total", total.sum().item())
        return total.clone()

    return Program(step, inputs(), state=total)


class Meter:
    def __init__(self):
        self.n, self.total, self.best = 0, 0.0, None
        self.recent = collections.deque(maxlen=3)

    def update(self, value):
        self.n += 1
        self.total += value
        self.recent.append(value)
        self.best = [value, self.n]


@program()
def objects_and_queues():
    meter, w = Meter(), torch.zeros(3)

    def step(x):
        w.mul_(0.9).add_(x[0])
        meter.update(w.sum().item())
        return meter.total / meter.n

    return Program(step, inputs(), state=(meter, w))


@program()
def iterations_that_show():
    log, w = [], torch.randn(3, 3)

    def step(x):
        h = x
        for _ in range(6):
            h = torch.tanh(h @ w)
            log.append(h.sum().item())
        del log[:-6]
        return h

    return Program(step, inputs(), state=log)


@program()
def iterations_that_train():
    model = nn.Linear(3, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        for _ in range(5):
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            opt.step()
        return loss.detach()

    return Program(step, inputs(), state=model)


@program()
def iterations_until_a_tensor_says_so():
    def step(x):
        h = x.abs() + 1
        while h.norm() > 0.5:
            h = h * 0.5
        return h

    return Program(step, [(torch.full((4, 3), 2.0 + number % 2 * 0.1),) for number in range(CALLS)])


@program()
def drawn_and_kept():
    noise = torch.zeros(3)

    def step(x):
        noise.copy_(torch.randn(3))
        return x + noise + torch.rand(4, 3)

    return Program(step, inputs(), state=noise)


TOTAL = 0


@program()
def variables():
    count = 0

    def step(x):
        global TOTAL
        nonlocal count
        TOTAL += 1
        count += 2
        return x * count + TOTAL

    return Program(step, inputs())


@program()
def trees():
    w = torch.randn(3, 3)

    class Node:
        def __init__(self, *children):
            self.children, self.visits, self.x = children, 0, torch.randn(3)

    def total(node):
        node.visits += 1
        value = torch.tanh(node.x @ w)
        for child in node.children:
            value = value + total(child)
        return value

    root = Node(Node(Node(), Node()), Node())
    return Program(lambda: total(root), [()] * CALLS, state=root)


@program()
def asserted():
    w = torch.zeros(3)

    def step(x):
        w.add_(x.abs().sum(0))
        if w.sum() > 0:
            w.mul_(0.5)
        return w.sum().item()

    return Program(step, inputs(), state=w)


@program()
def embedding_and_loss():
    table, head = nn.Embedding(5, 3), nn.Linear(3, 4)
    opt = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)

    def step(words, labels):
        loss = F.cross_entropy(head(table(words)), labels)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        opt.step()
        return loss.item()

    calls = [(torch.randint(0, 5, (6,)), torch.randint(0, 4, (6,))) for _ in range(CALLS)]
    return Program(step, calls, state=(table, head))

"""Attributes and items that each iteration sets: the last ones remain, for any trip count."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

ITERATIONS = (5, 7, 5, 9, 12, 30, 6, 4, 17, 8, 21, 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)
        self.out = nn.Linear(4, 2)
        self.h, self.c = torch.zeros(2, 4), torch.zeros(2, 4)
        self.turn = 0
        self.sgd = torch.optim.SGD(self.parameters(), lr=0.1)

    def train_on(self, h):
        self.sgd.zero_grad()
        loss = self.out(h).pow(2).mean()
        loss.backward()
        self.sgd.step()
        return loss.item()


def sequences(iterations=ITERATIONS):
    return [(torch.randn(n, 2, 3),) for n in iterations]


@program(speculated=9, compiles=1)
def state_kept_on_the_model():
    net = Net()

    def step(xs):
        for x in xs:
            net.h, net.c = net.cell(x, (net.h, net.c))
        loss = net.train_on(net.h)
        net.h, net.c = net.h.detach(), net.c.detach()
        return loss

    return Program(step, sequences(), state=net)


@program(speculated=0)  # served for one length only
def state_begun_anew():
    net = Net()

    def step(xs):
        net.h, net.c = xs.new_zeros(2, 4), xs.new_zeros(2, 4)
        for t in range(xs.size(0)):
            net.h, net.c = net.cell(xs[t], (net.h, net.c))
            net.turn = t
        loss = net.train_on(net.h)
        net.h, net.c = None, None
        return loss, net.turn

    return Program(step, sequences(), state=net)


@program(speculated=0)  # served for one length only
def state_in_a_dictionary():
    net = Net()
    state = {"h": torch.zeros(2, 4), "c": torch.zeros(2, 4)}

    def step(xs):
        i = 0
        while i < len(xs):
            state["h"], state["c"] = net.cell(xs[i], (state["h"], state["c"]))
            i += 1
        loss = net.train_on(state["h"])
        for name in state:
            state[name] = state[name].detach()
        return loss

    return Program(step, sequences(), state=(net, state))


@program(speculated=9, compiles=1)
def what_is_left_is_the_last():
    net = Net()

    @torch.no_grad()
    def step(xs):
        for x in xs:
            net.h, net.c = net.cell(x, (net.h, net.c))
        return net.h.sum()

    return Program(step, sequences(), state=net)


@program(speculated=0)  # served for one length only
def steps_that_are_counted_beside():
    net = Net()

    def step(xs):
        h, c = torch.zeros(2, 4), torch.zeros(2, 4)
        for x in xs:
            h, c = net.cell(x, (h, c))
            net.turn += 1
            net.h = h
        loss = net.train_on(net.h)
        net.h = h.detach()
        return loss, net.turn

    return Program(step, sequences(), state=net)


@program(speculated=0)  # too many ways, in twelve calls
def set_in_some_iterations():
    """Which of them set it last is another one each time."""
    net = Net()

    def step(xs):
        h, c = torch.zeros(2, 4), torch.zeros(2, 4)
        for t, x in enumerate(xs):
            h, c = net.cell(x, (h, c))
            if t % 3 == 1:
                net.h = h.detach()
            if h.sum() > 0.2:
                net.c = c.detach()
        return net.train_on(h)

    return Program(step, sequences((5, 5, 5, 5, 6, 6, 6, 6, 5, 6, 4, 7)), state=net)


@program(speculated=9)
def read_between():
    """Who is called in an iteration sees what the attribute holds then."""
    net = Net()

    def average(total, n):
        net.h = total / n
        return net.h

    def step(xs):
        total = torch.zeros(2, 3)
        for n, x in enumerate(xs, 1):
            total = total + x * average(total, n).mean()
            print("mean", net.h.sum().item())
        return total

    return Program(step, sequences(), state=net)

"""Loops of changing length whose iteration index decides: every second iteration, a warm-up, each third."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


class Net(nn.Module):
    def __init__(self, n=2):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(n))
        self.opt = torch.optim.SGD(self.layers.parameters(), lr=0.05)
        self.hits = 0

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def sequences(calls=40, low=4, high=10):
    return [(torch.randn(low + (5 * n) % (high - low), 2, 4),) for n in range(calls)]


@program(speculated=30, compiles=2, close=0.0001)
def even():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            if t % 2 == 0:
                h = torch.tanh(a(h) + xs[t])
            else:
                h = torch.relu(b(h) + xs[t])
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def even_forward():
    a = nn.Linear(4, 4).requires_grad_(False)

    def step(xs):
        h = torch.zeros(2, 4)
        for t, x in enumerate(xs):
            if t % 3:
                h = torch.tanh(a(h) + x)
            else:
                h = h * 0.5
        return h

    return Program(step, sequences())


@program(speculated=30, compiles=2, close=0.0001)
def even_and_tensor():
    net = Net()
    a, _ = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t % 2 == 0 and h.norm() > 1.9:
                h = h * 0.5
                net.hits += 1
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def every_third_printed():
    net = Net()
    a, _ = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t % 3 == 0:
                print("step", t, h.norm().item())
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def warm_up():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t > 2:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def counter_decides():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        steps = 0
        for x in xs:
            steps += 1
            h = torch.tanh(a(h) + x)
            if steps % 2 == 0:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def from_a_number():
    net = Net()
    a, b = net.layers

    def step(x, n):
        h = torch.zeros(2, 4)
        for t in range(n):
            h = torch.tanh(a(h) + x)
            if t % 2 == 1:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, [(torch.randn(2, 4), 4 + (5 * i) % 7) for i in range(40)], state=net)


@program(speculated=30, compiles=2, close=0.0001)
def kept_flag():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            odd = t % 2 == 1
            late = t > 4
            h = torch.tanh(a(h) + xs[t])
            if odd:
                h = h + b(h)
            if late:
                h = h * 0.5
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def from_one_on():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(1, len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if (t + 1) % 3 == 0:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def either_of_two():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t == 1 or t == 3:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def among_some():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t in (1, 3):
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def thirds():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t % 3 == 0:
                h = h + b(h)
            elif t % 3 == 1:
                h = h * 0.5
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def backwards():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if -t % 3 == 1:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def beside_a_counter():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t % 2 == 1 and h.norm() > 1.5:
                net.hits += 1
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def two_things_of_one_value():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            k = t % 2
            m = t // 4
            if k == 0:
                h = h + b(h)
            if m == 0:
                h = h * 0.9
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2)
def what_the_step_was_given_changes_in_every_iteration():
    def step(xs, h):
        for t in range(len(xs)):
            if t % 2 == 0:
                h = h * 0.5
            h = torch.tanh(h + xs[t])
        return h

    return Program(step, [(xs, torch.ones(2, 4)) for (xs,) in sequences()])


@program(speculated=28, compiles=6)
def what_the_step_was_given_may_come_out_as_it_is():
    def step(xs, h):
        given = h
        for t in range(len(xs)):
            if t % 9 == 5:
                h = h * 0.5 + xs[t]
        return h, h is given

    return Program(step, [(xs, torch.ones(2, 4)) for (xs,) in sequences()])


@program(speculated=28, compiles=6)
def numbers_compared_as_objects():
    one = 1

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            if t % 2 is one:
                h = h * 0.5
            h = torch.tanh(h + xs[t])
        return h.sum()

    return Program(step, sequences())


@program(speculated=30, compiles=2, close=0.0001)
def the_first_iteration_does_otherwise():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            if t == 0:
                h = torch.tanh(a(xs[t]))
            else:
                h = torch.relu(b(h) + xs[t])
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def one_iteration_does_more():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            if t == 2:
                h = h * 0.5 + b(h)
            h = torch.tanh(a(h) + xs[t])
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=28, compiles=6)
def an_iteration_that_may_not_be_there():
    def step(xs, h):
        given = h
        for t in range(len(xs)):
            if t == 6:
                h = h * 0.5 + xs[t]
        return h, h is given

    return Program(step, [(xs, torch.ones(2, 4)) for (xs,) in sequences()])


@program(speculated=28, compiles=6)
def the_number_of_one_iteration_is_used_in_it():
    def step(xs, h):
        k = 3
        for t in range(len(xs)):
            if t == k:
                h = h * t + k
            h = torch.tanh(h + xs[t])
        return h.sum()

    return Program(step, [(xs, torch.ones(2, 4)) for (xs,) in sequences()])

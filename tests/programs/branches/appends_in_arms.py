"""Lists to which only some arms of an iteration append, where tensors decide."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

T = 1.9


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.opt = torch.optim.SGD(self.layers.parameters(), lr=0.05)
        self.log = []

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


class Box:
    def __init__(self):
        self.items = []


def sequences(calls=40, low=4, high=10):
    return [(torch.randn(low + (5 * n) % (high - low), 2, 4),) for n in range(calls)]


@program(speculated=34, compiles=2, close=0.0001)
def history_of_turns():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        history = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                history.append(t)
        return net.update(h.sum()), history

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def numbers_of_tensors():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        large = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                large.append(h.norm().item())
        return net.update(h.sum()), large

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def more_after_the_loop():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = [7]
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
        loss = net.update(h.sum())
        return loss, out.append(99) or out

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def another_number_on_either_side():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
            else:
                out.append(-1.5)
        loss = net.update(h.sum())
        return loss, out

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def two_lists():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        a, b = [], []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                a.append(t)
            else:
                b.append(h.sum().item())
        loss = net.update(h.sum())
        return loss, a, b

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def a_list_that_is_stored():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        net.log = out
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
        loss = net.update(h.sum())
        return loss, 0

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def a_list_in_a_dictionary():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = {"steps": [], "n": 0}
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out["steps"].append(t)
                out["n"] += 1
        loss = net.update(h.sum())
        return loss, out

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def a_list_in_an_object():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = Box()
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.items.append(t)
        loss = net.update(h.sum())
        return loss, out.items

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def a_counter_is_appended():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        n = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                n += 1
                out.append(n)
        loss = net.update(h.sum())
        return loss, out, n

    return Program(step, sequences(), state=net)


# -- what looks into the list: each call as in eager ---------------------------------------------------------------


@program(speculated=0, compiles=12, close=0.0001)
def the_last_element_is_read():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = [0]
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
            h = h + 0.01 * out[-1]
        loss = net.update(h.sum())
        return loss, out

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def the_length_decides():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
            if len(out) > 2:
                h = h * 0.9
        loss = net.update(h.sum())
        return loss, out

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def whether_it_is_empty_decides():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if out:
                h = h * 0.9
            if h.norm() > T:
                out.append(t)
        loss = net.update(h.sum())
        return loss, out

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def gone_through_in_iterations():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            for o in out:
                h = h + 0.01
            if h.norm() > T:
                out.append(t)
        loss = net.update(h.sum())
        return loss, out

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def its_length_is_returned():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
        loss = net.update(h.sum())
        return loss, len(out)

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def the_last_element_is_returned():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
        loss = net.update(h.sum())
        return loss, out[-1] if out else None

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def its_text_is_returned():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
        loss = net.update(h.sum())
        return loss, f"{out}"

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def its_elements_are_copied():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
        loss = net.update(h.sum())
        return loss, [*out, 5]

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def two_elements_an_iteration():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
                out.append(t + 1)
        loss = net.update(h.sum())
        return loss, out

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def a_list_of_two_names():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        same = out
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
            else:
                same.append(-t)
        loss = net.update(h.sum())
        return loss, out, same

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def tensors_that_are_stacked():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(h.sum())
        loss = net.update(h.sum())
        return loss, torch.stack(out).sum().detach() if out else 0

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def a_list_that_is_printed():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        out = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                out.append(t)
        loss = net.update(h.sum())
        return loss, print(out)

    return Program(step, sequences(), state=net)

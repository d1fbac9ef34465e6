"""Many ``if`` statements in one step, each decided by its own tensor: a graph holds both arms of each."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

MANY = 45
WIDTH = 6


class Net(nn.Module):
    def __init__(self, layers=5):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
        self.opt = torch.optim.Adam(self.layers.parameters(), lr=0.01)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def batches(calls=MANY):
    """Each column's mean has a sign by chance."""
    return [(torch.randn(4, WIDTH) + torch.randn(WIDTH),) for _ in range(calls)]


@program(speculated=28, compiles=9, slow=True)
def one_for_each_layer():
    net = Net()

    def step(x):
        given = x
        for column, layer in enumerate(net.layers):
            if given[:, column].mean() > 0:
                x = torch.tanh(layer(x))
            else:
                x = x - 0.5 * layer(x)
        return net.update((x**2).mean())

    return Program(step, batches(), state=net)


@program(speculated=0, compiles=99)
def one_side_only():
    net = Net(1)

    def step(x):
        h = net.layers[0](x)
        if x[:, 0].mean() > 0:
            h = h * 2
        if x[:, 1].mean() > 0:
            h = h - 1
        if x[:, 2].mean() > 0:
            h = torch.tanh(h)
        if x[:, 3].mean() > 0:
            h = h / h.norm()
        if x[:, 4].mean() > 0:
            h = h + x
        return net.update(h.square().mean())

    return Program(step, batches(20), state=net)


@program(speculated=0, compiles=99)
def with_no_gradient_on_one_side():
    net = Net()

    def step(x):
        given = x
        for column, layer in enumerate(net.layers):
            if given[:, column].mean() > 0:
                with torch.no_grad():
                    x = x / (1 + x.norm())
                x = layer(x)
            else:
                x = layer(x) * 0.5
        return net.update((x**2).mean())

    return Program(step, batches(20), state=net)


@program(speculated=0, compiles=99)
def with_another_within():
    net = Net()

    def step(x):
        given = x
        for column, layer in enumerate(net.layers):
            if given[:, column].mean() > 0:
                x = torch.tanh(layer(x))
                if given[0, column] > 0:
                    x = x * 2
            elif given[:, column].max() > 0.5:
                x = layer(x) - 0.5
            else:
                x = x + layer(x)
        return net.update((x**2).mean())

    return Program(step, batches(20), state=net)


@program(speculated=28, compiles=9)
def asked_for_its_number():
    net = Net()

    def step(x):
        given = x
        for column, layer in enumerate(net.layers):
            if given[:, column].mean().item() > 0:
                x = torch.tanh(layer(x))
            else:
                x = layer(x) * 0.5
        return net.update((x**2).mean())

    return Program(step, batches(), state=net)


@program(speculated=0, compiles=99)
def each_way_with_a_layer_of_its_own():
    # Which parameters have gradients, and so which are updated, is another thing each time.
    net = Net(10)

    def step(x):
        given = x
        for column in range(5):
            if given[:, column].mean() > 0:
                x = torch.tanh(net.layers[column](x))
            else:
                x = net.layers[5 + column](x) * 0.5
        return net.update((x**2).mean())

    return Program(step, batches(20), state=net)


@program(speculated=0, compiles=99)
def counted_in_python():
    net = Net()
    net.taken = 0

    def step(x):
        given = x
        for column, layer in enumerate(net.layers):
            if given[:, column].mean() > 0:
                x = torch.tanh(layer(x))
                net.taken += 1
            else:
                x = layer(x) * 0.5
        return net.update((x**2).mean()), net.taken

    return Program(step, batches(20), state=net)


@program(speculated=0, compiles=99, slow=True)
def with_random_numbers():
    net = Net()

    def step(x):
        given = x
        for column, layer in enumerate(net.layers):
            if given[:, column].mean() > 0:
                x = torch.dropout(torch.tanh(layer(x)), 0.3, True)
            else:
                x = layer(x) + torch.randn_like(x)
        return net.update((x**2).mean())

    return Program(step, batches(20), state=net)


@program(speculated=0, compiles=99)
def that_print():
    net = Net()

    def step(x):
        given = x
        for column, layer in enumerate(net.layers):
            x = torch.tanh(layer(x))
            if given[:, column].mean() > 0:
                x = x * 2
                print("doubled", column)
        return net.update((x**2).mean())

    return Program(step, batches(20), state=net)


@program(speculated=0, compiles=99)
def handing_on_a_number():
    net = Net()

    def step(x):
        given, scale = x, 1
        for column, layer in enumerate(net.layers):
            if given[:, column].mean() > 0:
                scale = scale + 1
            else:
                scale = 2 * scale
            x = torch.tanh(layer(x)) * scale
        return net.update((x**2).mean())

    return Program(step, batches(20), state=net)


@program(speculated=0, compiles=99)
def that_raise_at_times():
    net = Net()

    def step(x):
        given = x
        for column, layer in enumerate(net.layers):
            try:
                if given[:, column].mean() > 0:
                    x = layer(x)
                    if column == 3 and given[0, 3] > 1:
                        raise ValueError("too large")
                else:
                    x = x - layer(x)
            except ValueError:
                x = x * 0.1
        return net.update((x**2).mean())

    return Program(step, batches(20), state=net)


@program(speculated=0, compiles=99)
def in_place():
    net = Net()

    def step(x):
        given = x
        x = x.clone()
        for column, layer in enumerate(net.layers):
            y = layer(x)
            if given[:, column].mean() > 0:
                y[:, column] = 0.0
            else:
                y += 1
            x = torch.tanh(y)
        return net.update((x**2).mean())

    return Program(step, batches(20), state=net)


@program(speculated=5, compiles=20)
def the_hardest_of_those_that_there_are():
    """What paths share takes the maximum of a selection; a path that none has taken before has selected nothing."""
    model = nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x, labels):
        embedded = model(x)
        distances = torch.cdist(embedded, embedded)
        loss = torch.zeros(())
        for i in range(x.size(0)):
            same, other = labels == labels[i], labels != labels[i]
            same[i] = False
            if not same.any() or not other.any():
                continue
            gap = distances[i][same].max() - distances[i][other].min() + 0.5
            if gap > 0:
                loss = loss + gap
        if loss.requires_grad:
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.item()

    draws = torch.Generator().manual_seed(1)
    calls = [(torch.randn(4, 4, generator=draws), torch.randint(2, (4,), generator=draws)) for _ in range(40)]
    return Program(step, calls, state=(model, opt))

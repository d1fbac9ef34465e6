"""Tensors from before the call that iterations change in place: running statistics, counters, averages."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

ITERATIONS = (5, 7, 5, 9, 12, 30, 6, 4, 17, 8, 21, 3)
FEW = (3, 4, 3, 5, 4, 3)


class Net(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.norm = norm or nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.sgd = torch.optim.SGD(self.parameters(), lr=0.1)

    def train_on(self, h):
        self.sgd.zero_grad()
        loss = self.out(h).pow(2).mean()
        loss.backward()
        self.sgd.step()
        return loss.item()


def numbers(iterations=ITERATIONS):
    return [(torch.randn(8, 3), n) for n in iterations]


def lists(iterations=ITERATIONS):
    return [([torch.randn(8, 3) for _ in range(n)],) for n in iterations]


@program(speculated=9, compiles=1, close=0.0001)
def normalised_in_each_iteration():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.norm(net.cell(x, h))
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def normalised_over_a_list_of_batches():
    net = Net()

    def step(batches):
        losses = [net.out(net.norm(net.cell(x, x.new_zeros(8, 4)))).pow(2).mean() for x in batches]
        net.sgd.zero_grad()
        loss = torch.stack(losses).mean()
        loss.backward()
        net.sgd.step()
        return loss.item()

    return Program(step, lists(), state=net)


@program(speculated=1, compiles=2, close=0.0001)
def normalised_with_cumulative_averages():
    net = Net(nn.BatchNorm1d(4, momentum=None))

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.norm(net.cell(x, h))
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)


@program(speculated=0, compiles=1, close=0.0001)
def normalised_by_instances():
    net = Net(nn.InstanceNorm1d(2, affine=True, track_running_stats=True))

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.norm(net.cell(x, h).view(2, 2, 8)).reshape(8, 4)
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def normalised_with_statistics_of_the_function():
    net = Net()

    def step(x, n):
        h, mean, var = x.new_zeros(8, 4), net.seen, net.norm.running_var
        for _ in range(n):
            h = F.batch_norm(net.cell(x, h), mean, var, training=True, momentum=0.2)
        return net.train_on(h), mean, mean is net.seen

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def average_that_follows():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.cell(x, h)
            net.seen.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return net.train_on(h), net.seen.sum().item()

    return Program(step, numbers(), state=net)


@program(speculated=3, compiles=1, close=0.0001)
def average_that_iterations_use():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.cell(x, h) - net.seen.clone()
            with torch.no_grad():
                net.seen += 0.1 * h.mean(0)
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def counter_and_last_value():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.cell(x, h)
            net.steps.add_(1)
            net.seen.copy_(h[0].detach())
        return net.train_on(h), net.steps

    return Program(step, numbers(), state=net)


@program(speculated=3, compiles=1, close=0.0001)
def filled_and_added_to():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.cell(x, h)
            net.seen.fill_(0.5)
            net.seen.sub_(h.detach().sum(0))
        return net.train_on(h * net.seen.detach().clone())

    return Program(step, numbers(FEW), state=net)


@program(speculated=1, compiles=2, close=0.0001)
def parts_of_it():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.cell(x, h)
            net.seen[:2].add_(h.detach().mean(0)[:2])
            net.seen.mul_(0.5)
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)


@program(speculated=0, compiles=0, close=0.0001)
def seen_through_a_view():
    net = Net()
    whole = torch.zeros(2, 4)
    net.seen = whole[0]

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.cell(x, h) + whole.sum(0)
            net.seen.add_(h.detach().mean(0))
        return net.train_on(h), whole

    return Program(step, numbers(FEW), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def kept_and_returned():
    net = Net()

    def step(x, n):
        h, kept = x.new_zeros(8, 4), net.seen
        for _ in range(n):
            h = net.cell(x, h)
            net.seen.add_(h.detach().mean(0))
        net.log = kept
        return net.train_on(h), net.seen, kept.clone()

    return Program(step, numbers(), state=net)


@program(speculated=1, compiles=2, close=0.0001)
def shown_in_each_iteration():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.cell(x, h)
            net.seen.add_(h.detach().mean(0))
            print(f"{net.seen.sum().item():.3f}")
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)


@program(speculated=1, compiles=2, close=0.0001)
def only_in_some_iterations():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for t in range(n):
            h = net.cell(x, h)
            if t % 2:
                net.seen.add_(h.detach().mean(0))
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def in_iterations_of_iterations():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(2):
            for _ in range(n):
                h = net.norm(net.cell(x, h))
            net.seen.add_(h.detach().mean(0))
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=0, compiles=2, close=0.0001)
def spectral_norm_of_a_layer():
    net = Net()
    net.squash = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.squash(net.cell(x, h))
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)


@program(speculated=6, compiles=1, close=0.0001)
def on_after_the_loop():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.norm(net.cell(x, h))
        h = net.norm(h)
        for _ in range(n + 1):
            h = net.norm(net.cell(-x, h))
        return net.train_on(h)

    return Program(step, numbers((3, 4, 3, 5, 6, 4, 7, 3, 5)), state=net)


@program(speculated=7, compiles=2, close=0.0001)
def evaluated_now_and_then():
    net = Net()

    def step(x, n, train):
        net.train(train)
        h = x.new_zeros(8, 4)
        for _ in range(n):
            h = net.norm(net.cell(x, h))
        return net.train_on(h) if train else h.detach()

    calls = [(torch.randn(8, 3), n, k % 4 != 3) for k, n in enumerate(ITERATIONS)]
    return Program(step, calls, state=net)


@program(speculated=1, compiles=2, close=0.0001)
def by_a_number_of_the_iteration():
    net = Net()

    def step(x, n):
        h = x.new_zeros(8, 4)
        for t in range(n):
            h = net.cell(x, h)
            net.seen.add_(h.detach().mean(0) * (t + 1))
            net.steps.add_(t)
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)

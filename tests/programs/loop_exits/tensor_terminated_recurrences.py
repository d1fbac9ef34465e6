"""Loops that a tensor terminates, with numbers that follow recurrences: rates that decay, optimizers' step counts."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


class Net(nn.Module):
    def __init__(self, optimizer=torch.optim.Adam, **options):
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.out = nn.Linear(8, 2)
        self.optimizer = optimizer(self.parameters(), **{"lr": 0.05, **options})

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))

    def fit(self, x, y):
        self.optimizer.zero_grad()
        loss = (self(x) - y).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss


def pairs(calls=24, scale=0):
    made = torch.Generator().manual_seed(3)
    return [
        (torch.randn(6, 4, generator=made) * (1 + scale * (k % 5)), torch.randn(6, 2, generator=made))
        for k in range(calls)
    ]


def fitting(optimizer, least=0.6, **options):
    net = Net(optimizer, **options)

    def step(x, y):
        for i in range(60):
            loss = net.fit(x, y)
            if loss.item() < least:
                break
        return loss.item(), i

    return Program(step, pairs(), state=(net, net.optimizer))


@program(speculated=19, compiles=2, slow=True)
def trained_by_adam():
    return fitting(torch.optim.Adam)


@program(speculated=19, compiles=2)
def trained_by_adamw_with_lists():
    return fitting(torch.optim.AdamW, foreach=True)


@program(speculated=19, compiles=2)
def trained_with_momentum():
    return fitting(torch.optim.SGD, momentum=0.9)


@program(speculated=17, compiles=3)
def trained_by_rmsprop():
    return fitting(torch.optim.RMSprop, lr=0.01)


@program(speculated=19, compiles=2)
def trained_while_the_loss_is_large():
    net = Net()

    def step(x, y):
        loss, steps = torch.tensor(float("inf")), 0
        while loss > 0.6 and steps < 100:
            loss = net.fit(x, y)
            steps += 1
        return loss.item(), steps

    return Program(step, pairs(), state=(net, net.optimizer))


@program(speculated=19, compiles=2, slow=True)
def trained_for_as_long_as_it_takes():
    net = Net()

    def step(x, y):
        loss = torch.tensor(float("inf"))
        while loss > 0.6:
            loss = net.fit(x, y)
        return loss.item()

    return Program(step, pairs(), state=(net, net.optimizer))


@program(speculated=9, compiles=2)
def more_iterations_than_there_are_numbers_for():
    """Numbers are made for so many iterations; where there are more, Python makes the call."""

    def step(x, y):
        n = 50
        while x.norm() > 1.0:
            x = x * (1 - 1 / n)
            n += 1
        return x

    return Program(step, [(x * (3 if k in (5, 8) else 0.5), y) for k, (x, y) in enumerate(pairs(14))])


@program(speculated=19, compiles=2, slow=True)
def an_input_that_an_optimizer_of_its_own_finds():
    net = Net().requires_grad_(False)

    def step(x, y):
        found = torch.zeros(6, 4, requires_grad=True)
        optimizer = torch.optim.Adam([found], lr=0.1)
        for _i in range(50):
            optimizer.zero_grad()
            loss = (net(found) - 0.2 * y).pow(2).mean()
            loss.backward()
            optimizer.step()
            if loss.item() < 0.02:
                break
        return found.detach(), loss.item()

    return Program(step, pairs(), state=net)


@program(speculated=19, compiles=2)
def a_part_of_the_number_of_the_iteration():
    def step(x, y):
        for i in range(40):
            x = x * (1 - 1 / (i + 4))
            if x.norm() < 1.0:
                break
        return x

    return Program(step, pairs(scale=1))


@program(speculated=20, compiles=2)
def a_power_of_the_number_of_the_iteration():
    def step(x, y):
        for i in range(40):
            x = x - 0.3 * 0.95**i * x
            if x.norm() < 1.0:
                break
        return x, i

    return Program(step, pairs())


@program(speculated=18, compiles=2)
def as_many_iterations_as_a_number_says():
    def step(x, n):
        for i in range(n):
            x = x + i * 0.1
            if x.norm() > 4:
                break
        return x, i

    return Program(step, [(x[0], 5 + k * 7 % 8) for k, (x, _) in enumerate(pairs())])


@program(speculated=21, compiles=1)
def a_rate_that_decays():
    def step(x, y):
        rate = 0.5
        while x.norm() > 1.0:
            x = x - rate * x
            rate *= 0.9
        return x

    return Program(step, pairs(scale=1))


@program(speculated=15, compiles=4)
def a_rate_that_is_returned():
    def step(x, y):
        rate = 0.5
        while x.norm() > 1.0:
            x = x - rate * x
            rate *= 0.9
        return x, rate

    return Program(step, pairs(scale=1))


@program(speculated=15, compiles=4)
def a_rate_that_is_used_behind():
    def step(x, y):
        rate = 0.5
        while x.norm() > 1.0:
            x = x - rate * x
            rate *= 0.9
        return x * rate

    return Program(step, pairs(scale=1))


@program(speculated=15, compiles=4)
def a_rate_that_is_kept():
    kept = []

    def step(x, y):
        rate = 0.5
        while x.norm() > 1.0:
            x = x - rate * x
            rate *= 0.9
        kept.append(rate)
        return x

    return Program(step, pairs(scale=1), state=kept)


@program(speculated=20, compiles=2)
def annealed_down_to_a_least():
    def step(x, y):
        temperature, n = 1.0, 0
        while x.norm() > 1.0 and n < 25:
            x = torch.tanh(x * temperature) * 0.9
            temperature = max(temperature * 0.8, 0.1)
            n += 1
        return x, n

    return Program(step, pairs(scale=1))


@program(speculated=21, compiles=1)
def a_tensor_set_in_each_iteration():
    """The last iteration's is what stays, whichever it is."""
    net = Net()
    net.last = torch.zeros(6, 4)

    def step(x, y):
        for _i in range(40):
            x = x * 0.8
            net.last = x
            if x.norm() < 1.0:
                break
        return x.sum()

    return Program(step, pairs(scale=1), state=net)


@program(speculated=10, compiles=5)
def one_of_two_tensors_set_in_each_iteration():
    net = Net()
    net.first, net.second, net.last = torch.zeros(2), torch.ones(2), None

    def step(x, y):
        for i in range(40):
            x = x * 0.8
            net.last = net.first if i % 2 else net.second
            if x.norm() < 1.0:
                break
        return x.sum(), float(net.last.sum())

    return Program(step, pairs(scale=1), state=net)

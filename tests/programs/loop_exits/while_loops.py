"""``while`` loops that count up to a number from before the call: one graph serves all trip counts."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

ITERATIONS = (5, 7, 5, 9, 12, 30, 6, 4, 17, 8, 21, 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.out = nn.Linear(4, 2)
        self.log = []
        self.turn = 0
        self.sgd = torch.optim.SGD(self.parameters(), lr=0.1)

    def train_on(self, h):
        self.sgd.zero_grad()
        loss = self.out(h).pow(2).mean()
        loss.backward()
        self.sgd.step()
        return loss.item()


def numbers(iterations=ITERATIONS):
    return [(torch.randn(2, 3), n) for n in iterations]


def sequences(iterations=ITERATIONS):
    return [(torch.randn(2, n, 3),) for n in iterations]


def lists(iterations=ITERATIONS):
    return [([torch.randn(2, 3) for _ in range(n)],) for n in iterations]


@program(speculated=9, compiles=1)
def up_to_a_size():
    net = Net()

    def step(x):
        h, t = torch.zeros(2, 4), 0
        while t < x.size(1):
            h = net.cell(x[:, t], h)
            t += 1
        return net.train_on(h)

    return Program(step, sequences(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def outputs_and_the_number_itself():
    net = Net()

    def step(x):
        h, t, outs, n = x.new_zeros(2, 4), 0, [], x.shape[1]
        while t < n:
            h = net.cell(x[:, t], h)
            outs.append(h)
            t = t + 1
        return net.train_on(torch.stack(outs)), t

    return Program(step, sequences(), state=net)


@program(speculated=9, compiles=1)
def up_to_a_number():
    net = Net()

    def step(x, n):
        h, i = torch.zeros(2, 4), 0
        while i < n:
            h = net.cell(x, h)
            i += 1
        return net.train_on(h), i

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def up_to_and_with_a_number():
    net = Net()

    def step(x, n):
        h, i = torch.zeros(2, 4), 1
        while i <= n:
            h = net.cell(x, h)
            i += 1
        return net.train_on(h), i

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def until_it_is_the_number():
    def step(x, n):
        i = 0
        while n != i:
            x = torch.tanh(x + 0.1)
            i += 1
        return x, i

    return Program(step, numbers())


@program(speculated=9, compiles=1)
def by_steps_of_two():
    net = Net()

    def step(x, n):
        h, i = torch.zeros(2, 4), 0
        while n > i:
            h = net.cell(x, h)
            i += 2
        return net.train_on(h), i

    return Program(step, numbers((5, 7, 8, 9, 12, 30, 6, 11, 17, 8, 21, 13)), state=net)


@program(speculated=9, compiles=1)
def elements_of_a_list():
    net = Net()

    def step(xs):
        h, i = torch.zeros(2, 4), 0
        while i < len(xs):
            h = net.cell(xs[i], h)
            i += 1
        return net.train_on(h)

    return Program(step, lists(), state=net)


@program(speculated=9, compiles=1)
def this_row_and_the_last():
    net = Net()

    def step(x):
        h, t = torch.zeros(2, 4), 1
        while t < x.size(1):
            h = net.cell(x[:, t] - x[:, t - 1], h)
            t += 1
        return net.train_on(h)

    return Program(step, sequences([n + 1 for n in ITERATIONS]), state=net)


@program(speculated=9, compiles=1)
def rows_that_are_filled():
    net = Net()

    def step(x):
        h, t, n = torch.zeros(2, 4), 0, x.size(1)
        out = torch.zeros(2, n, 4)
        while t < n:
            h = net.cell(x[:, t], h)
            out[:, t] = h
            t += 1
        return net.train_on(out)

    return Program(step, sequences(), state=net)


@program(speculated=9, compiles=1)
def effects_of_iterations():
    net = Net()

    def step(x, n):
        h, i, losses = torch.zeros(2, 4), 0, []
        while i < n:
            h = net.cell(x, h)
            print("round", i)
            i += 1
            loss = net.out(h).pow(2).mean()
            losses.append(loss)
            net.log.append(loss.item())
        return net.train_on(h), sum(losses) / len(losses)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def factors_by_the_number():
    net = Net()

    def step(x, n):
        h, i = torch.zeros(2, 4), 0
        while i < n:
            h = net.cell(x, h) * 0.9**i
            i += 1
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def an_attribute_counts():
    net = Net()

    def step(x, n):
        net.turn, h = 0, torch.zeros(2, 4)
        while net.turn < n:
            h = net.cell(x, h)
            net.turn += 1
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def iterations_that_train():
    net = Net()

    def step(x, n):
        i, total = 0, 0.0
        while i < n:
            total += net.train_on(net.cell(x))
            i += 1
        return total

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def several_of_one_number():
    net = Net()

    def step(x, n):
        h, i = torch.zeros(2, 4), 0
        while i < n:
            h = net.cell(x, h)
            i += 1
        else:
            h = h + 1
        i = 0
        while i < n:
            h = h * 1.01
            i += 1
        for _ in range(n):
            h = h - 0.1
        return net.train_on(h), i

    return Program(step, numbers(), state=net)


@program(speculated=11, compiles=1)
def the_first_iteration_is_another():
    net = Net()

    def step(x, n):
        h, i = torch.zeros(2, 4), 0
        while i < n:
            h = net.cell(x * 2, h) if i == 0 else net.cell(x, h)
            i += 1
        return net.train_on(h)

    return Program(step, numbers([*ITERATIONS, 4, 9]), state=net)


@program(speculated=5)
def left_early_and_in_others():
    """What is left, goes round in a generator or another loop, or does not go up evenly is a path for each number."""
    net = Net()

    def early(h, n):
        i = 0
        while i < n:
            h = h * 0.9
            i += 1
            if i == 5:
                return h
        return h + 1

    def numbered(n):
        i = 0
        while i < n:
            yield i
            i += 1

    def step(x, n):
        h = torch.zeros(2, 4)
        for i in numbered(n):
            h = net.cell(x, h) + i
        i = 0
        for _ in range(3):
            while i < n:
                h = h * 1.1
                i += 1
                if i % 2 == 0:
                    break
        k = 1
        while k < n:
            h = h + k
            k *= 2
        return net.train_on(early(h, n)), i, k

    return Program(step, numbers((4, 4, 4, 4, 6, 6, 6, 6, 2, 1, 0, 4, 6, 4)), state=net)


@program(speculated=8, compiles=3)
def none_one_and_two_iterations():
    net = Net()

    def step(x, n):
        h, i = torch.zeros(2, 4), 0
        while i < n:
            h = net.cell(x, h)
            i += 1
        return net.train_on(h), i

    return Program(step, numbers((5, 7, 4, 0, 1, 2, 3, 9, 0, 1, 2, 0, 1, 2)), state=net)


@program(speculated=3)
def of_another_type():
    net = Net()

    def step(x, n):
        h, i = torch.zeros(2, 4), 0
        while i < n:
            h = net.cell(x, h)
            i += 1
        return net.train_on(h), i

    calls = [(torch.randn(2, 3), n) for n in (5, 7, 4, 6, 2.5, 3.0, True, 8, torch.tensor(3), 5, -2)]
    return Program(step, calls, state=net)

"""``while`` loops that count down from a number from before the call: one graph serves all trip counts."""

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
        self.left = 0
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
def above_zero():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            n -= 1
        return net.train_on(h), n

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def as_long_as_it_is_true():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n:
            h = net.cell(x, h)
            n = n - 1
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def unequal_to_zero_on_the_right():
    net = Net()

    def step(x, n):
        h, left = x.new_zeros(2, 4), n
        while 0 != left:
            left -= 1
            h = net.cell(x, h)
        return net.train_on(h), left, n

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def rows_from_the_last_to_the_first():
    net = Net()

    def step(x):
        h, t = x.new_zeros(2, 4), x.size(1) - 1
        while t >= 0:
            h = net.cell(x[:, t], h)
            t -= 1
        return net.train_on(h)

    return Program(step, sequences(), state=net)


@program(speculated=9, compiles=1)
def down_before_the_row_is_taken():
    net = Net()

    def step(x):
        h, t = x.new_zeros(2, 4), x.size(1)
        while t > 0:
            t -= 1
            h = net.cell(x[:, t], h)
        return net.train_on(h)

    return Program(step, sequences(), state=net)


@program(speculated=9, compiles=1)
def row_of_the_number_less_one():
    net = Net()

    def step(x):
        h, t = x.new_zeros(2, 4), x.size(1)
        while t > 0:
            h = net.cell(x[:, t - 1], h)
            t -= 1
        return net.train_on(h)

    return Program(step, sequences(), state=net)


@program(speculated=9, compiles=1)
def elements_of_a_list():
    net = Net()

    def step(xs):
        h, t = torch.zeros(2, 4), len(xs) - 1
        while t > -1:
            h = net.cell(xs[t], h)
            t -= 1
        return net.train_on(h)

    return Program(step, lists(), state=net)


@program(speculated=9, compiles=1)
def factor_of_the_number():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x * (1.0 / n), h) * (n * 0.01)
            n -= 1
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def printed_and_appended():
    net = Net()

    def step(x, n):
        h, outs = x.new_zeros(2, 4), []
        while n > 0:
            h = net.cell(x, h)
            outs.append(h)
            print(f"{n} to go")
            n -= 1
        return net.train_on(torch.stack(outs).mean(0))

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def in_a_function_that_is_called():
    net = Net()

    def unrolled(h, x, times):
        while times > 0:
            h = net.cell(x, h)
            times -= 1
        return h

    def step(x, n):
        h = unrolled(x.new_zeros(2, 4), x, n)
        return net.train_on(unrolled(h, x, n + 1))

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def with_something_at_its_end():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            n -= 1
        else:
            h = h * 2
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def one_after_the_other():
    net = Net()

    def step(x, n):
        h, t = x.new_zeros(2, 4), n
        while t > 0:
            h = net.cell(x, h)
            t -= 1
        t = n + 2
        while t >= 0:
            h = net.cell(-x, h)
            t -= 1
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def decided_by_a_tensor():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            if h.sum() > 0.2:
                h = h * 0.5
            n -= 1
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def left_by_a_tensor():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            if h.sum() > 90:
                break
            n -= 1
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def kept_on_an_object():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            n -= 1
            net.left = n
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def rows_back_in_a_for():
    net = Net()

    def step(x):
        h, n = x.new_zeros(2, 4), x.size(1)
        for t in range(n):
            h = net.cell(x[:, n - 1 - t], h)
        return net.train_on(h)

    return Program(step, sequences(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def rows_of_both_ends():
    net = Net()

    def step(x):
        h = g = x.new_zeros(2, 4)
        for t in range(x.size(1)):
            h = net.cell(x[:, t], h)
            g = net.cell(x[:, x.size(1) - t - 1], g)
        return net.train_on(h + g)

    return Program(step, sequences(), state=net)


@program(speculated=9, compiles=1)
def rows_by_a_counter_of_its_own():
    net = Net()

    def step(x):
        h, n = x.new_zeros(2, 4), x.size(1)
        at = n - 1
        for _ in range(n):
            h = net.cell(x[:, at], h)
            at -= 1
        return net.train_on(h)

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=1)
def elements_back_in_a_for():
    net = Net()

    def step(xs):
        h, n = torch.zeros(2, 4), len(xs)
        for t in range(n):
            h = net.cell(xs[n - 1 - t], h)
        return net.train_on(h)

    return Program(step, lists(), state=net)


@program(speculated=1, compiles=3)
def by_two_in_each_iteration():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            n -= 2
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=0, compiles=2)
def now_and_then_by_more():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            if n == 3:
                n -= 1
            n -= 1
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=7, compiles=4)
def a_number_that_is_a_float():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            n -= 1
        return net.train_on(h), n

    return Program(step, [(torch.randn(2, 3), n) for n in (3.5, 3.5, 3.5, 3.5, 3, 3, 3, 3, 4, 4, 5, 6, 7)], state=net)


@program(speculated=0, compiles=2)
def a_tensor_that_counts_down():
    net = Net()

    def step(x, n):
        h, left = x.new_zeros(2, 4), torch.tensor(n)
        while left > 0:
            h = net.cell(x, h)
            left -= 1
        return net.train_on(h), left

    return Program(step, numbers(), state=net)


@program(speculated=7, compiles=2)
def none_at_all():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            n -= 1
        return net.train_on(h)

    return Program(step, numbers((5, 7, 5, 0, 1, 2, 6, 0, 1, 2, 9, 3)), state=net)


@program(speculated=8, compiles=10, slow=True)
def left_now_and_then():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            if h.abs().sum() > 2.5:
                break
            n -= 1
        return h.detach()

    return Program(step, [(2 * torch.randn(2, 3), n) for n in 3 * ITERATIONS], state=net)


@program(speculated=8, compiles=10)
def the_number_when_it_was_left():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            if h.abs().sum() > 2.5:
                break
            n -= 1
        return h.detach(), n

    return Program(step, [(2 * torch.randn(2, 3), n) for n in 3 * ITERATIONS], state=net)


@program(speculated=4, compiles=6)
def left_before_a_row():
    net = Net()

    def step(x):
        h, t = x.new_zeros(2, 4), x.size(1) - 1
        while t >= 0:
            h = net.cell(x[:, t], h)
            if h.abs().sum() > 2.5:
                break
            t -= 1
        return h.detach()

    return Program(step, sequences(3 * ITERATIONS), state=net)


@program(speculated=4, compiles=6)
def left_by_a_tensor_in_a_for_that_goes_back():
    net = Net()

    def step(x):
        h = x.new_zeros(2, 4)
        for t in range(x.size(1) - 1, -1, -1):
            h = net.cell(x[:, t], h)
            if h.abs().sum() > 2.5:
                break
        return h.detach(), t

    return Program(step, sequences(3 * ITERATIONS), state=net)


@program(speculated=19, compiles=2)
def decided_with_a_row_of_each():
    net = Net()

    def step(x):
        h, t = x.new_zeros(2, 4), x.size(1) - 1
        while t >= 0:
            h = net.cell(x[:, t], h)
            if h.sum() > 0.2:
                h = h * 0.5
            t -= 1
        return net.train_on(h)

    return Program(step, sequences(2 * ITERATIONS), state=net)


@program(speculated=19, compiles=1)
def decided_with_a_row_of_some():
    net = Net()

    def step(x):
        h, t = x.new_zeros(2, 4), x.size(1) - 1
        while t >= 0:
            if h.sum() > 0.2:
                h = h * 0.5
            else:
                h = net.cell(x[:, t], h)
            t -= 1
        return net.train_on(h)

    return Program(step, sequences(2 * ITERATIONS), state=net)


@program(speculated=15, compiles=1)
def advantages_until_the_end_of_an_episode():
    def step(rewards, values, dones):
        gae, found = torch.zeros(()), []
        for t in reversed(range(len(rewards))):
            following = values[t + 1] if t + 1 < len(rewards) else torch.zeros(())
            if dones[t]:
                following, gae = torch.zeros(()), torch.zeros(())
            gae = rewards[t] + 0.99 * following - values[t] + 0.95 * gae
            found.insert(0, gae)
        return torch.stack(found)

    calls = [(torch.randn(n), torch.randn(n), torch.rand(n) > 0.7) for n in 2 * ITERATIONS]
    return Program(step, calls)


@program(speculated=21, compiles=1)
def printed_where_a_tensor_says_so():
    net = Net()

    def step(x, n):
        h, seen = x.new_zeros(2, 4), []
        while n > 0:
            h = net.cell(x, h)
            if h.sum() > 0.2:
                print("at", n)
                seen.append(n)
                h = h * 0.5
            n -= 1
        return net.train_on(h), seen, n

    return Program(step, numbers(2 * ITERATIONS), state=net)


@program(speculated=0, compiles=1)
def asks_for_its_number():
    net = Net()

    def step(x):
        h, t = x.new_zeros(2, 4), x.size(1) - 1
        while t >= 0:
            h = net.cell(x[:, t], h)
            if t == 0:
                h = h * 0.5
            t -= 1
        return net.train_on(h)

    return Program(step, sequences(), state=net)


@program(speculated=21, compiles=1)
def rows_by_negative_numbers():
    net = Net()

    def step(x):
        h = x.new_zeros(2, 4)
        for t in range(x.size(1)):
            h = net.cell(x[:, -1 - t], h)
        return net.train_on(h)

    return Program(step, sequences(2 * ITERATIONS), state=net)


@program(speculated=21, compiles=1)
def rows_by_negative_sums():
    net = Net()

    def step(x):
        h = x.new_zeros(2, 4)
        for t in range(x.size(1)):
            h = net.cell(x[:, -(t + 1)], h)
        return net.train_on(h)

    return Program(step, sequences(2 * ITERATIONS), state=net)


@program(speculated=0, compiles=1)
def rows_by_complements():
    net = Net()

    def step(x):
        h = x.new_zeros(2, 4)
        for t in range(x.size(1)):
            h = net.cell(x[:, ~t], h)
        return net.train_on(h)

    return Program(step, sequences(), state=net)


@program(speculated=21, compiles=1)
def all_but_the_last_row_back():
    net = Net()

    def step(x):
        h, n = x.new_zeros(2, 4), x.size(1)
        for t in range(1, n):
            h = net.cell(x[:, n - 1 - t], h)
        return net.train_on(h)

    return Program(step, sequences(2 * ITERATIONS), state=net)


@program(speculated=21, compiles=1)
def rows_by_a_number_that_was_given():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        for t in range(n):
            h = net.cell(x[:, n - t], h)
        return net.train_on(h)

    return Program(step, [(torch.randn(2, n + 2, 3), n) for n in 2 * ITERATIONS], state=net)


@program(speculated=18, compiles=4)
def rows_by_a_number_and_other_sizes():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        for t in range(n):
            h = net.cell(x[:, n - t], h)
        return net.train_on(h)

    calls = [(torch.randn(2, n + 2 + k % 3, 3), n) for k, n in enumerate(2 * ITERATIONS)]
    return Program(step, calls, state=net)


@program(speculated=9, compiles=1)
def decided_in_iterations_of_a_range_that_goes_down():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        for t in range(n, 0, -1):
            h = net.cell(x, h)
            if h[0, 0] > 0:
                h = h - 0.1
            else:
                h = h + 0.05
        return h.detach(), t

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1)
def range_that_goes_down_to_one():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        for t in range(n, 0, -1):
            h = net.cell(x * (1.0 / t), h)
            print("at", t)
            net.left = t
        return net.train_on(h)

    return Program(step, numbers(), state=net)

"""``while`` loops in iterations of other loops, in generators and callees; those that end by a list's length."""

import torch

from tests.programs.harness import Program, program
from tests.programs.loop_exits.while_loops import ITERATIONS, Net, lists, numbers, sequences

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

FEW = (3, 4, 3, 5, 6, 4, 7, 3, 5, 8)


@program(speculated=9, compiles=1, close=0.0001)
def until_a_list_is_long_enough():
    net = Net()

    def step(x, n):
        h, made = x.new_zeros(2, 4), []
        while len(made) < n:
            h = net.cell(x, h)
            made.append(h)
        return net.train_on(torch.stack(made).mean(0))

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def rows_by_the_length_of_what_was_made():
    net = Net()

    def step(x):
        h, made = x.new_zeros(2, 4), []
        while len(made) < x.size(1):
            h = net.cell(x[:, len(made)], h)
            made.append(h)
        return net.train_on(torch.stack(made).mean(0))

    return Program(step, sequences(), state=net)


@program(speculated=9, compiles=1)
def words_after_the_first_one():
    net = Net()
    words = torch.nn.Embedding(10, 3)
    scores = torch.nn.Linear(4, 10)

    def step(x, n):
        h, made = x.new_zeros(2, 4), [torch.zeros(2, dtype=torch.long)]
        with torch.no_grad():
            while len(made) <= n:
                h = net.cell(x + words(made[-1]), h)
                made.append(scores(h).argmax(-1))
        return torch.stack(made, 1)

    return Program(step, numbers(), state=net)


@program(speculated=0, compiles=1)
def two_more_in_some_iterations():
    net = Net()

    def step(x, n):
        h, made = x.new_zeros(2, 4), []
        while len(made) < n:
            h = net.cell(x, h)
            made.append(h)
            if len(made) == 2:
                made.append(h * 2)
        return net.train_on(torch.stack(made).mean(0)), len(made)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def looked_at_in_iterations():
    net = Net()

    def step(x, n):
        h, made = x.new_zeros(2, 4), []
        while len(made) < n:
            h = net.cell(x, h)
            if len(made) > 3:
                h = h * 0.5
            made.append(h)
        return net.train_on(torch.stack(made).mean(0))

    return Program(step, numbers(), state=net)


@program(speculated=14, compiles=4)
def left_when_it_is_long_enough():
    net = Net()

    def step(x, n):
        h, made = x.new_zeros(2, 4), []
        while len(made) < n:
            h = net.cell(x, h)
            made.append(h)
            if h.abs().sum() > 2.5:
                break
        return net.train_on(made[-1]), len(made)

    return Program(step, [(2 * torch.randn(2, 3), n) for n in 2 * ITERATIONS], state=net)


@program(speculated=9, compiles=1, close=0.0001)
def in_a_generator():
    net = Net()

    def states(x, n):
        h, i = x.new_zeros(2, 4), 0
        while i < n:
            h = net.cell(x, h)
            yield h
            i += 1

    def step(x, n):
        total = 0
        for h in states(x, n):
            total = total + h
        return net.train_on(total)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def in_a_generator_that_is_left_and_one_that_is_not():
    net = Net()

    def states(x, n):
        h, i = x.new_zeros(2, 4), 0
        while i < n:
            h = net.cell(x, h)
            yield h
            i += 1

    def step(x, n):
        total = 0
        for k, h in enumerate(states(x, n)):
            if k == 2:
                break
            total = total + h
        for h in states(x, n):
            total = total - h * 0.5
        return net.train_on(total)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def in_a_generator_that_counts_down():
    net = Net()

    def states(x, n):
        h = x.new_zeros(2, 4)
        while n > 0:
            h = net.cell(x, h)
            n -= 1
            yield h, n

    def step(x, n):
        total = x.new_zeros(2, 4)
        for h, left in states(x, n):
            total = total + h * left
        return net.train_on(total)

    return Program(step, numbers(), state=net)


@program(speculated=0, compiles=1)
def in_two_generators_that_take_turns():
    net = Net()

    def states(x, n):
        h, i = x.new_zeros(2, 4), 0
        while i < n:
            h = net.cell(x, h)
            yield h
            i += 1

    def step(x, n):
        total = 0
        for h, g in zip(states(x, n), states(-x, n), strict=True):
            total = total + h + g
        return net.train_on(total)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def in_iterations_of_a_while():
    net = Net()

    def step(x, n):
        h, k = x.new_zeros(2, 4), 0
        while k < 3:
            i = 0
            while i < n:
                h = net.cell(x, h)
                i += 1
            k += 1
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=9, compiles=1, close=0.0001)
def down_in_iterations_of_a_for():
    net = Net()

    def step(x, n):
        h = x.new_zeros(2, 4)
        for _ in range(3):
            left = n
            while left > 0:
                h = net.cell(x, h)
                left -= 1
            h = h * 2
        return net.train_on(h)

    return Program(step, numbers(), state=net)


@program(speculated=7, compiles=1, close=0.0001)
def up_in_iterations_that_go_down():
    net = Net()

    def step(x, n):
        h, left = x.new_zeros(2, 4), n
        while left > 0:
            i = 0
            while i < n:
                h = net.cell(x, h)
                i += 1
            left -= 1
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)


@program(speculated=1, compiles=4, close=0.0001)
def up_to_the_number_of_the_iteration():
    net = Net()

    def step(x, n):
        h, left = x.new_zeros(2, 4), n
        while left > 0:
            i = 0
            while i < left:
                h = net.cell(x, h)
                i += 1
            left -= 1
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)


@program(speculated=7, compiles=1, close=0.0001)
def in_a_function_that_leaves_it():
    net = Net()

    def run(x, h, n):
        i = 0
        while i < n:
            h = net.cell(x, h)
            if i == 2:
                return h
            i += 1
        return h

    def step(x, n):
        h = x.new_zeros(2, 4)
        for _ in range(4):
            h = run(x, h, n)
        return net.train_on(h)

    return Program(step, numbers(FEW), state=net)


@program(speculated=0, compiles=1, close=0.0001, slow=True)
def in_a_function_that_calls_itself():
    net = Net()

    def down(x, h, n):
        i = 0
        while i < n:
            h = net.cell(x, h)
            if i == 1 and n > 2:
                h = down(x, h, n - 2)
            i += 1
        return h

    def step(x, n):
        return net.train_on(down(x, x.new_zeros(2, 4), n))

    return Program(step, numbers(FEW), state=net)


@program(speculated=0, compiles=1)
def elements_that_are_taken_away():
    net = Net()

    def step(xs):
        h, left = torch.zeros(2, 4), list(xs)
        while len(left) > 0:
            h = net.cell(left.pop(0), h)
        return net.train_on(h)

    return Program(step, lists(), state=net)

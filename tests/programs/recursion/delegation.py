"""``yield from``: what it delegates to is iterated like the elements of a loop."""

import random

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, Net, bushy, single


class Bag:
    """Holds numbers, and gives them one by one."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        yield from self.numbers


class Counted:
    """An iterator to which values are sent, and that returns something at its end."""

    def __init__(self, limit):
        self.at, self.limit = 0, limit

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        self.at += 1 if value is None else value
        if self.at > self.limit:
            raise StopIteration(self.at)
        return self.at


@program(speculated=2, compiles=4)
def lists_of_other_lengths():
    weight = torch.arange(6.0)

    def step(bag, x):
        for number in bag:
            x = x + weight[number]
        return x

    lengths = [2, 2, 3, 3, 1, 2, 3, 0, 1, 2, 3, 0]
    calls = [(Bag([(n + k) % 6 for k in range(length)]), torch.ones(2) * n) for n, length in enumerate(lengths)]
    return Program(step, calls)


@program(speculated=3, compiles=3)
def a_list_that_the_step_changes():
    bag = Bag([1, 2])

    def step(x):
        if len(bag.numbers) < 5:
            bag.numbers.append(len(bag.numbers))
        for number in bag:
            x = x * 2 + number
        return x

    return Program(step, [(torch.full((2,), float(n)),) for n in range(12)], state=bag)


@program(speculated=3, compiles=3)
def iterators_to_which_values_are_sent():
    limit = Bag([4])

    def passing():
        last = yield from Counted(limit.numbers[0])
        yield 100 + last

    def step(x):
        values = passing()
        x = x + next(values)
        x = x * values.send(2)
        for value in values:
            x = x + value
        return x

    def calls():
        for n in range(10):
            limit.numbers[0] = 4 + n // 5
            yield (torch.full((2,), float(n)),)

    return Program(step, list(calls()), state=limit)


@program(speculated=8, close=CLOSE)
def children_of_nodes():
    net = Net()

    class Node:
        def __init__(self, node):
            self.word, self.children = node.word, [Node(child) for child in node.children]

        def __iter__(self):
            yield from self.children

    def encode(node):
        h = net.words[node.word]
        for child in node:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(lambda: Node(bushy(random.randint(1, 6))), 16), state=net)


@program(speculated=3, compiles=4)
def all_nodes_by_a_generator_that_calls_itself():
    class Node:
        def __init__(self, value, children):
            self.value, self.children = value, children

    def walk(node):
        yield node.value
        for child in node.children:
            yield from walk(child)

    def step(tree, x):
        for value in walk(tree):
            x = x * 0.5 + value
        return x

    def build(depth):
        children = [build(depth - 1) for _ in range(random.randint(0, 2))] if depth else []
        return Node(random.random(), children)

    kept = [build(2) for _ in range(3)]
    return Program(step, [(kept[n % 3], torch.full((2,), float(n))) for n in range(14)])

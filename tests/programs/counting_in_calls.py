"""Numbers on nodes that recursive calls count: each is made of what is there."""

import random

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion import CLOSE, Net, bushy, single


def counted(size=None):
    def build(node):
        node.visits, node.weight, node.deepest = 0, 0.5, 0
        for child in node.children:
            build(child)
        return node

    return build(bushy(size))


def shared():
    """Trees in which nodes are met twice."""
    tree, other = counted(6), counted(4)
    random.choice(tree.children).children.append(other)
    tree.children.append(other)
    return tree


@program(speculated=6, close=CLOSE)
def visits_of_each_node():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    kept = [counted() for _ in range(4)]
    calls = [(kept[n // 2 % 4] if n % 2 else counted(),) for n in range(20)]
    return Program(step, calls, state=net)


@program(speculated=6, close=CLOSE)
def visits_of_nodes_met_twice():
    net = Net()

    def encode(node, depth=0):
        node.visits += 1
        node.weight = node.weight * 0.9 + depth
        node.deepest = max(node.deepest, depth)
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child, depth + 1))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared, 16), state=net)


@program(speculated=6, close=CLOSE)
def counts_in_slots_and_dictionaries():
    net = Net()

    class Slotted:
        __slots__ = ("children", "visits", "word")

        def __init__(self, node):
            self.word, self.visits = node.word, 0
            self.children = [Slotted(child) for child in node.children]

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        node.visits += len(node.children) + 1
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    def build():
        tree, other = Slotted(bushy()), Slotted(bushy(3))
        tree.children += [other, other]
        return tree

    return Program(step, single(build, 16), state=net)


@program(speculated=0, compiles=3, close=CLOSE, told="write what calls read")
def counts_before_and_after():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        node.visits += 1
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def counts_of_children_that_count_themselves():
    net = Net()

    def encode(node):
        node.visits = node.visits + 1
        h = net.words[node.word]
        for child in node.children:
            before = child.visits
            h = torch.tanh(h + encode(child))
            child.visits = before + 5
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared), state=net)


@program(speculated=6, close=CLOSE)
def counts_after_the_children():
    net = Net()

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        node.visits = 2 * node.visits + 1
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared, 16), state=net)


@program(speculated=0, compiles=3, close=CLOSE, told="write what calls read")
def counts_that_are_computed_with():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word] / node.visits
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def counts_that_decide():
    net = Net()

    def encode(node):
        node.visits += 1
        if node.visits > 1:
            return net.words[node.word]
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def counts_that_are_returned():
    net = Net()

    def encode(node):
        node.visits += 1
        h, total = net.words[node.word], node.visits
        for child in node.children:
            below, more = encode(child)
            h, total = torch.tanh(h + below), total + more
        return h, total

    def step(tree):
        h, total = encode(tree)
        return net.update(h.pow(2).sum()), total

    return Program(step, single(shared), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def counts_that_another_function_reads():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def weigh(node):
        h = net.words[node.word] * node.visits
        for child in node.children:
            h = h + weigh(child)
        return h

    def step(tree, other):
        return net.update((encode(tree) + weigh(other)).pow(2).sum())

    calls = []
    for number in range(14):
        tree = counted()
        calls.append((tree, tree if number > 9 else counted()))
    return Program(step, calls, state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def counts_that_the_step_reads():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum()), tree.visits

    return Program(step, single(shared), state=net)


@program(speculated=4, close=CLOSE, compiles=4)
def counts_that_are_something_else_in_time():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    calls = [(counted(),) for _ in range(16)]
    calls[8][0].visits = 1.5
    calls[9][0].visits = True
    calls[10][0].visits = torch.ones(2)
    calls[11][0].visits = 2**70
    del calls[12][0].visits
    return Program(step, calls, state=net)

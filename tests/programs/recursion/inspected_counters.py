"""Numbers that recursive calls count and inspect: their values at the start of a call may decide anything."""

import random

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, Net, bushy, single

CALLS = 16


class Counting(Net):
    """Has numbers beside its parameters."""

    def __init__(self):
        super().__init__()
        self.depth, self.nodes, self.current = 0, 0, None


def trees(calls=CALLS):
    return single(lambda: bushy(random.randint(1, 6)), calls)


# -- served -------------------------------------------------------------------------------------------------------


@program(speculated=8, close=CLOSE)
def the_deepest_by_an_if():
    net = Counting()

    def walk(node, depth):
        if depth > net.depth:
            net.depth = depth
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + walk(child, depth + 1))
        return h

    def step(tree):
        net.depth = 0
        return net.update(walk(tree, 0).pow(2).sum()), net.depth

    return Program(step, trees(), state=net)


@program(speculated=8, close=CLOSE)
def the_deepest_by_an_if_in_a_variable():
    net = Counting()

    def step(tree):
        deepest, nodes = 0, 0

        def walk(node, depth):
            nonlocal deepest, nodes
            nodes += 1
            if deepest < depth:
                deepest = depth
            h = net.words[node.word]
            for child in node.children:
                h = torch.tanh(h + walk(child, depth + 1))
            return h

        return net.update(walk(tree, 0).pow(2).sum() / (1 + nodes)), deepest, nodes

    return Program(step, trees(), state=net)


@program(speculated=8, close=CLOSE)
def nodes_by_their_number():
    net = Counting()

    def walk(node):
        number = net.nodes
        net.nodes += 1
        h = net.words[node.word] + net.words[number % 4] * number
        for child in node.children:
            h = torch.tanh(h + walk(child))
        return h

    def step(tree):
        net.nodes = 0
        return net.update(walk(tree).pow(2).sum()), net.nodes

    return Program(step, trees(), state=net)


@program(speculated=10, close=CLOSE)
def no_more_than_so_many():
    net = Counting()

    def walk(node):
        if net.nodes >= 4:
            return net.words[0] * 0.5
        net.nodes += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + walk(child))
        return h

    def step(tree):
        net.nodes = 0
        return net.update(walk(tree).pow(2).sum()), net.nodes

    return Program(step, trees(20), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def read_though_it_was_not_set():
    """Between calls it is set to something else, and to a number of another kind."""
    net = Counting()

    def walk(node, depth=0):
        net.depth = max(net.depth, depth)
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + walk(child, depth + 1))
        return h

    def step(tree):
        return net.update(walk(tree).pow(2).sum()), net.depth

    def calls():
        for n, call in enumerate(trees(20)):
            if n == 13:
                net.depth = 0
            if n == 16:
                net.depth = 1.5
            yield call

    return Program(step, calls(), state=net)


@program(speculated=10, close=CLOSE)
def begins_with_what_is_there():
    net = Counting()

    def step(tree, start):
        seen, weight = net.nodes, start

        def walk(node):
            nonlocal seen, weight
            seen += 1
            weight = weight * 0.9 + node.word
            h = net.words[node.word]
            for child in node.children:
                h = torch.tanh(h + walk(child))
            return h

        loss = net.update(walk(tree).pow(2).sum())
        net.nodes = seen
        return loss, weight

    return Program(step, [(tree, random.random()) for (tree,) in trees()], state=net)


@program(speculated=8, close=CLOSE)
def the_step_sets_what_calls_do_not_read():
    net = Counting()

    def walk(node):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + walk(child))
        return h

    def step(tree):
        net.current, net.nodes, net.mode = tree, net.nodes + 1, "tree"
        return net.update(walk(tree).pow(2).sum())

    return Program(step, trees(), state=net)


@program(speculated=9, close=CLOSE)
def a_number_that_the_step_sets_and_calls_read():
    net = Counting()

    def walk(node):
        h = net.words[node.word] * net.depth
        if net.depth > 2:
            h = h + 1
        for child in node.children:
            h = torch.tanh(h + walk(child))
        return h

    def step(tree, depth):
        net.depth = depth
        return net.update(walk(tree).pow(2).sum())

    return Program(step, [(tree, n % 4) for n, (tree,) in enumerate(trees(20))], state=net)


# -- not rolled, and right all the same -----------------------------------------------------------------------------


@program(speculated=0, compiles=4, close=CLOSE, reported="does something else with what the step sets")
def decides_after_the_children():
    net = Counting()

    def walk(node, depth):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + walk(child, depth + 1))
        if depth > net.depth:
            net.depth = depth
            h = h * 2
        return h

    def step(tree):
        net.depth = 0
        return net.update(walk(tree, 0).pow(2).sum()), net.depth

    return Program(step, trees(), state=net)


@program(speculated=0, compiles=4, close=CLOSE, reported="does something else with what the step sets")
def put_back_after_the_children():
    net = Counting()

    def walk(node):
        before = net.depth
        net.depth += 1
        h = net.words[node.word] * net.depth
        for child in node.children:
            h = torch.tanh(h + walk(child))
        net.depth = before
        return h

    def step(tree):
        net.depth = 0
        return net.update(walk(tree).pow(2).sum()), net.depth

    return Program(step, trees(), state=net)


@program(speculated=0, compiles=4, close=CLOSE)
def begins_with_what_a_tensor_holds():
    net = Counting()

    def step(tree):
        seen = int(net.words.detach().abs().sum() * 10) % 7

        def walk(node):
            nonlocal seen
            seen += 1
            h = net.words[node.word]
            for child in node.children:
                h = torch.tanh(h + walk(child))
            return h

        return net.update(walk(tree).pow(2).sum()), seen

    return Program(step, trees(), state=net)


@program(speculated=0, compiles=4, close=CLOSE, reported="a recursive call reads what was written in the same step")
def the_step_sets_what_calls_read():
    net = Counting()

    def walk(node):
        h = net.words[node.word] + net.words[net.current.word]
        for child in node.children:
            h = torch.tanh(h + walk(child))
        return h

    def step(tree):
        net.current = tree
        return net.update(walk(tree).pow(2).sum())

    return Program(step, trees(), state=net)


@program(speculated=0, compiles=4, close=CLOSE)
def the_step_sets_what_nodes_read():
    """By another path than the step has it."""
    net = Counting()

    def walk(node):
        h = net.words[node.word] * node.net.rate
        for child in node.children:
            h = torch.tanh(h + walk(child))
        return h

    def owned(node, owner):
        node.net = owner
        for child in node.children:
            owned(child, owner)
        return node

    def step(tree, rate):
        net.rate = torch.tensor(rate)
        return net.update(walk(tree).pow(2).sum())

    other = Counting()
    other.rate = net.rate = torch.tensor(0.5)
    calls = [(owned(tree, net if n % 3 else other), 1.0 + n) for n, (tree,) in enumerate(trees())]
    return Program(step, calls, state=(net, other))


@program(speculated=0, compiles=4, close=CLOSE)
def the_step_sets_what_calls_look_for():
    net = Counting()

    def walk(node):
        h = net.words[node.word] * len([name for name in vars(net) if name.startswith("mark")])
        if hasattr(net, "mark_1"):
            h = h + 1
        for child in node.children:
            h = torch.tanh(h + walk(child))
        return h

    def step(tree, mark):
        if mark:
            net.mark_1 = tree
        else:
            net.mark_2 = tree
        return net.update(walk(tree).pow(2).sum())

    return Program(step, [(tree, n > 8) for n, (tree,) in enumerate(trees())], state=net)

"""Recursive functions that take any arguments: ``*state``, ``**options``."""

import functools

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, Net, binary, forests
from tests.programs.trees.counts_of_trees import CALLS

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


def batches(least=2, most=6):
    return forests(binary, least, most, calls=CALLS)


def summed(net, encode):
    def step(trees):
        loss = 0.0
        for tree in trees:
            loss = loss + encode(tree).pow(2).sum()
        return net.update(loss)

    return Program(step, batches(), state=net)


@program(speculated=18, close=CLOSE, slow=True)
def states_as_further_arguments():
    net = Net()

    def visit(node, *state):
        above, scale = state
        h = torch.tanh(above * scale + net.b)
        if node.left is None:
            return net.words[node.word] + h
        return net.join(visit(node.left, h, scale), visit(node.right, h, scale * 0.5))

    return summed(net, lambda tree: visit(tree, torch.zeros(WIDTH), 1.0))


@program(speculated=18, close=CLOSE)
def options_carried():
    net = Net()

    def leaf(node, scale, shift=0.0):
        return net.words[node.word] * scale + shift

    def visit(node, *args, **options):
        if node.left is None:
            return leaf(node, *args, **options)
        return net.join(visit(node.left, *args, **options), visit(node.right, *args, **options))

    return summed(net, lambda tree: visit(tree, 0.5, shift=0.1))


@program(speculated=16, close=CLOSE, compiles=4)
def more_arguments_the_deeper():
    net = Net()

    def visit(node, *above, **seen):
        h = net.b if not above else above[-1] + sum(above) * 0.1
        if node.left is None:
            return net.words[node.word] + h * len(seen)
        if len(above) > 2:
            return net.join(visit(node.left), visit(node.right, left=False))
        return net.join(visit(node.left, *above, torch.tanh(h), left=True), visit(node.right, *above))

    return summed(net, visit)


@program(speculated=16, close=CLOSE, compiles=4)
def lists_among_further_arguments():
    net = Net()

    def visit(node, *lists):
        (states,) = lists
        inner = node.left is not None
        h = net.join(visit(node.left, *lists), visit(node.right, *lists)) if inner else net.words[node.word]
        states.append(h)
        return h

    def step(trees):
        states = []
        for tree in trees:
            visit(tree, states)
        return net.update(torch.stack(states).pow(2).sum())

    return Program(step, batches(), state=net)


@program(speculated=0, close=CLOSE, compiles=12)
def a_wrapper_around_each_call():
    net, calls = Net(), []

    def reported(fn):
        @functools.wraps(fn)
        def inner(*args, **options):
            calls.append(len(args))
            return fn(*args, **options)

        return inner

    @reported
    def visit(node):
        return net.words[node.word] if node.left is None else net.join(visit(node.left), visit(node.right))

    return summed(net, visit)


@program(speculated=0, close=CLOSE, compiles=12)
def arguments_that_do_not_fit():
    net = Net()

    def visit(node, *state, scale=1.0):
        if node.left is None:
            return net.words[node.word] * scale
        return net.join(visit(node.left, *state, scale=scale), visit(node.right, *state, scales=scale))

    return summed(net, visit)

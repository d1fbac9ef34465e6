"""Recursive functions that reach the same parameters by several access paths."""

import random

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, Net, Node, bushy, single


@program(speculated=24, close=CLOSE, compiles=1)
def three_functions_over_one_model():
    net = Net()

    def expression(node):
        if not node.children:
            return word(node)
        if len(node.children) == 1:
            return one(node)
        return many(node)

    def word(node):
        return net.words[node.word]

    def one(node):
        return net.join(expression(node.children[0]), net.words[0]).sigmoid()

    def many(node):
        return net.join(sum([expression(child) for child in node.children]), net.words[1])

    def step(node):
        return net.update(expression(node).pow(2).sum())

    trees = [bushy(8) for _ in range(6)]
    trees += [Node(1, [Node(2, [Node(random.randrange(7))])]), Node(1, [Node(2), Node(3)])] * 3
    return Program(step, [*((tree,) for tree in trees), *single(lambda: bushy(5), 20)], state=net)


@program(speculated=16, close=CLOSE, compiles=4)
def weights_that_have_two_names():
    net = Net()
    net.left = net.right = torch.nn.Parameter(torch.randn(4, 4) * 0.5)
    net.opt.add_param_group({"params": [net.left]})

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            below = encode(child)
            h = h + below @ (net.left if child.word % 2 else net.right)
        return h.tanh()

    def step(node):
        return net.update(encode(node).pow(2).sum())

    trees = [Node(1, [Node(2), Node(4)]), Node(1, [Node(3)]), Node(1, [Node(2), Node(3)])] * 8
    return Program(step, [(tree,) for tree in trees], state=net)

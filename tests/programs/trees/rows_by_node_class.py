"""Nodes of many classes with one row each in a table: all else that they compute is the same."""

import random

import torch
from torch import nn

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, forests, parameter

CALLS = 24
KINDS = [type(f"Kind{n}", (), {}) for n in range(12)]
NUMBERS = {cls: n for n, cls in enumerate(KINDS)}


def grown(depth=0):
    node = random.choice(KINDS)()
    node.children = [grown(depth + 1) for _ in range(random.randrange(3))] if depth < 3 else []
    return node


class Table:
    def __init__(self):
        self.words = parameter(len(KINDS), WIDTH)
        self.w = parameter(WIDTH, WIDTH)
        self.opt = torch.optim.SGD([self.words, self.w], lr=0.05)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def trained(net, encode):
    def step(trees):
        loss = 0.0
        for tree in trees:
            loss = loss + encode(tree).pow(2).sum()
        return net.update(loss)

    return Program(step, forests(grown, 6, 6, calls=CALLS), state=net)


@program(speculated=18, close=CLOSE)
def rows_by_the_class_of_the_node():
    net = Table()

    def encode(node):
        h = net.words[NUMBERS[type(node)]]
        for child in node.children:
            h = h + encode(child)
        return torch.tanh(h @ net.w)

    return trained(net, encode)


@program(speculated=18, close=CLOSE)
def embeddings_by_the_class_of_the_node():
    net = Table()
    table = nn.Embedding.from_pretrained(net.words.detach().clone(), freeze=False)
    net.opt.add_param_group({"params": table.parameters()})

    def encode(node):
        h = table(torch.tensor(NUMBERS[type(node)])) + net.words[-1]
        for child in node.children:
            h = h + encode(child)
        return torch.tanh(h @ net.w)

    return trained(net, encode)


@program(speculated=18, close=CLOSE)
def matrices_by_side():
    """What is the same in all ways is named as it was, and matrices are not looked up."""
    net = Table()
    sides = parameter(2, WIDTH, WIDTH)
    net.opt.add_param_group({"params": [sides]})

    def encode(node):
        h = net.words[NUMBERS[type(node)]]
        for n, child in enumerate(node.children):
            h = h + encode(child) @ sides[n]
        return torch.tanh(h)

    return trained(net, encode)

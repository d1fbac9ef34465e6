"""Recursive calls that gather rows of the step's tensors by numbers of their nodes: one row a node."""

import random

import torch
import torch.nn.functional as F

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, Net, bushy, parameter

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

CLASSES = 3


class Tagger(Net):
    """Words, weights, and scores for each node."""

    def __init__(self):
        super().__init__()
        self.v = parameter(4, CLASSES)
        self.labels = None
        self.opt = torch.optim.SGD([self.words, self.w, self.b, self.v], lr=0.05)

    def score(self, h):
        return (h @ self.v)[None]


def numbered(node, first=0):
    node.number = first
    first += 1
    for child in node.children:
        first = numbered(child, first)
    return first


def tagged(calls=18):
    found = []
    for _ in range(calls):
        tree = bushy(random.randint(2, 9))
        found.append((tree, torch.randint(0, CLASSES, (numbered(tree),))))
    return found


@program(speculated=12, close=CLOSE)
def labels_that_are_passed_along():
    net = Tagger()

    def encode(node, labels, losses):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child, labels, losses))
        losses.append(F.cross_entropy(net.score(h), labels[node.number].unsqueeze(0)))
        return h

    def step(tree, labels):
        losses = []
        encode(tree, labels, losses)
        return net.update(sum(losses) / len(losses))

    return Program(step, tagged(), state=net)


@program(speculated=12, close=CLOSE)
def labels_that_the_model_holds():
    net = Tagger()

    def encode(node):
        h, loss = net.words[node.word], 0
        for child in node.children:
            below, more = encode(child)
            h, loss = torch.tanh(h + below), loss + more
        return h, loss + F.cross_entropy(net.score(h), net.labels[node.number : node.number + 1])

    def step(tree, labels):
        return net.update(encode(tree)[1])

    calls = tagged()

    def hold(number):
        return lambda: setattr(net, "labels", calls[number][1])

    return Program(step, calls, state=net, before={n: hold(n) for n in range(len(calls))})


@program(speculated=12, close=CLOSE)
def rows_of_features():
    net = Tagger()

    def encode(node, features):
        h = net.words[node.word] + features[node.number]
        for child in node.children:
            h = torch.tanh(h + encode(child, features))
        return h

    def step(tree, labels, features):
        return net.update(F.cross_entropy(net.score(encode(tree, features)), labels[:1]))

    calls = [(tree, labels, torch.randn(len(labels), 4)) for tree, labels in tagged()]
    return Program(step, calls, state=net)


@program(speculated=0, compiles=3, reported="changes a tensor in place of which recursive calls pick rows")
def labels_that_the_step_has_changed():
    net = Tagger()

    def encode(node, labels):
        h, loss = net.words[node.word], 0
        for child in node.children:
            below, more = encode(child, labels)
            h, loss = torch.tanh(h + below), loss + more
        return h, loss + F.cross_entropy(net.score(h), labels[node.number : node.number + 1])

    def step(tree, labels):
        labels[1:].clamp_(max=1)
        return net.update(encode(tree, labels)[1])

    return Program(step, tagged(10), state=net)


@program(speculated=0, compiles=3, reported="changes a tensor in place of which recursive calls pick rows")
def labels_of_which_the_step_has_set_one():
    net = Tagger()

    def encode(node, labels):
        h, loss = net.words[node.word], 0
        for child in node.children:
            below, more = encode(child, labels)
            h, loss = torch.tanh(h + below), loss + more
        return h, loss + F.cross_entropy(net.score(h), labels[node.number : node.number + 1])

    def step(tree, labels):
        labels[0] = 2
        return net.update(encode(tree, labels)[1])

    return Program(step, tagged(10), state=net)


@program(speculated=8, close=CLOSE)
def rows_that_are_counted_from_the_end_or_missing():
    net = Tagger()

    def encode(node, labels):
        h, loss = net.words[node.word], 0
        for child in node.children:
            below, more = encode(child, labels)
            h, loss = torch.tanh(h + below), loss + more
        return h, loss + F.cross_entropy(net.score(h), labels[node.number].unsqueeze(0))

    def step(tree, labels):
        return net.update(encode(tree, labels)[1])

    calls = tagged()
    calls[11][0].number = -1
    calls[12] = (calls[12][0], calls[12][1][:-1])
    calls[13] = (calls[13][0], calls[13][1][:, None])
    return Program(step, calls, state=net)


@program(speculated=6, close=CLOSE, compiles=3)
def slices_that_are_empty():
    net = Tagger()

    def encode(node, weights):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child, weights))
        return h * (1 + weights[node.number : node.number + 1].sum())

    def step(tree, weights):
        return net.update(encode(tree, weights).pow(2).sum())

    calls = [(tree, torch.randn(len(labels))) for tree, labels in tagged(14)]
    calls[9][0].number = -1
    calls[11][0].number = 100
    return Program(step, calls, state=net)


@program(speculated=5, close=CLOSE)
def one_of_two_tensors():
    net = Tagger()

    def encode(node, left, right, side):
        rows = left if side else right
        h = net.words[node.word] + rows[node.number]
        for number, child in enumerate(node.children):
            h = torch.tanh(h + encode(child, left, right, number % 2))
        return h

    def step(tree, left, right):
        return net.update(encode(tree, left, right, 0).pow(2).sum())

    calls = [(tree, torch.randn(len(labels), 4), torch.randn(len(labels) + 2, 4)) for tree, labels in tagged()]
    return Program(step, calls, state=net)


@program(speculated=0, compiles=3, reported="recursive calls use tensors of sizes")
def tensors_of_other_sizes_that_all_calls_use():
    net = Tagger()

    def encode(node, weights):
        h = net.words[node.word] * weights.mean()
        for child in node.children:
            h = torch.tanh(h + encode(child, weights))
        return h

    def step(tree, weights):
        return net.update(encode(tree, weights).pow(2).sum())

    return Program(step, [(tree, torch.randn(len(labels))) for tree, labels in tagged(10)], state=net)


@program(speculated=0, compiles=3)
def rows_with_gradients():
    net = Tagger()

    def encode(node, rows):
        h = net.words[node.word] + rows[node.number]
        for child in node.children:
            h = torch.tanh(h + encode(child, rows))
        return h

    def step(tree, rows):
        net.update(encode(tree, rows).pow(2).sum())
        return rows.grad

    return Program(step, [(tree, parameter(len(labels), 4)) for tree, labels in tagged(10)], state=net)

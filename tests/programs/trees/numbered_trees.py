"""Loops over trees that use the iteration index; batches of any size."""

import random

import torch
import torch.nn.functional as F

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, binary, forests, parameter
from tests.programs.trees.results_of_trees import Encoder

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CALLS = 20
CLASSES = 3


class Classifier(Encoder):
    def __init__(self):
        super().__init__()
        self.v = parameter(WIDTH, CLASSES)
        self.opt.add_param_group({"params": [self.v]})

    def loss(self, tree, label):
        return F.cross_entropy(self.encode(tree) @ self.v, torch.tensor(label))


class Reversed:
    def __init__(self, values):
        self.values = values

    def __getitem__(self, index):
        return self.values[-1 - index]


def batches(most=9):
    return forests(binary, 2, most, calls=CALLS)


def labelled():
    return [(trees, [random.randrange(CLASSES) for _ in trees]) for (trees,) in batches()]


@program(speculated=15, close=CLOSE, compiles=3)
def number_of_which_nothing_is_made():
    net = Encoder()

    def step(trees):
        loss = 0.0
        for i, tree in enumerate(trees):
            loss = loss + net.encode(tree).pow(2).sum()
        return net.update(loss / len(trees))

    return Program(step, batches(), state=net)


@program(speculated=15, close=CLOSE, compiles=3)
def labels_by_the_number_of_their_tree():
    net = Classifier()

    def step(trees, labels):
        loss = 0.0
        for i, tree in enumerate(trees):
            loss = loss + net.loss(tree, labels[i])
        return net.update(loss)

    return Program(step, labelled(), state=net)


@program(speculated=15, close=CLOSE, compiles=3)
def trees_and_labels_by_number():
    net = Classifier()

    def step(trees, labels):
        loss = 0.0
        for i in range(len(trees)):
            loss += net.loss(trees[i], labels[i])
        return net.update(loss)

    return Program(step, labelled(), state=net)


@program(speculated=15, close=CLOSE, compiles=3)
def losses_by_number_in_a_comprehension():
    net = Classifier()

    def step(trees, labels):
        losses = [net.loss(tree, labels[i]) for i, tree in enumerate(trees)]
        return net.update(torch.stack(losses).mean())

    return Program(step, labelled(), state=net)


@program(speculated=5, close=CLOSE, compiles=8)
def number_that_is_used_afterwards():
    net = Encoder()

    def step(trees):
        loss = 0.0
        for i, tree in enumerate(trees):
            loss = loss + net.encode(tree).pow(2).sum()
        return net.update(loss / (i + 1))

    return Program(step, batches(), state=net)


@program(speculated=11, close=CLOSE, compiles=8)
def number_that_weighs():
    net = Encoder()

    def step(trees):
        loss = 0.0
        for i, tree in enumerate(trees):
            loss = loss + net.encode(tree).pow(2).sum() * (i + 1)
        return net.update(loss)

    return Program(step, batches(4), state=net)


@program(speculated=11, close=CLOSE, compiles=8)
def number_that_decides():
    net = Encoder()

    def step(trees):
        loss = 0.0
        for i, tree in enumerate(trees):
            h = net.encode(tree)
            loss = loss + (h.pow(2).sum() if i == 1 else h.sum())
        return net.update(loss)

    return Program(step, batches(4), state=net)


@program(speculated=5, close=CLOSE, compiles=8)
def rows_of_a_tensor_by_number():
    net = Classifier()

    def step(trees, labels):
        loss = 0.0
        for i, tree in enumerate(trees):
            loss = loss + F.cross_entropy(net.encode(tree) @ net.v, labels[i])
        return net.update(loss)

    return Program(step, [(trees, torch.tensor(labels)) for trees, labels in labelled()], state=net)


@program(speculated=11, close=CLOSE, compiles=8)
def values_of_a_dictionary_by_number():
    net, weights = Encoder(), {n: 0.5 * n for n in range(10)}

    def step(trees):
        loss = 0.0
        for i, tree in enumerate(trees):
            loss = loss + net.encode(tree).pow(2).sum() * weights[i]
        return net.update(loss)

    return Program(step, batches(4), state=net)


@program(speculated=5, close=CLOSE, compiles=8)
def elements_by_a_method_of_the_program():
    net = Classifier()

    def step(trees, labels):
        turned, loss = Reversed(labels), 0.0
        for i, tree in enumerate(trees):
            loss = loss + net.loss(tree, turned[i])
        return net.update(loss)

    return Program(step, labelled(), state=net)


@program(speculated=11, close=CLOSE, compiles=8)
def elements_of_a_list_of_the_step():
    net = Encoder()

    def step(trees):
        weights, loss = [0.5, 1.0, 1.5, 2.0, 2.5], 0.0
        for i, tree in enumerate(trees):
            loss = loss + net.encode(tree).pow(2).sum() * weights[i]
        return net.update(loss)

    return Program(step, batches(4), state=net)


@program(speculated=5, close=CLOSE, compiles=8)
def lists_that_change_places():
    net = Classifier()

    def step(trees, labels, others):
        loss = 0.0
        for i, tree in enumerate(trees):
            loss = loss + net.loss(tree, labels[i])
            labels, others = others, labels
        return net.update(loss)

    return Program(step, [(trees, labels, labels[::-1]) for trees, labels in labelled()], state=net)


@program(speculated=12, close=CLOSE, compiles=4)
def labels_that_are_too_few_or_too_many():
    net = Classifier()

    def step(trees, labels):
        loss = 0.0
        for i, tree in enumerate(trees):
            loss = loss + net.loss(tree, labels[i])
        return net.update(loss)

    calls = labelled()
    calls[7][1].pop()
    calls[9][1].append(1)
    calls[12][1].extend([2, 2])
    return Program(step, calls, state=net)

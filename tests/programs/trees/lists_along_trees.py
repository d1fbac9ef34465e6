"""Lists passed along trees to which the call for each node appends, and numbers that the calls count."""

import random

import torch
import torch.nn.functional as F

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, binary
from tests.programs.trees.counts_of_trees import CALLS, CLASSES, Encoder

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


def label(tree):
    tree.label = random.randrange(CLASSES)
    if tree.left is not None:
        label(tree.left), label(tree.right)
    return tree


def batches(least=2, most=7):
    return [([label(binary()) for _ in range(random.randint(least, most))],) for _ in range(CALLS)]


class Labelled(Encoder):
    def down(self, tree, losses):
        h = self.encode_one(tree, losses)
        losses.append(F.cross_entropy(h @ self.v, torch.tensor(tree.label)))
        return h

    def encode_one(self, tree, losses):
        if tree.left is None:
            return self.words[tree.word]
        return self.join(self.down(tree.left, losses), self.down(tree.right, losses))


@program(speculated=17, close=CLOSE, compiles=3)
def losses_of_all_nodes():
    model = Labelled()

    def step(trees):
        losses, correct = [], 0
        for tree in trees:
            h = model.down(tree, losses)
            correct += int((h @ model.v).argmax() == tree.label)
        return model.update(sum(losses) / len(losses)), correct / len(trees)

    return Program(step, batches(), state=model)


@program(speculated=18, close=CLOSE, compiles=2)
def outputs_and_labels_in_a_closure():
    model = Encoder()

    def step(trees):
        outputs, labels = [], []

        def encode(tree):
            inner = tree.left is not None
            h = model.join(encode(tree.left), encode(tree.right)) if inner else model.words[tree.word]
            outputs.append(h @ model.v)
            labels.append(torch.tensor(tree.label))
            return h

        for tree in trees:
            encode(tree)
        out, target = torch.stack(outputs), torch.stack(labels)
        return model.update(F.cross_entropy(out, target)), (out.argmax(1) == target).sum().item() / len(outputs)

    return Program(step, batches(), state=model)


@program(speculated=16, close=CLOSE, compiles=2)
def nodes_counted_on_the_model():
    class Counting(Encoder):
        def encode(self, tree):
            self.nodes += 1
            return super().encode(tree)

    model = Counting()
    model.nodes = 0

    def step(trees):
        loss = 0.0
        for tree in trees:
            loss = loss + model(tree).pow(2).sum()
        return model.update(loss)

    return Program(step, batches(), state=model)


@program(speculated=0, close=CLOSE, compiles=12)
def the_list_is_looked_into_in_iterations():
    model = Labelled()

    def step(trees):
        losses, total = [], 0.0
        for tree in trees:
            model.down(tree, losses)
            total = total + torch.stack(losses).mean()
        return model.update(total)

    return Program(step, batches(2, 3), state=model)


@program(speculated=0, close=CLOSE, compiles=12)
def iterations_append_too():
    model = Labelled()

    def step(trees):
        losses = []
        for tree in trees:
            losses.append(model.down(tree, losses).sum())
        return model.update(sum(losses))

    return Program(step, batches(2, 3), state=model)


@program(speculated=10, close=CLOSE, compiles=12)
def lists_that_change_places():
    model = Labelled()

    def step(trees):
        some, others = [], []
        for tree in trees:
            model.down(tree, some)
            some, others = others, some
        return model.update(2 * sum(some) + sum(others)), len(some)

    return Program(step, batches(2, 4), state=model)


@program(speculated=18, close=CLOSE, compiles=2)
def states_returned_and_appended():
    model = Encoder()

    def down(tree, states):
        inner = tree.left is not None
        h = model.join(down(tree.left, states), down(tree.right, states)) if inner else model.words[tree.word]
        states.append(h)
        return h

    def step(trees):
        states, loss, tops = [], 0.0, []
        for tree in trees:
            top = down(tree, states)
            loss = loss + top.sum()
            tops.append(top)
        return model.update(loss + torch.stack(states).pow(2).mean() + torch.stack(tops).sum())

    return Program(step, batches(), state=model)


@program(speculated=0, close=CLOSE)
def labels_in_a_list_of_the_model():
    """They are plain numbers when the step is over."""
    net = Encoder()
    net.labels = []

    def encode(tree):
        h = net.words[tree.word] if tree.left is None else net.join(encode(tree.left), encode(tree.right))
        net.labels.append(tree.label)
        return h

    def step(trees):
        net.labels = []
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, batches(4, 4), state=net)

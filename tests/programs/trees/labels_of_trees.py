"""Lists of numbers beside mini-batches of trees of any size, of which a step makes tensors."""

import torch
import torch.nn.functional as F

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE
from tests.programs.trees.numbered_trees import Classifier, labelled

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


def outputs(net, trees):
    return torch.stack([net.encode(tree) for tree in trees]) @ net.v


@program(speculated=15, close=CLOSE)
def labels_as_one_tensor():
    net = Classifier()

    def step(trees, labels):
        out = outputs(net, trees)
        right = (out.argmax(1) == torch.tensor(labels)).sum()
        return net.update(F.cross_entropy(out, torch.tensor(labels))), right.item()

    return Program(step, labelled(), state=net)


@program(speculated=4, close=CLOSE, compiles=8)
def labels_that_decide():
    net = Classifier()

    def step(trees, labels):
        loss = F.cross_entropy(outputs(net, trees), torch.tensor(labels))
        return net.update(loss * 2 if labels[0] == 1 else loss)

    return Program(step, labelled(), state=net)


@program(speculated=5, close=CLOSE, compiles=8)
def labels_that_are_counted_with():
    net = Classifier()

    def step(trees, labels):
        loss = F.cross_entropy(outputs(net, trees), torch.tensor(labels), reduction="sum")
        return net.update(loss / len(labels)), labels[1]

    return Program(step, labelled(), state=net)


@program(speculated=5, close=CLOSE, compiles=8)
def labels_that_the_step_changes():
    net = Classifier()

    def step(trees, labels):
        out = outputs(net, trees)
        labels[0] = 2
        return net.update(F.cross_entropy(out, torch.tensor(labels)))

    return Program(step, labelled(), state=net)


@program(speculated=9, close=CLOSE, compiles=8)
def labels_of_several_types_and_lengths():
    net = Classifier()

    def step(trees, labels):
        out = outputs(net, trees)
        return net.update(out.pow(2).mean() + torch.tensor(labels).sum())

    calls = labelled()
    for number in (6, 9, 13):
        calls[number][1][0] = 0.5
    calls[8][1].append(True)
    calls[11][1].append(3)
    calls[14][1].clear()
    return Program(step, calls, state=net)


@program(speculated=13, close=CLOSE, compiles=8)
def labels_that_do_not_fit():
    net = Classifier()

    def step(trees, labels):
        out = outputs(net, trees)
        return net.update(F.cross_entropy(out, torch.tensor(labels)))

    calls = labelled()
    calls[8][1].append(1)
    calls[11][1].pop()
    return Program(step, calls, state=net)

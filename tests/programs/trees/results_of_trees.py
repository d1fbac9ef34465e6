"""Lists of what a step computes for each of its trees, of another length at each call."""

import random

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, Net, Tree, binary, forests

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CALLS = 30


class Encoder(Net):
    def encode(self, tree):
        return (
            self.words[tree.word] if tree.left is None else self.join(self.encode(tree.left), self.encode(tree.right))
        )


def batches(calls=CALLS):
    return forests(binary, 2, 25, calls=calls)


@program(speculated=25, close=CLOSE, compiles=1)
def states_in_a_comprehension():
    net = Encoder()

    def step(trees):
        with torch.no_grad():
            return [net.encode(tree) for tree in trees]

    return Program(step, batches(), state=net)


@program(speculated=25, close=CLOSE, compiles=1)
def states_in_a_tuple():
    net = Encoder()

    @torch.no_grad()
    def step(trees):
        return tuple(net.encode(tree) for tree in trees)

    return Program(step, batches(), state=net)


@program(speculated=15, close=CLOSE, compiles=8)
def states_of_which_some_are_rows_of_a_parameter():
    net = Encoder()

    def step(trees):
        with torch.no_grad():
            return [net.encode(tree) for tree in trees]

    calls = batches()
    for number, (trees,) in enumerate(calls):
        if number in (2, 7, 13, 14, 20):
            trees[random.randrange(len(trees))] = Tree(word=3)
    return Program(step, calls, state=net)


@program(speculated=25, close=CLOSE, compiles=1)
def a_loss_and_the_states():
    net = Encoder()

    def step(trees):
        states, loss = [], 0.0
        for tree in trees:
            h = net.encode(tree)
            loss = loss + h.pow(2).sum()
            states.append(h.detach())
        return net.update(loss / len(trees)), states

    return Program(step, batches(), state=net)


@program(speculated=25, close=CLOSE, compiles=1)
def classes_of_all_trees():
    net = Encoder()

    @torch.no_grad()
    def step(trees):
        return [net.encode(tree).argmax() for tree in trees]

    return Program(step, batches(), state=net)

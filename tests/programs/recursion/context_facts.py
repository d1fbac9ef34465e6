"""Recursive calls that depend on facts of their context, which change from call to call of the step."""

import random

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, Net, Tree, binary, forests, shape_of

CALLS = 24


@program(speculated=16, close=CLOSE, compiles=2)
def a_flag_that_changes():
    net = Net()
    mode = {"twice": False}

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        return h * 0.5 if mode["twice"] else h

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    def flip():
        mode["twice"] = not mode["twice"]

    return Program(step, forests(binary, calls=CALLS), state=net, before={10: flip, 16: flip, 20: flip})


@program(speculated=16, close=CLOSE, compiles=2)
def a_factor_that_changes():
    net = Net()
    mode = {"scale": 1.0}

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right)) * mode["scale"]

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(binary, calls=CALLS), state=net, before={10: lambda: mode.update(scale=0.5)})


@program(speculated=15, close=CLOSE, compiles=2)
def a_method_that_changes():
    net = Net()

    class Acting(Tree):
        def act(self, h):
            return torch.tanh(h)

    def build(shape):
        return Acting(word=shape) if isinstance(shape, int) else Acting(None, build(shape[0]), build(shape[1]))

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return tree.act(net.join(encode(tree.left), encode(tree.right)))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    def change():
        Acting.act = lambda self, h: h * 0.5

    calls = [([build(shape_of(random.randint(2, 6))) for _ in range(2)],) for _ in range(CALLS)]
    return Program(step, calls, state=net, before={10: change})


@program(speculated=14, close=CLOSE, compiles=2)
def a_flag_that_is_asked_in_leaves_first_and_changes_then():
    net = Net()
    mode = {}

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        return h * 0.5 if "twice" in mode else h

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(binary, calls=CALLS), state=net, before={10: lambda: mode.update(twice=True)})


@program(speculated=14, close=CLOSE, compiles=3)
def a_flag_of_the_loop_over_trees():
    net = Net()
    mode = {"twice": False}

    def encode(tree):
        return net.words[tree.word] if tree.left is None else net.join(encode(tree.left), encode(tree.right))

    def step(trees):
        loss = net.b.sum()
        for tree in trees:
            h = encode(tree)
            if mode["twice"]:
                h = h * 0.5
            loss = loss + h.pow(2).sum()
        return net.update(loss / len(trees))

    def flip():
        mode["twice"] = not mode["twice"]

    return Program(step, forests(binary, 3, 6, calls=CALLS), state=net, before={10: flip, 16: flip})


@program(speculated=14, close=CLOSE, compiles=3)
def a_flag_that_only_later_trees_ask_for():
    net = Net()
    mode = {"twice": False}

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        if tree.word == 3 and mode["twice"]:
            return h * 0.5
        return h

    calls = forests(binary, calls=CALLS)
    for (trees,) in calls[8:]:
        trees[0].word = 3

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, calls, state=net, before={16: lambda: mode.update(twice=True)})

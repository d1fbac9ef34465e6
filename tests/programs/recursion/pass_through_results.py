"""Recursive calls that return tensors they were given: to eager these are the very same tensors."""

import random

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CALLS, CLOSE, WIDTH, Net, binary, forests, single


def with_bias(net):
    def encode(node):
        if node.left is None:
            return net.b, net.words[node.word]
        (_, left), (bias, right) = encode(node.left), encode(node.right)
        return bias, net.join(left, right)

    return encode


@program(speculated=0, close=CLOSE, compiles=8)
def a_parameter_in_a_tuple():
    net = Net()
    encode = with_bias(net)

    def step(trees):
        states = [encode(tree) for tree in trees]
        net.update(sum(h.pow(2).sum() for _, h in states))
        return states[0][0], [bias for bias, _ in states]

    return Program(step, forests(binary), state=net)


@program(speculated=0, close=CLOSE, compiles=8, reported="compares a tensor that a recursive call returned")
def a_parameter_that_is_compared():
    net = Net()
    encode = with_bias(net)

    def step(tree):
        bias, h = encode(tree)
        net.update(h.pow(2).sum())
        return bias is net.b, bias is not h

    return Program(step, single(binary), state=net)


@program(
    speculated=0, close=CLOSE, compiles=8, reported="asks for 'is_leaf' of a tensor that a recursive call returned"
)
def a_parameter_that_is_asked_for_its_gradient():
    net = Net()
    encode = with_bias(net)

    def step(tree):
        bias, h = encode(tree)
        net.update(h.pow(2).sum())
        return bias.is_leaf, bias.grad.sum().item()

    return Program(step, single(binary), state=net)


@program(speculated=0, close=CLOSE, compiles=8)
def a_parameter_that_is_kept():
    net = Net()

    def last(node):
        return net.b if node.left is None else last(node.right)

    def step(tree):
        net.last, net.all = last(tree), {"bias": [last(tree)]}
        return net.update((net.last * 2).sum())

    return Program(step, single(binary), state=net)


@program(speculated=0, close=CLOSE, compiles=8)
def a_state_that_comes_back():
    net = Net()

    def encode(node, state):
        if node.left is None:
            return state if node.word % 2 else torch.tanh(state + net.words[node.word])
        return encode(node.right, encode(node.left, state))

    def step(tree, state):
        first = torch.tanh(state)
        final = encode(tree, first)
        net.update(final.sum() + net.b.sum() * 0 + net.words.sum() * 0)
        return first, final, final is first

    return Program(step, [(binary(random.randint(1, 3)), torch.randn(WIDTH)) for _ in range(CALLS)], state=net)

"""Recursive functions that compute only with numbers: how many nodes a tree has, how deep it is."""

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, binary, forests, single
from tests.programs.trees.results_of_trees import Encoder

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CALLS = 16


def size(tree):
    return 1 if tree.left is None else size(tree.left) + size(tree.right)


def height(tree):
    return 0 if tree.left is None else 1 + max(height(tree.left), height(tree.right))


def text(tree):
    return str(tree.word) if tree.left is None else f"({text(tree.left)} {text(tree.right)})"


def leaves(tree):
    return [tree.word] if tree.left is None else leaves(tree.left) + leaves(tree.right)


@program(speculated=11, close=CLOSE)
def sizes_beside_states():
    net = Encoder()

    def step(trees):
        loss, nodes = 0.0, 0
        for tree in trees:
            loss = loss + net.encode(tree).pow(2).sum()
            nodes += size(tree)
        return net.update(loss / nodes), nodes

    return Program(step, forests(binary, 4, 4, calls=CALLS), state=net)


@program(speculated=12, close=CLOSE)
def sizes_of_any_number_of_trees():
    net = Encoder()

    def step(trees):
        loss = 0.0
        for tree in trees:
            loss = loss + net.encode(tree).pow(2).sum() / size(tree)
        return net.update(loss)

    return Program(step, forests(binary, 2, 8, calls=CALLS), state=net)


@program(speculated=13, close=CLOSE)
def heights_and_nothing_else():
    net = Encoder()

    def step(trees):
        loss = 0.0
        for tree in trees:
            loss = loss + (net.words.sum(0) * height(tree)).pow(2).sum()
        return net.update(loss)

    return Program(step, forests(binary, 2, 8, calls=CALLS), state=net)


@program(speculated=8, close=CLOSE)
def height_that_decides():
    net = Encoder()

    def step(tree):
        loss = net.encode(tree).pow(2).sum()
        if height(tree) > 2:
            loss = loss * 2
        return net.update(loss)

    return Program(step, single(binary, calls=CALLS), state=net)


@program(speculated=2, close=CLOSE)
def text_of_a_tree():
    net = Encoder()

    def step(tree):
        return net.update(net.encode(tree).pow(2).sum()), text(tree)

    return Program(step, single(binary, calls=CALLS), state=net)


@program(speculated=1, close=CLOSE, compiles=5)
def words_of_a_tree():
    net = Encoder()

    def step(tree):
        return net.update((net.words[torch.tensor(leaves(tree))] @ net.encode(tree)).sum())

    return Program(step, single(binary, calls=CALLS), state=net)


class Stop(Exception):
    """Thrown at the bottom."""


@program(speculated=9, compiles=3)
def numbers_that_end_in_an_exception():
    def down(n):
        if n == 0:
            raise Stop
        return down(n - 1) + n % 2 if n % 2 else down(n - 1)

    def step(x, n):
        try:
            return x * down(n)
        except Stop:
            return x * 2

    return Program(step, [(torch.full((3,), float(call)), 3 + call % 3) for call in range(20)])

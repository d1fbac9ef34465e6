"""Trees with nodes of several classes, each with a method of its own that recurs into the nodes below."""

import random

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, WORDS, Net

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CALLS = 24


class Grammar:
    """Four classes of nodes over one net."""

    def __init__(self):
        net = self.net = Net()

        class Word:
            def __init__(self, word):
                self.word = word

            def encode(self):
                return net.words[self.word]

        class Not:
            def __init__(self, child):
                self.child = child

            def encode(self):
                return torch.tanh(self.child.encode() @ net.w[:WIDTH])

        class Join:
            def __init__(self, left, right):
                self.left, self.right = left, right

            def encode(self):
                return net.join(self.left.encode(), self.right.encode())

        class Gate:
            def __init__(self, left, right):
                self.left, self.right = left, right

            def encode(node):
                return node.left.encode() * torch.sigmoid(node.right.encode())

        self.word, self.one, self.two = Word, [Not], [Join, Gate]

    def make(self, leaves=None):
        leaves = leaves or random.randint(2, 6)
        if leaves == 1:
            return self.word(random.randrange(WORDS))
        if random.random() < 0.25:
            return random.choice(self.one)(self.make(leaves))
        split = random.randint(1, leaves - 1)
        return random.choice(self.two)(self.make(split), self.make(leaves - split))

    def every(self):
        """A tree with nodes of all classes, so that each step uses all parameters."""
        tree = self.make()
        for cls in (*self.one, *self.two):
            tree = cls(tree) if cls in self.one else cls(tree, self.word(1))
        return tree

    def forests(self, least=2, most=2):
        return [([self.every(), *(self.make() for _ in range(random.randint(least, most) - 1))],) for _ in range(CALLS)]


@program(speculated=20, close=CLOSE, compiles=1)
def a_method_in_each_class():
    grammar = Grammar()

    def step(trees):
        return grammar.net.update(sum(tree.encode().pow(2).sum() for tree in trees))

    return Program(step, grammar.forests(), state=grammar.net)


@program(speculated=17, close=CLOSE, compiles=1)
def any_number_of_trees_of_several_classes():
    grammar = Grammar()

    def step(trees):
        return grammar.net.update(sum(tree.encode().pow(2).sum() for tree in trees) / len(trees))

    return Program(step, grammar.forests(2, 5), state=grammar.net)


@program(speculated=18, close=CLOSE, compiles=1)
def one_tree_of_several_classes():
    grammar = Grammar()

    def step(trees):
        return grammar.net.update(trees[0].encode().pow(2).sum())

    return Program(step, grammar.forests(1, 1), state=grammar.net)


@program(speculated=12, close=CLOSE, compiles=2)
def a_class_that_is_asked_for():
    grammar = Grammar()
    net, word = grammar.net, grammar.word

    class Scaled(grammar.two[0]):
        def encode(self):
            h = super().encode()
            if type(self.left) is word:
                return h * 2
            return h + self.right.encode()

    grammar.two = [grammar.two[1], Scaled]

    def step(trees):
        return net.update(sum(tree.encode().pow(2).sum() for tree in trees))

    return Program(step, grammar.forests(), state=net)


@program(speculated=12, close=CLOSE, compiles=7)
def a_method_called_by_its_class():
    grammar = Grammar()
    net, (_, gate) = grammar.net, grammar.two

    class Twice(gate):
        def encode(self):
            return (gate.encode(self) + self.left.encode()) * 0.5

    class Thrice(Twice):
        def encode(self):
            return super().encode() * 0.5

    grammar.two = [grammar.two[0], Twice, Thrice]

    def step(trees):
        return net.update(sum(tree.encode().pow(2).sum() for tree in trees))

    return Program(step, grammar.forests(), state=net)


@program(speculated=8, close=CLOSE, compiles=2)
def a_node_with_a_method_of_its_own():
    grammar = Grammar()
    net = grammar.net
    calls = grammar.forests()
    for (trees,) in calls[14::4]:
        trees[1] = grammar.make(1)
        trees[1].encode = lambda: net.words[0] * 3
    for (trees,) in calls[16::4]:
        trees[1] = grammar.two[0](grammar.make(1), grammar.make(1))
        trees[1].left.encode = lambda: net.words[1] * 2

    def step(trees):
        return net.update(sum(tree.encode().pow(2).sum() for tree in trees))

    return Program(step, calls, state=net)


@program(speculated=12, close=CLOSE, compiles=2)
def a_method_that_is_replaced():
    grammar = Grammar()
    net = grammar.net

    def replace():
        grammar.word.encode = lambda self: net.words[self.word] * 0.5

    def step(trees):
        return net.update(sum(tree.encode().pow(2).sum() for tree in trees))

    return Program(step, grammar.forests(), state=net, before={15: replace})


@program(speculated=18, close=CLOSE, compiles=2)
def methods_with_a_depth():
    net = Net()

    class Leaf:
        def __init__(self, word):
            self.word = word

        def encode(self, depth, *, scale):
            return net.words[self.word] * (scale / depth)

    class Inner:
        def __init__(self, left, right):
            self.left, self.right = left, right

        def encode(self, level, *, scale=1.0):
            return net.join(self.left.encode(level + 1, scale=scale), self.right.encode(1 + level, scale=0.5))

    def make(leaves):
        if leaves == 1:
            return Leaf(random.randrange(WORDS))
        split = random.randint(1, leaves - 1)
        return Inner(make(split), make(leaves - split))

    def step(trees):
        return net.update(sum(tree.encode(1).pow(2).sum() for tree in trees))

    return Program(step, [([make(random.randint(2, 6)), make(3)],) for _ in range(CALLS)], state=net)


@program(speculated=18, close=CLOSE, compiles=2)
def classes_that_return_numbers_too():
    net = Net()

    class Leaf:
        def __init__(self, word):
            self.word = word

        def encode(self):
            return net.words[self.word], 1

    class Inner:
        def __init__(self, left, right):
            self.left, self.right = left, right

        def encode(self):
            (one, n), (other, m) = self.left.encode(), self.right.encode()
            return net.join(one, other) * (n / (n + m)), n + m

    def make(leaves):
        if leaves == 1:
            return Leaf(random.randrange(WORDS))
        split = random.randint(1, leaves - 1)
        return Inner(make(split), make(leaves - split))

    def step(tree):
        h, size = tree.encode()
        return net.update(h.pow(2).sum() / size)

    return Program(step, [(make(random.randint(2, 7)),) for _ in range(CALLS)], state=net)

"""Recursive functions defined in the step that use its variables: numbers, tensors, flags, other functions."""

import random

import torch
from torch import nn

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, WORDS, binary, bushy, forests, single

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CALLS = 12


class Model(nn.Module):
    """Words and a way to join two nodes. ``walk_of`` makes the recursive function of a step."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.both = nn.Linear(2 * WIDTH, WIDTH)
        self.scale = 0.5
        self.opt = torch.optim.SGD(self.parameters(), lr=0.01)

    def word(self, node):
        return self.words.weight[node.word]

    def join(self, left, right):
        return torch.tanh(self.both(torch.cat([left, right])))

    def gate(self):
        return torch.sigmoid(self.words.weight.sum(0))

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


class Span:
    """A part of a sentence: one word, by its position, or two parts."""

    def __init__(self, first, last):
        self.index, self.left, self.right = first, None, None
        if last - first > 1:
            middle = random.randint(first + 1, last - 1)
            self.left, self.right = Span(first, middle), Span(middle, last)


def sentence(length=8):
    """Words, filled up to a length, and a tree over the first of them."""
    return torch.randint(WORDS, (length,)), Span(0, random.randint(2, length))


def scaled(calls=CALLS):
    return [(binary(), random.random()) for _ in range(calls)]


# -- served -------------------------------------------------------------------------------------------------------


@program(speculated=7, close=CLOSE)
def words_encoded_before():
    model = Model()

    def step(words, tree):
        encoded = model.words(words)

        def walk(node):
            return encoded[node.index] if node.left is None else model.join(walk(node.left), walk(node.right))

        return model.update(walk(tree).pow(2).sum())

    return Program(step, [sentence() for _ in range(CALLS)], state=model)


@program(speculated=7, close=CLOSE)
def numbers_and_masks():
    class Masked(Model):
        def forward(self, tree, scale, mask):
            kept, factor = mask.float() * 2, scale * self.scale

            def walk(node):
                if node.left is None:
                    return self.word(node) * kept
                return self.join(walk(node.left), walk(node.right)) * factor

            return walk(tree).pow(2).sum()

    model = Masked()

    def step(*given):
        return model.update(model(*given))

    calls = [(binary(), random.random(), torch.rand(WIDTH) > 0.3) for _ in range(CALLS)]
    return Program(step, calls, state=model)


@program(speculated=7, close=CLOSE)
def functions_that_call_each_other():
    model = Model()

    def step(tree, dropped):
        kept, gate, dim = 1 - dropped, model.gate(), 0
        leaf = lambda node: model.word(node) * gate * kept

        def pair(node):
            return torch.cat([walk(node.left), walk(node.right)], dim=dim)

        def walk(node):
            return leaf(node) if node.left is None else torch.tanh(model.both(pair(node)))

        return model.update(walk(tree).pow(2).sum())

    return Program(step, scaled(), state=model)


@program(speculated=7, close=CLOSE)
def any_number_of_trees():
    model = Model()

    def step(trees):
        gate = model.gate()

        def walk(node):
            return model.word(node) * gate if node.left is None else model.join(walk(node.left), walk(node.right))

        loss = 0.0
        for tree in trees:
            loss = loss + walk(tree).pow(2).sum()
        return model.update(loss)

    return Program(step, forests(binary, 3, 5, CALLS), state=model)


@program(speculated=5, compiles=3, close=CLOSE)
def a_gate_for_each_tree():
    class Gated(Model):
        def forward(self, tree):
            gate = self.gate()

            def walk(node):
                return self.word(node) * gate if node.left is None else self.join(walk(node.left), walk(node.right))

            return walk(tree).pow(2).sum()

    model = Gated()

    def step(trees):
        return model.update(sum(model(tree) for tree in trees))

    return Program(step, forests(binary, 2, 3, CALLS), state=model)


@program(speculated=6, compiles=3, close=CLOSE)
def a_flag_beside_any_number_of_trees():
    model = Model()

    def step(trees, scale):
        doubled = scale > 0.5

        def walk(node):
            h = model.word(node) if node.left is None else model.join(walk(node.left), walk(node.right))
            return h * 2 if doubled else h

        loss = 0.0
        for tree in trees:
            loss = loss + walk(tree).pow(2).sum()
        return model.update(loss)

    calls = [(trees, random.random()) for (trees,) in forests(binary, 3, 5, 18)]
    return Program(step, calls, state=model)


@program(speculated=8, close=CLOSE)
def variables_of_one_name():
    model = Model()

    def step(tree):
        x = model.gate()

        def walk(node):
            def inner(node, x):
                return walk(node) * x

            if node.left is None:
                return model.word(node) * x
            return model.join(inner(node.left, x * 2), inner(node.right, x.cos()))

        y = walk(tree)
        x = x + 1
        return model.update((y + walk(tree)).pow(2).sum())

    return Program(step, single(binary, CALLS), state=model)


@program(speculated=6, close=CLOSE)
def variables_set_between_calls():
    model = Model()

    def step(tree, other):
        x, n = model.gate(), 2.0

        def walk(node):
            return model.word(node) * x * n if node.left is None else model.join(walk(node.left), walk(node.right))

        first = walk(tree)
        x, n = x.cos(), n + 1
        second = walk(other)
        x = x * first
        return model.update((first + second * walk(tree)).pow(2).sum())

    return Program(step, [(binary(), binary()) for _ in range(CALLS)], state=model)


@program(speculated=6, close=CLOSE)
def a_tensor_changed_between_calls():
    model = Model()

    def step(tree, other):
        x = model.gate().detach()

        def walk(node):
            return model.word(node) * x if node.left is None else model.join(walk(node.left), walk(node.right))

        first = walk(tree).detach()
        x.mul_(2)
        return model.update((first + walk(other)).pow(2).sum()), x

    return Program(step, [(binary(), binary()) for _ in range(CALLS)], state=model)


@program(speculated=5, close=CLOSE)
def raised_in_the_middle():
    model = Model()

    def step(tree, scale):
        x, n = model.gate() * scale, scale * 2

        def walk(node):
            if node.left is None:
                if node.word == 3 and scale > 0.5:
                    raise ValueError(f"no word for {n}")
                return model.word(node) * x * n
            return model.join(walk(node.left), walk(node.right))

        try:
            h = walk(tree)
        except ValueError as error:
            return str(error), n, x.detach()
        return model.update(h.pow(2).sum())

    return Program(step, scaled(16), state=model)


@program(speculated=7, close=CLOSE)
def a_list_of_names():
    model = Model()

    def step(tree):
        sides = ["left", "right"]

        def walk(node):
            return model.word(node) if node.left is None else model.join(*[walk(getattr(node, s)) for s in sides])

        return model.update(walk(tree).pow(2).sum())

    return Program(step, single(binary, CALLS), state=model)


# -- not served ---------------------------------------------------------------------------------------------------


def setting(change, start):
    """A step with a variable of which a call makes something else."""
    model = Model()

    def step(tree):
        found = start

        def walk(node):
            nonlocal found
            h = model.word(node)
            for child in node.children:
                h = torch.tanh(h + walk(child))
            found = change(found, node)
            return h

        loss = walk(tree).pow(2).sum()
        if found:
            loss = loss * 2
        return model.update(loss), found if type(found) in (bool, int, str) else len(found.children)

    return Program(step, single(lambda: bushy(4), 20), state=model)


@program(speculated=0, close=CLOSE, compiles=8, reported="sets the variable 'found' of the step")
def a_flag_that_calls_set():
    return setting(lambda found, node: found or node.word == 3, start=False)


@program(speculated=0, close=CLOSE, compiles=8, reported="sets the variable 'found' of the step")
def a_text_that_calls_set():
    return setting(lambda found, node: "b" if node.word == 3 else found, start="a")


@program(speculated=0, close=CLOSE, compiles=8, reported="sets the variable 'found' of the step")
def a_node_that_calls_find():
    return setting(lambda found, node: node if node.word == 3 or not found else found, start=None)


@program(speculated=0, close=CLOSE, compiles=8, reported="does something else with what the step sets")
def a_number_that_decides():
    return setting(lambda found, node: found + 1 if found < 3 else found, start=0)


@program(speculated=0, close=CLOSE, compiles=8)
def a_tensor_that_calls_change():
    model = Model()

    def step(tree):
        seen = torch.zeros(WIDTH)

        def walk(node):
            if node.left is None:
                seen.add_(1)
                return model.word(node)
            return model.join(walk(node.left), walk(node.right))

        return model.update(walk(tree).pow(2).sum()), seen

    return Program(step, single(binary, CALLS), state=model)

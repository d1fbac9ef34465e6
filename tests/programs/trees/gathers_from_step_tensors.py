"""Functions defined in a step that gather rows of its tensors: encoded words, of any number."""

import random

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.enclosing_variables import Model, Span
from tests.programs.recursion.recursion import CLOSE, WORDS

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CALLS = 14


def sentence(length=None):
    """Words, and a tree over them."""
    length = length or random.randint(2, 6)
    return torch.randint(WORDS, (length,)), Span(0, length)


def sentences(calls=CALLS):
    return [sentence() for _ in range(calls)]


def encoding(encode, pick=None, calls=None):
    """A step that encodes words, and then joins them. ``encode``: what becomes of words; ``pick``: the row of a
    node."""
    model = Model()
    pick = pick or (lambda rows, node: rows[node.index])

    def step(words, tree):
        rows = encode(model, words)

        def walk(node):
            return pick(rows, node) if node.left is None else model.join(walk(node.left), walk(node.right))

        return model.update(walk(tree).pow(2).sum())

    return Program(step, calls or sentences(), state=model)


# -- served -------------------------------------------------------------------------------------------------------


@program(speculated=9, close=CLOSE)
def encoded_words():
    return encoding(lambda model, words: torch.tanh(model.words(words)))


@program(speculated=8, close=CLOSE)
def encoded_words_and_marks():
    """What has no gradients is picked, too."""
    model = Model()

    def step(words, tree):
        rows, marks = model.words(words), words.float() / WORDS

        def walk(node):
            if node.left is None:
                return rows[node.index] * marks[node.index]
            return model.join(walk(node.left), walk(node.right)) * marks[node.index]

        return model.update(walk(tree).pow(2).sum())

    return Program(step, sentences(), state=model)


@program(speculated=3, compiles=4, close=CLOSE)
def encoded_words_of_several_trees():
    class Reader(Model):
        def forward(self, words, tree):
            rows = torch.tanh(self.words(words))

            def walk(node):
                return rows[node.index] if node.left is None else self.join(walk(node.left), walk(node.right))

            return walk(tree).pow(2).sum()

    model = Reader()

    def step(batch):
        return model.update(sum(model(words, tree) for words, tree in batch))

    return Program(step, [(sentences(2),) for _ in range(CALLS)], state=model)


@program(speculated=8, compiles=3, close=CLOSE)
def more_words_than_ever():
    calls = [sentence(random.randint(2, 6) + (n > 8) * 70) for n in range(18)]
    return encoding(lambda model, words: torch.tanh(model.words(words)), calls=calls)


@program(speculated=6, compiles=3, close=CLOSE)
def a_word_that_is_not_there():
    def pick(rows, node):
        return rows[node.index + node.far]

    def calls():
        for n in range(18):
            words, tree = sentence(random.randint(3, 6))
            put(tree, 1 if n in (9, 12) else 0)
            yield words, tree

    def put(node, far):
        node.far = far
        for child in (node.left, node.right):
            if child is not None:
                put(child, far)

    return encoding(lambda model, words: torch.tanh(model.words(words)), pick, list(calls()))


@program(speculated=7, compiles=3, close=CLOSE)
def one_word_and_many():
    calls = [(words, tree) for n in range(18) for words, tree in [sentence(1 if n in (8, 11, 12) else None)]]
    return encoding(lambda model, words: torch.tanh(model.words(words)), calls=calls)


# -- as eager, served or not --------------------------------------------------------------------------------------


@program(speculated=0, compiles=8, close=CLOSE)
def words_from_the_end():
    return encoding(lambda model, words: model.words(words), lambda rows, node: rows[-1 - node.index])


@program(speculated=0, compiles=8, close=CLOSE)
def the_last_word_everywhere():
    return encoding(lambda model, words: model.words(words), lambda rows, node: rows[node.index] + rows[-1])


@program(speculated=0, compiles=8, close=CLOSE)
def all_words_everywhere():
    return encoding(lambda model, words: model.words(words), lambda rows, node: rows[node.index] + rows.mean(0))


@program(speculated=0, compiles=8, close=CLOSE)
def all_words_now_and_then():
    calls = sentences(18)
    for n, (_, tree) in enumerate(calls):
        tree.mean = n in (9, 13)

    def pick(rows, node):
        return rows[node.index]

    model = Model()

    def step(words, tree):
        rows = model.words(words)

        def walk(node):
            if node.left is None:
                return pick(rows, node)
            h = model.join(walk(node.left), walk(node.right))
            return h + rows.mean(0) if getattr(node, "mean", False) else h

        return model.update(walk(tree).pow(2).sum())

    return Program(step, calls, state=model)

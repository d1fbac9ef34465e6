"""Recursive functions that traverse objects of any class: by their fields, by their contents."""

import ast
import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, WORDS, parameter

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CALLS = 24
PLAIN = ["a + b * c", "f(a, b, 1)", "(a + b) * (c - 1)", "-a", "g(f(a), -b)"]
OTHERS = ["[a, b]", "a if b else c", "a < b", "{a: b}", "a and b or c", "x[1]", "x.y.z", "'text'", "not a"]
NAMES = sorted(name for name, kind in vars(ast).items() if isinstance(kind, type) and issubclass(kind, ast.AST))
KINDS = {name: number for number, name in enumerate(NAMES)}


def source():
    text = random.choice(PLAIN + OTHERS)
    return text.replace("b", f"({random.choice(PLAIN)})") if random.random() < 0.5 else text


def syntax():
    return [([ast.parse(source(), mode="eval") for _ in range(5)],) for _ in range(CALLS)]


class Walk:
    def __init__(self):
        self.kinds, self.w = parameter(len(KINDS), WIDTH), parameter(WIDTH, WIDTH)
        self.opt = torch.optim.SGD([self.kinds, self.w], lr=0.02)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


@program(speculated=15, close=CLOSE, compiles=4)
def children_of_syntax():
    net = Walk()

    def encode(node):
        h = net.kinds[KINDS[type(node).__name__]]
        below = torch.zeros(WIDTH)
        for child in ast.iter_child_nodes(node):
            below = below + encode(child)
        return torch.tanh(h + below @ net.w)

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, syntax(), state=net)


@program(speculated=15, close=CLOSE, compiles=4)
def fields_of_syntax():
    net = Walk()

    def encode(node):
        h = net.kinds[KINDS[type(node).__name__]]
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                for part in value:
                    if isinstance(part, ast.AST):
                        h = h + encode(part) @ net.w
            elif isinstance(value, ast.AST):
                h = h + encode(value) @ net.w
        return torch.tanh(h)

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, syntax(), state=net)


@program(speculated=15, close=CLOSE, compiles=4)
def children_stacked():
    kinds, join = nn.Embedding(len(KINDS), WIDTH), nn.Linear(2 * WIDTH, WIDTH)
    opt = torch.optim.Adam([*kinds.parameters(), *join.parameters()], lr=0.01)

    def encode(node):
        children = [encode(child) for child in ast.iter_child_nodes(node)]
        below = torch.stack(children).sum(0) if children else torch.zeros(WIDTH)
        return torch.tanh(join(torch.cat([kinds(torch.tensor(KINDS[type(node).__name__])), below])))

    def step(trees, labels):
        opt.zero_grad()
        loss = F.mse_loss(torch.stack([encode(tree).sum() for tree in trees]), labels)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, [(trees, torch.randn(5)) for (trees,) in syntax()], state=(kinds, join))


class Shape:
    pass


class Word(Shape):
    def __init__(self, word):
        self.word = word


class Pair(Shape):
    def __init__(self, first, second):
        self.first, self.second = first, second


class Deep(Pair):
    """A pair in all but name."""


def shape(size):
    if size == 1:
        return random.choice([Word(random.randrange(WORDS)), random.randrange(WORDS), "text"])
    left = random.randint(1, size - 1)
    return random.choice([Pair, Deep])(shape(left), shape(size - left))


@program(speculated=20, close=CLOSE, compiles=4)
def parts_asked_for_their_class():
    words, w = parameter(WORDS, WIDTH), parameter(2 * WIDTH, WIDTH)
    other = parameter(WIDTH)
    opt = torch.optim.SGD([words, w, other], lr=0.02)

    def part(value):
        if isinstance(value, Pair):
            return encode(value)
        if isinstance(value, (Word, int)):
            return words[value.word if isinstance(value, Word) else value]
        return other

    def encode(pair):
        return torch.tanh(torch.cat([part(pair.first), part(pair.second)]) @ w)

    def step(trees):
        opt.zero_grad()
        loss = sum(encode(tree).pow(2).sum() for tree in trees)
        loss.backward()
        opt.step()
        return loss.detach()

    calls = [([shape(random.randint(4, 8)) for _ in range(5)],) for _ in range(CALLS)]
    return Program(step, calls, state=(words, w, other))


@program(speculated=19, close=CLOSE, compiles=6)
def classes_that_change_their_minds():
    """What was a leaf is asked for its class only, until something of another class is there."""
    words, w = parameter(WORDS, WIDTH), parameter(WIDTH, WIDTH)

    def encode(node, deep):
        h = words[deep % WORDS]
        if isinstance(node, Pair):
            h = h + (encode(node.first, deep + 1) + encode(node.second, deep + 1)) @ w
        elif isinstance(node, bool):
            h = h * 2
        return h

    def step(trees):
        words.grad = w.grad = None
        loss = torch.stack([encode(tree, 0) for tree in trees]).pow(2).sum()
        loss.backward()
        return loss.item(), words.grad.clone(), w.grad.clone()

    def leaves(late):
        kinds = [1, 2.5, "a", None, Word(1), (1, 2)]
        return kinds + [True, torch.zeros(2), [Pair(1, 2)]] if late else kinds

    def tree(size, late):
        if size == 1:
            return random.choice(leaves(late))
        left = random.randint(1, size - 1)
        return Pair(tree(left, late), tree(size - left, late))

    calls = [([tree(random.randint(3, 7), call > 10) for _ in range(4)],) for call in range(CALLS)]
    return Program(step, calls, state=(words, w))

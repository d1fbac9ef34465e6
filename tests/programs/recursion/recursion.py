"""Functions that call themselves: over trees of all kinds, up and down, alone and in mini-batches."""

import ast
import functools
import random
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

WORDS = 7
WIDTH = 4
CLOSE = 1e-5  # many calls at a time: gradients are summed in another order


def parameter(*shape, scale=0.5):
    return (torch.randn(*shape) * scale).requires_grad_()


class Tree:
    """A word, or two subtrees."""

    def __init__(self, word=None, left=None, right=None):
        self.word, self.left, self.right = word, left, right


class Node:
    """A word and any number of children."""

    def __init__(self, word, children=()):
        self.word, self.children = word, list(children)


def shape_of(leaves):
    """A random binary tree: a word, or a pair."""
    if leaves == 1:
        return random.randrange(WORDS)
    split = random.randint(1, leaves - 1)
    return shape_of(split), shape_of(leaves - split)


def binary(leaves=None):
    def build(shape):
        return Tree(word=shape) if isinstance(shape, int) else Tree(None, build(shape[0]), build(shape[1]))

    return build(shape_of(leaves or random.randint(2, 6)))


def bushy(size=None):
    """A random tree of nodes, each with up to three children."""
    nodes = [Node(random.randrange(WORDS)) for _ in range(size or random.randint(2, 8))]
    for index, node in enumerate(nodes[1:], 1):
        free = [earlier for earlier in nodes[:index] if len(earlier.children) < 3]
        random.choice(free).children.append(node)
    return nodes[0]


def forests(make, least=2, most=2, calls=CALLS):
    """One mini-batch of trees for each call."""
    return [([make() for _ in range(random.randint(least, most))],) for _ in range(calls)]


def single(make, calls=CALLS):
    return [(make(),) for _ in range(calls)]


class Net:
    """Words, weights for two children, and an optimizer over both."""

    def __init__(self, width=WIDTH, gates=1):
        self.words = parameter(WORDS, width)
        self.w = parameter(2 * width, gates * width)
        self.b = parameter(gates * width)
        self.opt = torch.optim.SGD([self.words, self.w, self.b], lr=0.05)

    def join(self, left, right):
        return torch.tanh(torch.cat([left, right]) @ self.w + self.b)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


# -- the models of the papers -------------------------------------------------------------------------------------


@program(speculated=6, close=CLOSE)
def tree_rnn():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(trees):
        loss = 0.0
        for tree in trees:
            loss = loss + encode(tree).pow(2).sum()
        return net.update(loss)

    return Program(step, forests(binary), state=net)


@program(speculated=5, close=CLOSE)
def tree_lstm():
    class TreeLSTM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(WORDS, WIDTH)
            self.leaf = nn.Linear(WIDTH, 3 * WIDTH)
            self.inner = nn.Linear(2 * WIDTH, 5 * WIDTH)
            self.head = nn.Linear(WIDTH, 2)

        def encode(self, tree):
            if tree.left is None:
                i, o, u = self.leaf(self.embedding(torch.tensor(tree.word))).chunk(3)
                c = torch.sigmoid(i) * torch.tanh(u)
                return torch.sigmoid(o) * torch.tanh(c), c
            lh, lc = self.encode(tree.left)
            rh, rc = self.encode(tree.right)
            i, fl, fr, o, u = self.inner(torch.cat([lh, rh])).chunk(5)
            c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(fl) * lc + torch.sigmoid(fr) * rc
            return torch.sigmoid(o) * torch.tanh(c), c

        def forward(self, trees):
            return self.head(torch.stack([self.encode(tree)[0] for tree in trees]))

    model = TreeLSTM()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(trees, labels):
        opt.zero_grad()
        loss = F.cross_entropy(model(trees), labels)
        loss.backward()
        opt.step()
        return loss.item()

    calls = [([binary() for _ in range(3)], torch.randint(2, (3,))) for _ in range(CALLS)]
    return Program(step, calls, state=model)


@program(speculated=6, close=CLOSE)
def child_sum_tree_lstm():
    class ChildSum(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(WORDS, WIDTH)
            self.w, self.u = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
            self.f = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, node):
            states = [self(child) for child in node.children]
            i, o, u, f = self.w(self.embedding(torch.tensor(node.word))).chunk(4)
            total = sum((h for h, _ in states), torch.zeros(WIDTH))
            hi, ho, hu = self.u(total).chunk(3)
            c = torch.sigmoid(i + hi) * torch.tanh(u + hu)
            for h, below in states:
                c = c + torch.sigmoid(f + self.f(h)) * below
            return torch.sigmoid(o + ho) * torch.tanh(c), c

    model = ChildSum()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(trees):
        opt.zero_grad()
        loss = sum(model(tree)[0].pow(2).sum() for tree in trees)
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, forests(bushy), state=model)


@program(speculated=6, close=CLOSE)
def stack_of_the_children_summed():
    net = Net()

    def encode(node):
        h = net.words[node.word]
        if node.children:
            h = h + torch.stack([torch.tanh(encode(child) + net.b) for child in node.children]).sum(0)
        return torch.tanh(h)

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(bushy), state=net)


@program(speculated=6, close=CLOSE)
def several_sums_in_one_loop():
    net = Net()

    def encode(node):
        h, energy = net.words[node.word] * 1.0, torch.zeros(WIDTH)
        for child in node.children:
            below, more = encode(child)
            h += torch.sigmoid(below) * net.b
            energy = torch.tanh(below) * more + energy
        return torch.tanh(h), energy + h * h

    def step(trees):
        return net.update(sum(sum(encode(tree)).sum() for tree in trees))

    return Program(step, forests(bushy), state=net)


@program(speculated=6, close=CLOSE)
def sums_that_the_next_iteration_reads():
    net = Net()

    def encode(node):
        h, best = net.words[node.word] * 1.0, torch.zeros(WIDTH)
        for child in node.children:
            h = h + torch.tanh(encode(child) + net.b)
            best = torch.maximum(best, h)
        return torch.tanh(h + best)

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(bushy), state=net)


@program(speculated=6, close=CLOSE)
def sums_of_counts():
    net = Net()

    def encode(node):
        below = [encode(child) for child in node.children]
        count = torch.stack([n for _, n in below]).sum(0) + 1 if below else torch.tensor(1)
        h = net.words[node.word] + sum(h for h, _ in below)
        return torch.tanh(h / count + net.b), count

    def step(trees):
        found = [encode(tree) for tree in trees]
        return net.update(sum(h.pow(2).sum() for h, _ in found)), [n.item() for _, n in found]

    return Program(step, forests(bushy), state=net)


@program(speculated=6, close=CLOSE)
def children_without_gradients():
    net = Net()

    def encode(node):
        h = net.words[node.word] * 1.0
        with torch.no_grad():
            below = sum((encode(child) for child in node.children), torch.zeros(WIDTH))
        return torch.tanh(h + below + net.b)

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(bushy), state=net)


@program(speculated=0)
def views_changed_in_place():
    net = Net()

    def encode(node):
        h = net.words[node.word] * 1.0
        first = h[:2]
        first += 1.0
        for child in node.children:
            h = h + encode(child)
        return torch.tanh(h)

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(bushy), state=net)


@program(speculated=6, close=CLOSE)
def attention_over_the_children():
    words, w, query = parameter(WORDS, WIDTH), parameter(WIDTH, WIDTH), parameter(WIDTH)
    opt = torch.optim.SGD([words, w, query], lr=0.05)

    def encode(node):
        x = words[node.word]
        if node.children:
            below = torch.stack([encode(child) for child in node.children])
            x = x + torch.softmax(below @ query, 0) @ below
        return torch.tanh(x @ w)

    def step(trees):
        opt.zero_grad()
        loss = torch.stack([encode(tree) for tree in trees]).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, forests(bushy), state=(words, w, query))


@program(speculated=5, close=CLOSE)
def tree_of_minibatches():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return tree.word  # a tensor of (batch, width)
        return torch.tanh(torch.cat([encode(tree.left), encode(tree.right)], 1) @ net.w + net.b)

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    def build(shape):
        if isinstance(shape, int):
            return Tree(word=torch.randn(3, WIDTH))
        return Tree(None, build(shape[0]), build(shape[1]))

    return Program(step, [(build(shape_of(random.randint(2, 6))),) for _ in range(CALLS)], state=net)


# -- trees of all kinds -------------------------------------------------------------------------------------------


@program(speculated=6, close=CLOSE)
def nested_tuples():
    net = Net()

    def encode(tree):
        if isinstance(tree, int):
            return net.words[tree]
        left, right = tree
        return net.join(encode(left), encode(right))

    def step(trees):
        return net.update(torch.stack([encode(tree) for tree in trees]).pow(2).sum())

    return Program(step, forests(lambda: (shape_of(random.randint(1, 5)), 0)), state=net)


@program(speculated=6, close=CLOSE)
def dictionaries():
    net = Net()

    def build(shape):
        if isinstance(shape, int):
            return {"word": shape}
        return {"left": build(shape[0]), "right": build(shape[1])}

    def encode(tree):
        if "word" in tree:
            return net.words[tree["word"]]
        return net.join(encode(tree["left"]), encode(tree["right"]))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: build(shape_of(random.randint(2, 6)))), state=net)


@program(speculated=6, close=CLOSE)
def lists_whose_head_is_a_word():
    net = Net()

    def build():
        def of(node):
            return [node.word, *map(of, node.children)]

        return of(bushy())

    def encode(tree):
        word, *children = tree
        h = net.words[word]
        for child in children:
            h = net.join(h, encode(child))
        return h

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(build), state=net)


@program(speculated=5, compiles=3, close=CLOSE)
def syntax_trees():
    kinds = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Load, ast.Constant, ast.Add, ast.Mult)
    kinds += (ast.USub,)
    number = {kind: index for index, kind in enumerate(kinds)}
    table, w = parameter(len(kinds), WIDTH), parameter(WIDTH, WIDTH)
    opt = torch.optim.SGD([table, w], lr=0.05)

    def encode(node):
        h = table[number[type(node)]]
        for child in ast.iter_child_nodes(node):
            h = h + encode(child) @ w
        return torch.tanh(h)

    def step(trees):
        opt.zero_grad()
        loss = sum(encode(tree).pow(2).sum() for tree in trees)
        loss.backward()
        opt.step()
        return loss.detach()

    sources = "a + b", "f(a, -b)", "a * (b + 3)", "f(g(a), b, c)", "-(a + b) * c", "1", "f()", "a + f(b) * -c"
    calls = [([ast.parse(text, mode="eval") for text in random.sample(sources, 2)],) for _ in range(CALLS)]
    return Program(step, calls, state=(table, w))


@program(speculated=5, close=CLOSE)
def dataclasses_matched():
    @dataclass
    class Leaf:
        word: int

    @dataclass
    class Inner:
        left: Any
        right: Any

    net = Net()

    def encode(tree):
        match tree:
            case Leaf(word=word):
                return net.words[word]
            case Inner(left, right):
                return net.join(encode(left), encode(right))

    def build(shape):
        return Leaf(shape) if isinstance(shape, int) else Inner(build(shape[0]), build(shape[1]))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: build(shape_of(random.randint(2, 5)))), state=net)


@program(speculated=5, close=CLOSE)
def roots_of_several_classes():
    class Leaf:
        def __init__(self, word):
            self.word = word

    class Unary:
        def __init__(self, below):
            self.below = below

    net = Net()

    def encode(tree):
        if isinstance(tree, Leaf):
            return net.words[tree.word]
        if isinstance(tree, Unary):
            return torch.relu(encode(tree.below) + net.b)
        if isinstance(tree, list):
            return net.join(encode(tree[0]), encode(tree[1]))
        return net.words[tree] * 2

    def build(depth=0):
        kind = random.randrange(4) if depth < 3 else random.randrange(2)
        if kind < 2:
            return Leaf(random.randrange(WORDS)) if kind else random.randrange(WORDS)
        return Unary(build(depth + 1)) if kind == 2 else [build(depth + 1), build(depth + 1)]

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(build, 12, 12, calls=14), state=net)


@program(speculated=5, close=CLOSE)
def parts_that_the_parent_tells_apart():
    class Leaf:
        def __init__(self, word):
            self.word = word

    class Mark(Leaf):
        pass

    class Inner:
        def __init__(self, *parts):
            self.parts = parts

    net = Net()

    def encode(tree):
        if isinstance(tree, Leaf):
            return net.words[tree.word]
        h = net.b * 1.0
        for part in tree.parts:
            below = encode(part)
            if isinstance(part, Mark):
                below = below * 2
            h = torch.tanh(h + below)
        return h

    def build(depth=0):
        if depth == 3 or (depth and random.random() < 0.5):
            return random.choice([Leaf, Mark])(random.randrange(WORDS))
        return Inner(build(depth + 1), build(depth + 1))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(build, 6, 6, calls=12), state=net)


@program(speculated=5, close=CLOSE)
def missing_parts_that_the_parent_tells_apart():
    net = Net()

    def encode(tree):
        if tree is None:
            return torch.zeros(WIDTH)
        left = encode(tree.left)
        right = encode(tree.right) * (1.0 if tree.right is None else 0.5)
        return net.join(left, right) + net.words[tree.word]

    def build(depth=0):
        if depth == 4 or (depth and random.random() < 0.4):
            return None
        return Tree(random.randrange(WORDS), build(depth + 1), build(depth + 1))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(build, 6, 6), state=net)


@program(speculated=4, close=CLOSE)
def methods_that_only_pass_the_node_on():
    class Plain:
        __slots__ = ("parts", "word")

        def __init__(self, word, parts):
            self.word, self.parts = word, parts

        def encode(self):
            return encode(self)

    class Twice(Plain):
        __slots__ = ()

        def encode(self):
            return encode(self) * 2

    net = Net()

    def encode(node):
        h = net.words[node.word]
        for part in node.parts:
            h = torch.tanh(h + part.encode() + net.b)
        return h

    def build(depth=0):
        parts = [build(depth + 1) for _ in range(random.randrange(1, 3) if depth < 2 else 0)]
        return random.choice([Plain, Twice])(random.randrange(WORDS), parts)

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(build, 6, 6, calls=12), state=net)


@program(speculated=5, close=CLOSE)
def numbers_of_two_types():
    net = Net()

    def scale(x):
        return 3.0 if isinstance(x, float) else 1.0

    def encode(tree):
        if isinstance(tree, int | float):
            return net.words[int(tree)]
        left, right = tree
        return net.join(encode(left) * scale(left), encode(right))

    def build(depth=0):
        if depth == 3 or (depth and random.random() < 0.5):
            return random.choice([int, float])(random.randrange(WORDS))
        return build(depth + 1), build(depth + 1)

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(build, 6, 6), state=net)


@program(speculated=6, close=CLOSE)
def parents_that_are_not_followed():
    @dataclass(eq=False)
    class Linked:
        word: int
        parent: Any = None
        children: list[Any] = field(default_factory=list)

    def link(node, parent=None):
        made = Linked(node.word, parent)
        made.children = [link(child, made) for child in node.children]
        return made

    net = Net()

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            h = net.join(h, encode(child))
        return h

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: link(bushy())), state=net)


@program(speculated=6, close=CLOSE)
def linked_lists():
    net = Net()

    def encode(cell):
        if cell is None:
            return torch.zeros(WIDTH)
        word, rest = cell
        return net.join(net.words[word], encode(rest))

    def build():
        cell = None
        for _ in range(random.randint(1, 8)):
            cell = (random.randrange(WORDS), cell)
        return cell

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(build), state=net)


@program(speculated=5, close=CLOSE)
def long_chains():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def build():
        tree = Tree(0)
        for _ in range(random.randint(20, 40)):
            tree = Tree(None, tree, Tree(random.randrange(WORDS)))
        return tree

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(build), state=net)


@program(speculated=4, close=CLOSE)
def tensors_at_the_leaves():
    w, b = parameter(2 * WIDTH, WIDTH), parameter(WIDTH)

    def encode(tree):
        if isinstance(tree, torch.Tensor):
            return tree
        return torch.tanh(torch.cat([encode(part) for part in tree]) @ w + b)

    def build(shape):
        return torch.randn(WIDTH) if isinstance(shape, int) else [build(shape[0]), build(shape[1])]

    def step(tree):
        encode(tree).pow(2).sum().backward()
        gradients = w.grad.clone(), b.grad.clone()
        w.grad = b.grad = None
        return gradients

    return Program(step, single(lambda: build((0, shape_of(random.randint(1, 5))))), state=(w, b))


# -- ways to recurse ----------------------------------------------------------------------------------------------


@program(speculated=4, close=CLOSE)
def three_functions_by_turns():
    """A grammar: a sum of products of factors, each with weights of its own; a factor may be a sum in brackets."""
    add, mul = parameter(2 * WIDTH, WIDTH), parameter(2 * WIDTH, WIDTH)
    words, sign = parameter(WORDS, WIDTH), parameter(WIDTH, WIDTH)
    opt = torch.optim.SGD([add, mul, sign, words], lr=0.05)

    def expression(tree):
        h = term(tree[0])
        for part in tree[1:]:
            h = torch.tanh(torch.cat([h, term(part)]) @ add)
        return h

    def term(tree):
        h = factor(tree[0])
        for part in tree[1:]:
            h = torch.relu(torch.cat([h, factor(part)]) @ mul)
        return h

    def factor(tree):
        if isinstance(tree, int):
            return words[tree]
        return expression(tree) @ sign

    def step(trees):
        opt.zero_grad()
        loss = sum(expression(tree).pow(2).sum() for tree in trees)
        loss.backward()
        opt.step()
        return loss.detach()

    def make(depth=0):
        def one():
            return random.randrange(WORDS) if depth > 1 or random.random() < 0.7 else make(depth + 1)

        return [[one() for _ in range(random.randint(1, 2))] for _ in range(random.randint(1, 2))]

    return Program(step, forests(make), state=(add, mul, sign, words))


@program(speculated=0)
def recursive_descent():
    """A parser over tokens that knows its place; meaning is computed while it reads."""
    values, w = parameter(3, WIDTH), parameter(2 * WIDTH, WIDTH)
    opt = torch.optim.SGD([values, w], lr=0.05)

    class Parser:
        def __init__(self, text):
            self.text, self.place = text, 0

        def next(self):
            return self.text[self.place] if self.place < len(self.text) else "."

        def take(self):
            self.place += 1
            return self.text[self.place - 1]

        def sum(self):
            h = self.product()
            while self.next() == "+":
                self.take()
                h = h + self.product()
            return h

        def product(self):
            h = self.atom()
            while self.next() == "*":
                self.take()
                h = torch.tanh(torch.cat([h, self.atom()]) @ w)
            return h

        def atom(self):
            if self.next() == "(":
                self.take()
                h = self.sum()
                self.take()
                return h
            return values["xyz".index(self.take())]

    def step(text):
        opt.zero_grad()
        loss = Parser(text).sum().pow(2).sum()
        loss.backward()
        opt.step()
        return loss.detach()

    texts = "x+y", "x*y", "(x+y)*z", "x", "x*(y+z*x)", "((x))", "x+y+z", "x*(y+(z+x)*y)*z", "x+y", "(z*z+x)*(y+x)"
    return Program(step, [(text,) for text in texts], state=(values, w))


@program(speculated=6, close=CLOSE)
def nodes_that_encode_themselves():
    class Leaf:
        def __init__(self, word):
            self.word = word

        def encode(self, model):
            return model.words[self.word]

    class Inner:
        def __init__(self, left, right):
            self.left, self.right = left, right

        def encode(self, model):
            return model.join(self.left.encode(model), self.right.encode(model))

    net = Net()

    def build(shape):
        return Leaf(shape) if isinstance(shape, int) else Inner(build(shape[0]), build(shape[1]))

    def step(trees):
        return net.update(sum(tree.encode(net).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: build(shape_of(random.randint(2, 5)))), state=net)


@program(speculated=6, close=CLOSE)
def module_that_calls_itself():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH)
            self.join = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.Tanh())

        def forward(self, tree):
            if tree.left is None:
                return self.words(torch.tensor(tree.word))
            return self.join(torch.cat([self(tree.left), self(tree.right)]))

    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(trees):
        opt.zero_grad()
        loss = torch.stack([model(tree) for tree in trees]).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss.detach()

    return Program(step, forests(binary), state=model)


@program(speculated=4, close=CLOSE)
def function_within_the_step():
    net = Net()

    def step(trees, scale):
        def encode(tree):
            if tree.left is None:
                return net.words[tree.word] * scale
            return net.join(encode(tree.left), encode(tree.right))

        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    calls = [([binary(), binary()], torch.rand(())) for _ in range(CALLS)]
    return Program(step, calls, state=net)


def squashed(x):
    return torch.tanh(x)


@program(speculated=12, compiles=8, close=CLOSE)
def functions_within_the_step_that_use_others():
    """Which ones is decided anew in each step."""
    net = Net()

    def step(trees, flag):
        act = squashed if flag else torch.relu
        half = (lambda x: x * 0.5) if flag else (lambda x: x - 0.5)

        def encode(tree):
            if tree.left is None:
                return net.words[tree.word]
            return half(act(torch.cat([encode(tree.left), encode(tree.right)]) @ net.w))

        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    flags = [False, False, False, True, True, True] + [random.random() < 0.5 for _ in range(18)]
    calls = [([binary(), binary()], flag) for flag in flags]
    return Program(step, calls, state=net)


@program(speculated=6, close=CLOSE)
def function_within_the_step_that_appends():
    net = Net()

    def step(trees):
        losses = []

        def encode(tree):
            left = tree.left is not None
            h = net.join(encode(tree.left), encode(tree.right)) if left else net.words[tree.word]
            losses.append(h.pow(2).sum())
            return h

        for tree in trees:
            encode(tree)
        return net.update(torch.stack(losses).mean())

    return Program(step, forests(binary), state=net)


@program(speculated=1, close=CLOSE, compiles=3)
def function_within_the_step_over_a_tensor_of_it():
    net = Net()

    def step(trees):
        w = net.w * 0.5

        def encode(tree):
            if tree.left is None:
                return net.words[tree.word]
            return torch.tanh(torch.cat([encode(tree.left), encode(tree.right)]) @ w)

        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: binary(2), least=1), state=net)


@program(speculated=10, close=CLOSE, compiles=4)
def any_number_of_trees_top_down():
    """What is handed down is made in each iteration, of a number of the program; another one changes once."""
    net = Net()
    scale = {"of": 0.5}

    def label(tree, state):
        if tree.left is None:
            return (torch.tanh(net.words[tree.word] + state) * net.b).sum()
        return label(tree.left, state * 0.5) + label(tree.right, -state)

    def step(trees):
        loss = 0.0
        for tree in trees:
            loss = loss + scale["of"] * label(tree, torch.ones(WIDTH))
        return net.update(loss)

    before = {9: lambda: scale.update(of=0.7), 14: lambda: scale.update(of=0.5)}
    return Program(step, forests(binary, least=1, most=5, calls=20), before=before, state=net)


@program(speculated=7, close=CLOSE)
def comprehension_over_the_children():
    words, w = parameter(WORDS, WIDTH), parameter(WIDTH, WIDTH)
    opt = torch.optim.SGD([words, w], lr=0.05)

    def encode(node):
        return torch.tanh(words[node.word] + sum(encode(child) @ w for child in node.children))

    def step(trees):
        opt.zero_grad()
        loss = sum([encode(tree).pow(2).sum() for tree in trees])
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, forests(bushy), state=(words, w))


@program(speculated=2, compiles=3, close=CLOSE)
def visitor():
    class Visitor:
        def __init__(self):
            self.names, self.w = parameter(3, WIDTH), parameter(2 * WIDTH, WIDTH)

        def visit(self, node):
            return getattr(self, "visit_" + type(node).__name__)(node)

        def visit_Expression(self, node):
            return self.visit(node.body)

        def visit_BinOp(self, node):
            h = torch.cat([self.visit(node.left), self.visit(node.right)]) @ self.w
            return torch.tanh(h) if isinstance(node.op, ast.Add) else torch.sigmoid(h)

        def visit_Name(self, node):
            return self.names["abc".index(node.id)]

        def visit_Constant(self, node):
            return torch.full((WIDTH,), float(node.value))

    visitor = Visitor()
    opt = torch.optim.SGD([visitor.names, visitor.w], lr=0.05)

    def step(tree):
        opt.zero_grad()
        loss = visitor.visit(tree).pow(2).sum()
        loss.backward()
        opt.step()
        return loss.detach()

    texts = "a + b", "a * b", "(a + b) * c", "a + 3", "a * (b + c * a)", "a", "a + b + c", "2 * b", "a * (b + 1)", "c"
    return Program(step, [(ast.parse(text, mode="eval"),) for text in texts], state=visitor)


@program(speculated=1, compiles=3)
def single_dispatch():
    net = Net()

    @functools.singledispatch
    def encode(tree):
        raise TypeError(type(tree))

    @encode.register
    def _(tree: int):
        return net.words[tree]

    @encode.register
    def _(tree: tuple):
        return net.join(encode(tree[0]), encode(tree[1]))

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(lambda: shape_of(random.randint(1, 5))), state=net)


@program(refused="with its backward pass still to come")
def speculated_function_that_recurses(jit):
    net = Net()

    @jit
    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(tree):
        h = encode(tree)
        net.update(h.pow(2).sum())
        return h.detach()

    return Program(step, single(binary), state=net)


@program(speculated=4, compiles=6)
def step_that_recurses(jit):
    net = Net()

    @jit
    def step(tree):
        if tree.left is None:
            return net.words[tree.word].detach()
        return net.join(step(tree.left), step(tree.right)).detach()

    return Program(step, single(binary), state=net)


@program(speculated=0, reported="recursive calls pass on tensors of sizes")
def halves_of_a_tensor():
    w, b = parameter(2 * WIDTH, WIDTH), parameter(WIDTH)

    def reduce(x):
        if len(x) == 1:
            return x[0]
        middle = len(x) // 2
        return torch.tanh(torch.cat([reduce(x[:middle]), reduce(x[middle:])]) @ w + b)

    def step(x):
        reduce(x).sum().backward()
        g = w.grad.clone()
        w.grad = b.grad = None
        return g

    return Program(step, [(torch.randn(n, WIDTH),) for n in (4, 5, 6, 4, 7, 9, 2, 8, 10, 3)], state=(w, b))


@program(speculated=4, close=CLOSE)
def power_by_squaring():
    def power(a, n):
        if n == 0:
            return torch.eye(3)
        half = power(a, n // 2)
        return half @ half if n % 2 == 0 else half @ half @ a

    def step(a, n):
        return power(a, n)

    return Program(step, [(torch.randn(3, 3) * 0.5, n) for n in (3, 3, 3, 5, 8, 1, 0, 13, 6, 31)])


@program(speculated=0, compiles=6)
def generator_that_delegates():
    net = Net()

    def states(tree):
        if tree.left is None:
            h = net.words[tree.word]
        else:
            left = yield from states(tree.left)
            right = yield from states(tree.right)
            h = net.join(left, right)
        yield h
        return h

    def step(tree):
        return net.update(sum(h.pow(2).sum() for h in states(tree)))

    return Program(step, single(binary), state=net)


# -- arguments and results ----------------------------------------------------------------------------------------


@program(speculated=7, close=CLOSE)
def state_passed_down():
    words, w = parameter(WORDS, WIDTH), parameter(WIDTH, WIDTH)
    opt = torch.optim.SGD([words, w], lr=0.05)

    def score(node, state):
        state = torch.tanh(state @ w + words[node.word])
        total = state.pow(2).sum()
        for child in node.children:
            total = total + score(child, state)
        return total

    def step(trees):
        opt.zero_grad()
        loss = sum(score(tree, torch.ones(WIDTH)) for tree in trees)
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, forests(bushy), state=(words, w))


@program(speculated=6, close=CLOSE)
def down_and_up():
    net = Net()
    down = parameter(WIDTH, WIDTH)

    def encode(tree, above):
        if tree.left is None:
            return net.words[tree.word] + above
        below = torch.tanh(above @ down)
        return net.join(encode(tree.left, below), encode(tree.right, below * 0.5))

    def step(trees):
        loss = net.update(sum(encode(tree, torch.ones(WIDTH)).pow(2).sum() for tree in trees))
        with torch.no_grad():
            down.sub_(down.grad, alpha=0.05)
        down.grad = None
        return loss

    return Program(step, forests(binary), state=(net, down))


@program(speculated=6, close=CLOSE)
def encoder_and_decoder():
    net = Net()
    split = parameter(WIDTH, 2 * WIDTH)

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def decode(tree, h):
        if tree.left is None:
            return (h - net.words[tree.word]).pow(2).sum()
        left, right = torch.tanh(h @ split).chunk(2)
        return decode(tree.left, left) + decode(tree.right, right)

    def step(trees):
        split.grad = None
        loss = net.update(sum(decode(tree, encode(tree)) for tree in trees))
        with torch.no_grad():
            split.sub_(split.grad, alpha=0.05)
        return loss

    return Program(step, forests(binary), state=(net, split))


@program(speculated=6, close=CLOSE)
def depth_as_a_number():
    net = Net()

    def encode(tree, depth=0):
        if tree.left is None:
            return net.words[tree.word] * 0.9**depth
        return net.join(encode(tree.left, depth + 1), encode(tree.right, depth=depth + 1))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(binary), state=net)


@program(speculated=0, reported="nodes hold a tensor that requires gradients")
def weights_that_nodes_hold():
    net = Net()

    def encode(tree):
        h = net.words[tree.word] * tree.weight
        for child in tree.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    def weighted():
        def build(node):
            node.weight = parameter(WIDTH)
            for child in node.children:
                build(child)
            return node

        return build(bushy())

    return Program(step, single(weighted), state=net)


@program(speculated=6, close=CLOSE)
def weights_by_depth_and_side():
    net = Net()
    sides = {"left": parameter(WIDTH), "right": parameter(WIDTH), "root": parameter(WIDTH)}
    levels = [parameter(WIDTH) for _ in range(2)]
    opt = torch.optim.SGD([*sides.values(), *levels], lr=0.05)

    def encode(tree, depth, side):
        if tree.left is None:
            h = net.words[tree.word]
        else:
            h = net.join(encode(tree.left, depth + 1, "left"), encode(tree.right, depth + 1, "right"))
        return h * sides[side] + levels[depth % 2]

    def step(trees):
        opt.zero_grad()
        loss = net.update(sum(encode(tree, 0, "root").pow(2).sum() for tree in trees))
        opt.step()
        return loss

    return Program(step, forests(binary), state=(net, sides, levels))


@program(speculated=5, close=CLOSE)
def no_deeper_than_a_limit():
    net = Net()

    def encode(tree, limit):
        if limit == 0:
            return torch.zeros(WIDTH)
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left, limit - 1), encode(tree.right, limit - 1))

    def step(tree, limit):
        return net.update(encode(tree, limit).pow(2).sum())

    calls = [(binary(6), 3 + index % 2) for index in range(CALLS)]
    return Program(step, calls, state=net)


@program(speculated=4, close=CLOSE)
def results_with_numbers():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word], 1, 1
        left, leaves, height = encode(tree.left)
        right, more, other = encode(tree.right)
        return net.join(left, right), leaves + more, 1 + max(height, other)

    def step(tree):
        h, leaves, height = encode(tree)
        return net.update(h.pow(2).sum() / leaves), leaves, height

    return Program(step, single(binary), state=net)


@program(speculated=4, close=CLOSE, compiles=4)
def sizes_and_heights_that_are_returned():
    net = Net()

    def encode(tree, depth=0):
        if tree.left is None:
            return net.words[tree.word], {"size": 1, "height": 0, "depth": depth}
        left, one = encode(tree.left, depth + 1)
        right, other = encode(tree.right, one["depth"])
        h = net.join(left / one["size"], right / other["size"]) * (0.5 ** one["height"])
        height = 1 + max(one["height"], other["height"])
        return h, {"size": one["size"] + other["size"], "height": height, "depth": max(one["depth"], other["depth"])}

    def step(trees):
        total, sizes = 0.0, []
        for tree in trees:
            h, known = encode(tree)
            total = total + h.pow(2).sum() / known["size"]
            sizes.append((known["size"], known["height"] + 1, known["depth"]))
        if sizes[0][0] > 4:
            total = total * 2
        return net.update(total), sizes

    return Program(step, forests(binary, calls=14), state=net)


@program(speculated=9, close=CLOSE)
def sizes_of_any_number_of_trees():
    net = Labelled()

    def encode(node):
        h, size = net.words[node.word], 1
        for child in node.children:
            below, more = encode(child)
            h, size = h + torch.tanh(below / more), size + more
        return torch.tanh(h + net.b), size

    def step(trees):
        loss = 0.0
        for tree in trees:
            h, size = encode(tree)
            loss = loss + F.cross_entropy(h @ net.head / size, torch.tensor(tree.label))
        return net.update(loss / len(trees))

    calls = [[bushy() for _ in range(random.randint(2, 5))] for _ in range(18)]
    for tree in (tree for trees in calls for tree in trees):
        tree.label = random.randrange(2)
    return Program(step, [(trees,) for trees in calls], state=net)


@program(speculated=0, close=CLOSE, reported="a number that calls return decides what it does")
def sizes_that_decide():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word], 1
        left, one = encode(tree.left)
        right, other = encode(tree.right)
        if one > other:
            left, right = right, left
        return net.join(left, right), one + other

    def step(trees):
        return net.update(sum(encode(tree)[0].pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: binary(random.randint(4, 9))), state=net)


@program(speculated=5, close=CLOSE)
def results_as_dictionaries_used_in_part():
    """Each call uses another part of them: to what gradients flow depends on which is used."""
    return summed_dictionaries(lambda encode, tree: encode(tree)["cost"] + encode(tree)["h"].sum())


@program(speculated=6, close=CLOSE)
def results_as_dictionaries():
    def loss(encode, tree):
        found = encode(tree)
        return found["cost"] + found["h"].sum()

    return summed_dictionaries(loss)


def summed_dictionaries(loss):
    net = Net()

    def encode(tree):
        if tree.left is None:
            return {"h": net.words[tree.word], "cost": torch.zeros(())}
        left, right = encode(tree.left), encode(tree.right)
        h = net.join(left["h"], right["h"])
        return {"h": h, "cost": left["cost"] + right["cost"] + (h - left["h"]).pow(2).sum()}

    def step(trees):
        return net.update(sum(loss(encode, tree) for tree in trees))

    return Program(step, forests(binary), state=net)


@program(speculated=0, reported="returns lists of")
def all_states_in_a_list():
    net = Net()

    def states(tree):
        if tree.left is None:
            return [net.words[tree.word]]
        left, right = states(tree.left), states(tree.right)
        return [*left, *right, net.join(left[-1], right[-1])]

    def step(trees):
        found = [h for tree in trees for h in states(tree)]
        return net.update(torch.stack(found).pow(2).sum()), len(found)

    return Program(step, forests(binary), state=net)


@program(speculated=6, close=CLOSE)
def no_result():
    net = Net()

    def collect(tree, above, losses):
        above = torch.tanh(above + net.b)
        if tree.left is None:
            losses.append((net.words[tree.word] - above).pow(2).sum())
            return
        collect(tree.left, above, losses)
        collect(tree.right, above, losses)

    def step(trees):
        losses = []
        for tree in trees:
            assert collect(tree, torch.zeros(WIDTH), losses) is None
        return net.update(torch.stack(losses).sum())

    return Program(step, forests(binary), state=net)


@program(speculated=3, close=CLOSE)
def none_for_missing_children():
    net = Net()

    def encode(tree):
        if tree is None:
            return None
        left, right = encode(tree.left), encode(tree.right)
        h = net.words[tree.word]
        if left is not None:
            h = net.join(h, left)
        if right is not None:
            h = net.join(right, h)
        return h

    def build(depth=0):
        if depth == 4 or random.random() < 0.2 * depth:
            return None
        return Tree(random.randrange(WORDS), build(depth + 1), build(depth + 1))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(build, 1, 2), state=net)


# -- Python's meaning ---------------------------------------------------------------------------------------------


@program(speculated=0, reported="reads elements of a list")
def loss_of_each_node_in_order():
    net = Net()
    head = parameter(WIDTH, 2)

    def encode(tree, losses):
        if tree.left is None:
            h = net.words[tree.word]
        else:
            h = net.join(encode(tree.left, losses), encode(tree.right, losses))
        losses.append(F.cross_entropy(h @ head, tree.label))
        return h

    def step(trees):
        head.grad = None
        losses = []
        for tree in trees:
            encode(tree, losses)
        net.update(sum(losses))
        return [loss.item() for loss in losses]

    def labelled():
        tree = binary()

        def label(node):
            node.label = torch.tensor(random.randrange(2))
            for child in (node.left, node.right):
                if child is not None:
                    label(child)

        label(tree)
        return tree

    return Program(step, forests(labelled), state=(net, head))


def labelled(make=binary):
    """A tree with a label at each node."""
    tree = make()

    def label(node):
        node.label = torch.tensor(random.randrange(2))
        for child in getattr(node, "children", (node.left, node.right) if hasattr(node, "left") else ()):
            if child is not None:
                label(child)

    label(tree)
    return tree


class Sentiment(Net):
    """A network with a loss at each node."""

    def __init__(self):
        super().__init__()
        self.head = parameter(WIDTH, 2)

    def loss(self, h, tree):
        return F.cross_entropy(h @ self.head, tree.label)

    def encode(self, tree, losses):
        if tree.left is None:
            h = self.words[tree.word]
        else:
            h = self.join(self.encode(tree.left, losses), self.encode(tree.right, losses))
        losses.append(self.loss(h, tree))
        return h

    def update(self, loss):
        self.head.grad = None
        return super().update(loss)


@program(speculated=6, close=CLOSE)
def losses_of_all_nodes_added_up():
    net = Sentiment()

    def step(trees):
        losses = []
        for tree in trees:
            net.encode(tree, losses)
        return net.update(sum(losses))

    return Program(step, forests(labelled), state=net)


@program(speculated=6, close=CLOSE)
def losses_of_all_nodes_in_a_mean():
    net = Sentiment()

    def step(trees):
        losses = []
        for tree in trees:
            net.encode(tree, losses)
        mean = sum(losses) / len(losses)
        return net.update(torch.stack(losses).mean() + mean), len(losses)

    return Program(step, forests(labelled), state=net)


@program(speculated=5, close=CLOSE)
def losses_kept_by_the_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.join = nn.Embedding(WORDS, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, 2)
            self.losses = []

        def encode(self, tree):
            if tree.left is None:
                h = self.words(torch.tensor(tree.word))
            else:
                h = torch.tanh(self.join(torch.cat([self.encode(tree.left), self.encode(tree.right)])))
            self.losses.append(F.cross_entropy(self.head(h)[None], tree.label[None]))
            return h

        def forward(self, tree):
            self.losses = []
            self.encode(tree)
            return torch.stack(self.losses).sum()

    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(tree):
        opt.zero_grad()
        loss = model(tree)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, single(labelled), state=model)


@program(speculated=6, close=CLOSE)
def outputs_and_labels_in_two_lists():
    net = Sentiment()

    def encode(tree, outputs, labels):
        if tree.left is None:
            h = net.words[tree.word]
        else:
            h = net.join(encode(tree.left, outputs, labels), encode(tree.right, outputs, labels))
        outputs.append(h @ net.head)
        labels.append(tree.label)
        return h

    def step(trees):
        outputs, labels = [], []
        for tree in trees:
            encode(tree, outputs, labels)
        right = (torch.stack(outputs).argmax(1) == torch.stack(labels)).sum()
        return net.update(F.cross_entropy(torch.stack(outputs), torch.stack(labels))), right.item()

    return Program(step, forests(labelled), state=net)


@program(speculated=6, close=CLOSE)
def states_before_and_after_the_children_in_one_list():
    net = Sentiment()

    def encode(node, found):
        h = net.words[node.word] * 1.0
        found.append(h * 2)
        for child in node.children:
            h = h + torch.tanh(encode(child, found) + net.b)
        found.append(h)
        return h

    def step(trees):
        found = []
        for tree in trees:
            encode(tree, found)
        rows = torch.stack(found)
        weights = torch.arange(len(found)) / len(found)  # the order counts
        return net.update((rows.sum(1) * weights).pow(2).mean()), torch.cat(found).detach()

    return Program(step, forests(bushy), state=net)


@program(speculated=6, close=CLOSE)
def list_of_states_that_is_returned():
    net = Net()

    def encode(tree, seen):
        if tree.left is None:
            h = net.words[tree.word] * 1.0
        else:
            h = net.join(encode(tree.left, seen), encode(tree.right, seen))
        seen.append(h.detach())
        return h

    def step(trees):
        seen = []
        return net.update(sum(encode(tree, seen).pow(2).sum() for tree in trees)), seen

    return Program(step, forests(binary), state=net)


@program(speculated=4, close=CLOSE)
def list_for_each_tree():
    net = Sentiment()

    def step(trees):
        total = 0.0
        for tree in trees:
            losses = []
            net.encode(tree, losses)
            total = total + torch.stack(losses).mean()
        return net.update(total)

    return Program(step, forests(lambda: labelled(lambda: binary(random.randint(2, 6)))), state=net)


@program(speculated=2, close=CLOSE, compiles=6)
def lists_that_stay_empty_or_hold_one():
    net = Net()
    chosen = 0

    def encode(tree, found):
        if tree.left is None:
            h = net.words[tree.word] * 1.0
            if tree.word == chosen:
                found.append(h.sum())
            return h
        return net.join(encode(tree.left, found), encode(tree.right, found))

    def step(trees):
        found = []
        loss = sum(encode(tree, found).pow(2).sum() for tree in trees)
        if found:
            loss = loss + torch.stack(found).sum()
        return net.update(loss), len(found)

    return Program(step, forests(binary, calls=24), state=net)


@program(speculated=0, reported="uses single elements of a list")
def elements_of_a_list_taken_one_by_one():
    net = Sentiment()

    def step(trees):
        losses = []
        for tree in trees:
            net.encode(tree, losses)
        return net.update(losses[0] + losses[-1] * 2)

    return Program(step, forests(labelled), state=net)


@program(speculated=0)
def list_to_which_the_step_appends_too():
    net = Sentiment()

    def step(trees):
        losses = []
        for tree in trees:
            h = net.encode(tree, losses)
            losses.append(h.pow(2).sum())
        return net.update(torch.stack(losses).sum()), len(losses)

    return Program(step, forests(labelled), state=net)


@program(speculated=0, reported="looks into a list")
def list_at_which_calls_look():
    net = Sentiment()

    def encode(tree, losses):
        if tree.left is None:
            h = net.words[tree.word]
        else:
            h = net.join(encode(tree.left, losses), encode(tree.right, losses))
        losses.append(net.loss(h, tree) / (1 + len(losses)))
        return h

    def step(trees):
        losses = []
        for tree in trees:
            encode(tree, losses)
        return net.update(sum(losses))

    return Program(step, forests(labelled), state=net)


@program(speculated=0, reported="appending tensors")
def list_of_words():
    net = Net()

    def encode(tree, words):
        if tree.left is None:
            words.append(tree.word)
            return net.words[tree.word]
        return net.join(encode(tree.left, words), encode(tree.right, words))

    def step(trees):
        words = []
        loss = net.update(sum(encode(tree, words).pow(2).sum() for tree in trees))
        return loss, words

    return Program(step, forests(binary), state=net)


@program(speculated=0, reported="changes what recursive calls append")
def appended_and_changed():
    net = Net()

    def encode(tree, found):
        if tree.left is None:
            h = net.words[tree.word]
        else:
            h = net.join(encode(tree.left, found), encode(tree.right, found))
        found.append(h)
        return h

    def step(trees):
        found = []
        loss = sum(encode(tree, found).pow(2).sum() for tree in trees)
        loss = net.update(loss)  # words of leaves are views of what is updated
        return loss, torch.stack(found).sum().item()

    return Program(step, forests(binary), state=net)


@program(speculated=0, reported="some elements have gradients")
def list_of_losses_and_constants_that_is_kept():
    net = Sentiment()
    log = {}

    def encode(tree, losses):
        if tree.left is None:
            losses.append(torch.zeros(()))
            return net.words[tree.word]
        h = net.join(encode(tree.left, losses), encode(tree.right, losses))
        losses.append(net.loss(h, tree))
        return h

    def step(trees):
        losses = []
        for tree in trees:
            encode(tree, losses)
        log["losses"] = losses
        return net.update(sum(losses))

    return Program(step, forests(lambda: labelled(lambda: binary(random.randint(2, 6)))), state=(net, log))


@program(speculated=5, close=CLOSE)
def losses_of_all_but_leaves():
    net = Sentiment()

    def encode(tree, losses):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left, losses), encode(tree.right, losses))
        losses.append(net.loss(h, tree))
        return h

    def step(trees):
        losses = []
        for tree in trees:
            encode(tree, losses)
        return net.update(sum(losses))

    return Program(step, forests(lambda: labelled(lambda: binary(random.randint(3, 6)))), state=net)


@program(speculated=0, reported="others append to the same list")
def list_filled_by_two_functions():
    net = Sentiment()

    def sizes(tree, losses):
        losses.append(net.b.sum())
        if tree.left is not None:
            sizes(tree.left, losses)
            sizes(tree.right, losses)

    def step(trees):
        losses = []
        for tree in trees:
            net.encode(tree, losses)
            sizes(tree, losses)
        return net.update(sum(losses))

    return Program(step, forests(labelled), state=net)


@program(refused="with its backward pass still to come")
def states_kept_on_the_nodes():
    net = Net()

    def encode(tree):
        if tree.left is None:
            tree.state = net.words[tree.word]
        else:
            encode(tree.left)
            encode(tree.right)
            tree.state = net.join(tree.left.state, tree.right.state)

    def step(tree):
        encode(tree)
        return net.update(tree.state.pow(2).sum())

    return Program(step, single(binary), state=net)


@program(speculated=0)
def detached_states_kept_on_the_nodes():
    net = Net()

    def encode(tree):
        if tree.left is None:
            h = net.words[tree.word]
        else:
            h = net.join(encode(tree.left), encode(tree.right))
        tree.state = h.detach()
        return h

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(binary), state=net)


@program(speculated=5, close=CLOSE)
def states_of_their_own_kept_on_the_nodes():
    net = Net()

    def encode(tree):
        if tree.left is None:
            h = net.words[tree.word] * 1.0
        else:
            h = net.join(encode(tree.left), encode(tree.right))
        tree.state = h.detach()
        tree.seen = True
        tree.again = 2 * (tree.word or 0)
        return h

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(binary), state=net)


@program(speculated=5, close=CLOSE)
def states_logged_by_the_model_in_order():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.outputs = []

        def encode(self, tree, depth=0):
            if tree.left is None:
                self.outputs.append(tree.word)
                h = self.words[tree.word] * 1.0
            else:
                self.outputs.append(depth)
                left = self.encode(tree.left, depth + 1)
                self.outputs.append((left + 1).detach())
                h = self.join(left, self.encode(tree.right, depth + 1))
            self.outputs.append(h.detach())
            return h

    net = Model()

    def step(trees):
        return net.update(sum(net.encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(binary), state=net)


@program(speculated=5, close=CLOSE)
def states_logged_in_a_list_that_is_passed_along():
    net = Net()

    class Small:
        __slots__ = ("left", "right", "state", "word")

        def __init__(self, word=None, left=None, right=None):
            self.word, self.left, self.right = word, left, right

    def small(tree):
        if tree.left is None:
            return Small(tree.word)
        return Small(None, small(tree.left), small(tree.right))

    def encode(tree, log):
        if tree.left is None:
            h = net.words[tree.word] * 1.0
        else:
            h = net.join(encode(tree.left, log), encode(tree.right, log))
        tree.state = h.detach()
        log.append(tree.state)
        return h

    def step(trees, log):
        return net.update(sum(encode(tree, log).pow(2).sum() for tree in trees))

    log = []
    return Program(step, [(trees, log) for (trees,) in forests(lambda: small(binary()))], state=net)


@program(speculated=5, close=CLOSE)
def states_kept_and_nothing_else():
    net = Net()

    def encode(tree):
        if tree.left is None:
            h = net.words[tree.word] * 1.0
        else:
            h = net.join(encode(tree.left), encode(tree.right))
        tree.state = h.detach()
        return h

    def step(trees):
        with torch.no_grad():
            for tree in trees:
                encode(tree)

    return Program(step, forests(binary), state=net)


@program(speculated=5, close=CLOSE)
def states_kept_on_nodes_met_twice():
    net = Net()

    def encode(tree):
        if tree.left is None:
            h = net.words[tree.word] * 1.0
        else:
            h = net.join(encode(tree.left), encode(tree.right))
        tree.state = h.detach()
        return h

    def shared():
        tree = binary()
        return Tree(None, tree, Tree(None, tree, binary()))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(shared, 1, 1), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def states_looked_at_by_the_step():
    net = Net()

    def encode(tree):
        if tree.left is None:
            h = net.words[tree.word] * 1.0
        else:
            h = net.join(encode(tree.left), encode(tree.right))
        tree.state = h.detach()
        return h

    def step(trees):
        loss = sum(encode(tree).pow(2).sum() for tree in trees)
        return net.update(loss), sum(tree.state.sum().item() for tree in trees)

    return Program(step, forests(binary), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def visits_counted_on_shared_nodes():
    net = Net()

    def encode(tree):
        tree.visits = getattr(tree, "visits", 0) + 1
        if tree.left is None:
            return net.words[tree.word] * tree.visits
        return net.join(encode(tree.left), encode(tree.right))

    def shared():
        tree = binary()
        return Tree(None, tree, Tree(None, tree, binary()))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(shared, 1, 1), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def states_that_are_returned_too():
    net = Net()

    def encode(tree):
        if tree.left is None:
            h = net.words[tree.word] * 1.0
        else:
            h = net.join(encode(tree.left), encode(tree.right))
        tree.state = h.detach()
        return h

    def step(tree):
        h = encode(tree)
        net.update(h.pow(2).sum())
        return h.detach().mul_(2)

    return Program(step, single(binary), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def logs_read_by_later_calls():
    net = Net()
    net.outputs = []

    def encode(tree):
        if tree.left is None:
            h = net.words[tree.word] * 1.0
        else:
            h = net.join(encode(tree.left), encode(tree.right)) + net.outputs[-1]
        net.outputs.append(h.detach())
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum()), len(net.outputs)

    return Program(step, single(binary), state=net)


@program(speculated=0, compiles=3, reported="calls print, which only the host can do")
def counters_and_prints():
    net = Net()
    net.visited = 0

    def encode(tree):
        net.visited += 1
        if tree.left is None:
            print("word", tree.word)
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        print("inner")
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(binary), state=net)


@program(speculated=5, close=CLOSE)
def subtrees_met_twice():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def build():
        nodes = [Tree(random.randrange(WORDS)) for _ in range(3)]
        for _ in range(random.randint(2, 4)):
            nodes.append(Tree(None, nodes[-1], random.choice(nodes)))
        return nodes[-1]

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(build), state=net)


@program(speculated=0, reported="is given as 'memory' a dict that was made or changed in the step")
def subtrees_remembered():
    net = Net()

    def encode(tree, memory):
        if id(tree) not in memory:
            if tree.left is None:
                memory[id(tree)] = net.words[tree.word]
            else:
                memory[id(tree)] = net.join(encode(tree.left, memory), encode(tree.right, memory))
        return memory[id(tree)]

    def build():
        nodes = [Tree(random.randrange(WORDS)) for _ in range(3)]
        for _ in range(random.randint(2, 4)):
            nodes.append(Tree(None, nodes[-1], random.choice(nodes)))
        return nodes[-1]

    def step(tree):
        return net.update(encode(tree, {}).pow(2).sum())

    return Program(step, single(build), state=net)


@program(speculated=0, reported="calls itself, and takes any arguments (*args, **kwargs)", compiles=8)
def any_arguments():
    net = Net()

    def encode(*args, **kwargs):
        tree, bias = args
        if tree.left is None:
            return net.words[tree.word] * kwargs["scale"]
        return net.join(encode(tree.left, bias, **kwargs), encode(tree.right, bias, **kwargs)) + bias

    def step(tree, bias):
        return net.update(encode(tree, bias, scale=0.5).pow(2).sum())

    return Program(step, [(binary(), torch.randn(WIDTH)) for _ in range(CALLS)], state=net)


@program(speculated=0)
def empty_trees():
    net = Net()

    def encode(tree):
        if tree is None:
            return torch.zeros(WIDTH)
        return net.join(encode(tree.left), encode(tree.right)) + net.words[tree.word]

    def build(depth=0):
        if random.random() < 0.25 * (depth + 1):
            return None
        return Tree(random.randrange(WORDS), build(depth + 1), build(depth + 1))

    def step(trees):
        loss = net.b.sum() * 0
        for tree in trees:
            loss = loss + encode(tree).pow(2).sum()
        return net.update(loss)

    return Program(step, forests(build, 0, 3), state=net)


@program(speculated=22, compiles=4, close=CLOSE)
def prediction_that_decides():
    net = Labelled()

    def step(tree):
        with torch.no_grad():
            if (net.encode(tree) @ net.head).argmax().item() == tree.label:
                return "right"
        return "wrong"

    return Program(step, [(tree,) for ((tree,),) in batches(1, 1, 30)], state=net)


@program(speculated=22, compiles=4, close=CLOSE)
def prediction_that_is_counted_and_trained():
    net = Labelled()
    seen = {"right": 0, "wrong": 0}

    def step(tree):
        logits = net.encode(tree) @ net.head
        loss = F.cross_entropy(logits[None], torch.tensor([tree.label]))
        if logits.argmax().item() == tree.label:
            seen["right"] += 1
        else:
            seen["wrong"] += 1
        return net.update(loss)

    return Program(step, [(tree,) for ((tree,),) in batches(1, 1, 30)], state=(net, seen))


@program(speculated=0, compiles=4)
def trees_of_one_node():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, [(binary(leaves),) for leaves in (1, 1, 2, 1, 3, 1, 1, 2, 1, 4)], state=net)


@program(speculated=5, compiles=3, close=CLOSE)
def branch_by_a_tensor():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        if h.sum() > 0:
            return h * 0.5
        return h + 1.0

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(binary), state=net)


@program(speculated=5, compiles=4, close=CLOSE)
def branch_that_goes_both_ways():
    net = Net()
    with torch.no_grad():
        net.words[::2], net.words[1::2] = 1.0, -1.0

    def encode(tree):
        if tree.left is None:
            h = net.words[tree.word] * 2
            return h * 0.5 if h.sum() > 0 else h
        return net.join(encode(tree.left), encode(tree.right))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: binary(5)), state=net)


@program(speculated=5, close=CLOSE)
def branch_that_always_goes_one_way():
    net = Net()
    probe = parameter(WIDTH)

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        if (h + probe).abs().max() > 50:
            raise ValueError("too large")
        return h

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(binary), state=(net, probe))


@program(speculated=5, close=CLOSE)
def branches_by_fetched_numbers_and_by_what_is_passed_down():
    net = Net()

    def encode(tree, above):
        if not torch.isfinite(above).all():
            return above * 0.0
        if tree.left is None:
            return net.words[tree.word] * above
        h = net.join(encode(tree.left, above * 0.9), encode(tree.right, above * 0.8))
        while h.norm().item() > 100:
            h = h / 2
        return h

    def step(trees):
        return net.update(sum(encode(tree, torch.ones(WIDTH)).pow(2).sum() for tree in trees))

    return Program(step, forests(binary), state=net)


@program(speculated=5, close=CLOSE)
def nodes_that_check_each_child():
    net = Net()

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            below = encode(child)
            assert torch.isfinite(below).all()
            assert not (below > 1e6).any(), "too large"
            h = net.join(h, below)
        return h

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(bushy, 1, 1, calls=12), state=net)


@program(speculated=9, close=CLOSE)
def branch_that_goes_the_other_way_once():
    net = Net()
    words = net.words

    def encode(tree):
        if tree.left is None:
            h = words[tree.word] * tree.scale
            return h.clamp(-1, 1) if h.abs().sum() > 1000 else h
        return net.join(encode(tree.left), encode(tree.right))

    def scaled(leaves=None):
        tree = binary(leaves)

        def scale(node):
            node.scale = 1.0
            for child in (node.left, node.right):
                if child is not None:
                    scale(child)

        scale(tree)
        return tree

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    calls = forests(scaled, calls=14)
    wild = calls[10][0][1]
    while wild.left is not None:
        wild = wild.left
    wild.scale = 1e5
    return Program(step, calls, state=net)


@program(speculated=5, close=CLOSE)
def parameters_that_only_decide():
    net = Net()
    probe = parameter(WIDTH)
    probe.grad = None

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        return h * 0.5 if h @ probe < 1e6 else h

    def step(tree):
        loss = net.update(encode(tree).pow(2).sum())
        return loss, probe.grad is None

    return Program(step, single(binary), state=(net, probe))


@program(speculated=4, close=CLOSE)
def checks_that_return_nothing():
    net = Net()

    def check(tree, above):
        below = torch.tanh(above + net.b)
        assert below.abs().max() <= 1
        if tree.left is not None:
            check(tree.left, below)
            check(tree.right, below)

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(tree):
        check(tree, torch.zeros(WIDTH))
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(binary), state=net)


@program(speculated=2, close=CLOSE, reported="and both have been seen")
def a_tensor_decides_to_go_on():
    words, w = parameter(WORDS, WIDTH, scale=1.0), parameter(WIDTH, WIDTH)

    def encode(node):
        h = torch.tanh(words[node.word] @ w)
        if h.norm() < 0.8:
            for child in node.children:
                h = h + encode(child)
        return h

    def step(tree):
        encode(tree).pow(2).sum().backward()
        g = w.grad.clone()
        w.grad = words.grad = None
        return g

    return Program(step, single(bushy), state=(words, w))


@program(speculated=0)
def error_in_a_node():
    net = Net()

    def encode(tree):
        if tree.left is None:
            if tree.word == 0:
                raise LookupError(f"no word {tree.word}")
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(binary), state=net)


@program(speculated=0)
def error_caught_by_the_parent():
    net = Net()

    def encode(tree):
        if tree.left is None:
            if tree.word == 0:
                raise LookupError(tree.word)
            return net.words[tree.word]
        try:
            left = encode(tree.left)
        except LookupError:
            left = torch.zeros(WIDTH)
        return net.join(left, encode(tree.right))

    def step(trees):
        total = torch.zeros(())
        missing = 0
        for tree in trees:
            try:
                total = total + encode(tree).pow(2).sum()
            except LookupError:
                missing += 1
        return (net.update(total) if total.requires_grad else None), missing

    return Program(step, forests(binary), state=net)


@program(speculated=0)
def error_of_the_framework():
    words, w = [parameter(WIDTH) for _ in range(WORDS - 1)], parameter(2 * WIDTH, WIDTH)
    words.append(parameter(WIDTH + 1))  # one that does not fit

    def encode(tree):
        if tree.left is None:
            return words[tree.word]
        return torch.tanh(torch.cat([encode(tree.left), encode(tree.right)]) @ w)

    def step(tree):
        w.grad = None
        encode(tree).pow(2).sum().backward()
        return w.grad.clone()

    return Program(step, single(lambda: binary(random.randint(2, 4))), state=(words, w))


@program(speculated=2, close=CLOSE)
def too_deep():
    """Deeper than Python allows, in one call of them; the step goes on."""
    net = Net()

    def encode(depth):
        if depth == 0:
            return net.b
        return net.join(encode(depth - 1), net.words[depth % WORDS])

    def step(depth):
        try:
            return net.update(encode(depth).sum())
        except RecursionError:
            return "too deep"

    return Program(step, [(depth,) for depth in (1, 2, 3, 4, 3, 5000, 5, 6, 5000, 2)], state=net)


@program(speculated=0)
def dropout_in_each_node():
    net = Net()
    rate = {"p": 0.3}

    def encode(tree):
        if tree.left is None:
            return F.dropout(net.words[tree.word], rate["p"])
        return F.dropout(net.join(encode(tree.left), encode(tree.right)), rate["p"])

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(binary), state=net)


@program(speculated=0, compiles=3)
def noise_at_the_leaves():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word] + 0.1 * torch.randn(WIDTH)
        return net.join(encode(tree.left), encode(tree.right))

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(binary), state=net)


@program(speculated=6, close=CLOSE)
def inference():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    @torch.no_grad()
    def step(trees):
        return [encode(tree).argmax().item() for tree in trees]

    return Program(step, forests(binary), state=net)


@program(speculated=6, close=CLOSE)
def dropout_that_does_nothing():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH)
            self.join, self.dropout = nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.2)

        def forward(self, tree):
            if tree.left is None:
                return self.dropout(self.words.weight[tree.word]).contiguous()
            return self.dropout(torch.relu(self.join(torch.cat([self(tree.left), self(tree.right)]))))

    model = Encoder().eval()

    def step(trees):
        with torch.no_grad():
            return torch.stack([model(tree) for tree in trees]).argmax(1)

    return Program(step, forests(binary), state=model)


@program(speculated=0)
def training_and_evaluation():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH)
            self.join, self.dropout = nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.2)

        def forward(self, tree):
            if tree.left is None:
                return self.dropout(self.words(torch.tensor(tree.word)))
            return torch.relu(self.join(torch.cat([self(tree.left), self(tree.right)])))

    model = Encoder()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(trees):
        with torch.set_grad_enabled(model.training):
            loss = sum(model(tree).pow(2).sum() for tree in trees)
        if model.training:
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.detach()

    before = {index: (model.eval if index % 4 == 3 else model.train) for index in range(CALLS)}
    return Program(step, forests(binary), before=before, state=model)


@program(speculated=5, close=CLOSE)
def single_trees_and_their_root():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(tree):
        h = encode(tree)
        net.update(h.pow(2).sum())
        return h.detach()

    return Program(step, single(binary), state=net)


@program(speculated=1, close=CLOSE, compiles=3)
def any_number_of_trees():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(trees, targets):
        encoded = torch.stack([encode(tree) for tree in trees])
        return net.update(F.mse_loss(encoded, targets))

    numbers = (2, 2, 3, 1, 4, 2, 5, 1, 3, 2)
    calls = [([binary() for _ in range(n)], torch.randn(n, WIDTH)) for n in numbers]
    return Program(step, calls, state=net)


class Labelled(Net):
    """A head that tells two classes of trees apart."""

    def __init__(self):
        super().__init__()
        self.head = parameter(WIDTH, 2)
        self.opt = torch.optim.SGD([self.words, self.w, self.b, self.head], lr=0.05)

    def encode(self, tree):
        if tree.left is None:
            return self.words[tree.word]
        return self.join(self.encode(tree.left), self.encode(tree.right))


def batches(least=1, most=7, calls=18):
    """Mini-batches of trees with a label each; the number of trees changes."""
    made = []
    for _ in range(calls):
        made.append([binary() for _ in range(random.randint(least, most))])
        for tree in made[-1]:
            tree.label = random.randrange(2)
    return [(trees,) for trees in made]


@program(speculated=11, close=CLOSE, compiles=3)
def losses_of_any_number_of_trees():
    net = Labelled()

    def step(trees):
        loss = 0.0
        for tree in trees:
            loss = loss + F.cross_entropy(net.encode(tree) @ net.head, torch.tensor(tree.label))
        return net.update(loss / len(trees))

    return Program(step, batches(), state=net)


@program(speculated=11, close=CLOSE)
def losses_added_up_in_place():
    net = Labelled()

    def step(trees):
        scale = torch.tanh(net.b)
        loss = scale.sum()
        for tree in trees:
            loss += F.cross_entropy((net.encode(tree) * scale) @ net.head, torch.tensor(tree.label))
        return net.update(loss)

    return Program(step, batches(), state=net)


@program(speculated=10, close=CLOSE, compiles=3)
def any_number_of_trees_stacked():
    net = Labelled()

    def step(trees):
        found = torch.stack([net.encode(tree) for tree in trees]) @ net.head
        labels = torch.tensor([tree.label for tree in trees])
        right = (found.argmax(1) == labels).float().mean()
        return net.update(F.cross_entropy(found, labels)), right

    return Program(step, batches(), state=net)


@program(speculated=11, close=CLOSE)
def any_number_of_trees_and_labels_beside_them():
    net = Labelled()

    def step(trees, labels):
        losses = []
        for tree, label in zip(trees, labels):
            losses.append(F.cross_entropy(net.encode(tree) @ net.head, torch.tensor(label)))
        return net.update(torch.stack(losses).mean())

    calls = [(trees, [tree.label for tree in trees]) for (trees,) in batches()]
    return Program(step, calls, state=net)


# How far rounding goes differs from processor to processor; 2.6e-5 of the loss were seen after 17 calls.
@program(speculated=4, close=10 * CLOSE, compiles=6)
def trees_met_twice_and_batches_without_trees():
    net = Labelled()

    def step(trees):
        return net.update(sum((net.encode(tree).pow(2).sum() for tree in trees), net.b.sum()))

    calls = batches(0, 5)
    for (trees,) in calls[-6:]:
        trees[1:] = trees[:1] * len(trees[1:])
    return Program(step, calls, state=net)


@program(speculated=10, close=CLOSE, compiles=3)
def states_of_any_number_of_trees():
    net = Labelled()

    def step(trees):
        with torch.no_grad():
            return [torch.tanh(net.encode(tree)) for tree in trees]

    return Program(step, batches(), state=net)


@program(speculated=3, close=CLOSE, compiles=4)
def roots_that_are_rows_of_a_parameter():
    net = Labelled()

    def step(trees):
        first = net.encode(trees[0])
        loss = net.update(first.pow(2).sum() + net.encode(trees[1]).sum())
        return loss, first.detach()

    calls = [([binary(random.choice([2, 3, 4])), binary()],) for _ in range(14)]
    for number in (7, 11):
        calls[number][0][0] = Tree(word=3)
    return Program(step, calls, state=net)


@program(speculated=0, close=CLOSE, compiles=8)
def list_of_roots_that_are_rows_of_a_parameter():
    net = Labelled()

    def step(trees):
        found = [net.encode(tree) for tree in trees]
        net.update(torch.stack(found).pow(2).sum())
        return found

    calls = batches(2, 3)
    for (trees,) in calls[::3]:
        trees[-1] = Tree(word=5)
    return Program(step, calls, state=net)


@program(speculated=4, close=CLOSE, compiles=8)
def trees_that_know_the_one_before():
    net = Labelled()

    def step(trees):
        before, loss = None, net.b.sum()
        for tree in trees:
            now = net.encode(tree)
            loss = loss + (now.sum() if before is None else (now * before).sum())
            before = now
        return net.update(loss)

    return Program(step, batches(1, 4), state=net)


@program(speculated=4, close=CLOSE, compiles=8)
def trees_that_know_their_number():
    net = Labelled()

    def step(trees):
        states = [net.encode(tree) for tree in trees]
        loss = sum(state.sum() * (1 + number) for number, state in enumerate(states))
        return net.update(loss / len(states))

    return Program(step, batches(1, 4), state=net)


@program(speculated=6, close=CLOSE, compiles=4)
def trees_that_know_their_row():
    net = Labelled()

    def step(trees, target):
        loss = net.b.sum()
        for number, tree in enumerate(trees):
            loss = loss + (net.encode(tree) - target[number]).pow(2).sum()
        return net.update(loss / len(trees))

    calls = [(trees, torch.randn(4, WIDTH)) for (trees,) in forests(binary, 4, 4)]
    return Program(step, calls, state=net)


@program(speculated=6, close=CLOSE, compiles=4)
def trees_with_weights_of_the_program():
    net = Labelled()

    def step(trees):
        loss, pairs = net.b.sum(), list(zip(trees, (0.1, 0.2, 0.3, 0.4), strict=True))
        for tree, weight in pairs:
            loss = loss + net.encode(tree).sum() * weight
        return net.update(loss)

    return Program(step, forests(binary, 4, 4), state=net)


@program(speculated=4, close=CLOSE, compiles=4)
def any_number_of_roots_of_several_classes():
    net = Labelled()

    class Leaf:
        def __init__(self, word):
            self.word = word

        def encode(self):
            return net.words[self.word]

    class Inner:
        def __init__(self, left, right):
            self.left, self.right = left, right

        def encode(self):
            return net.join(self.left.encode(), self.right.encode())

    def build(shape):
        return Leaf(shape) if isinstance(shape, int) else Inner(build(shape[0]), build(shape[1]))

    def step(trees):
        return net.update(sum(tree.encode().pow(2).sum() for tree in trees) / len(trees))

    calls = [([build(shape_of(random.randint(1, 4))) for _ in range(random.randint(2, 6))],) for _ in range(24)]
    return Program(step, calls, state=net)


@program(speculated=0, close=CLOSE, compiles=8)
def trees_that_know_a_flag_of_the_one_before():
    net = Labelled()

    def step(trees):
        before, loss = False, net.b.sum()
        for tree in trees:
            now = net.encode(tree)
            if before:
                now = now * 2
            loss = loss + now.sum()
            before = tree.special
        return net.update(loss)

    calls = batches(2, 5, 30)
    for number, (trees,) in enumerate(calls):
        for tree in trees:
            tree.special = number % 6 == 5 and (number > 20 or len(trees) == 2) and random.random() < 0.7
    return Program(step, calls, state=net)


@program(speculated=0, close=CLOSE, compiles=8)
def trees_that_know_the_label_before():
    net = Labelled()

    def step(trees):
        before, loss = False, net.b.sum()
        for tree in trees:
            now = net.encode(tree)
            loss = loss + (now.sum() if before else now.pow(2).sum())
            before = tree.label == 1
        return net.update(loss)

    return Program(step, batches(1, 5), state=net)


@program(speculated=5, close=CLOSE)
def gradients_asked_for():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(tree):
        return torch.autograd.grad(encode(tree).pow(2).sum(), [net.words, net.w])

    return Program(step, single(lambda: binary(random.randint(2, 6))), state=net)


@program(speculated=6, close=CLOSE)
def detached_below_a_depth():
    net = Net()

    def encode(tree, depth):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left, depth + 1), encode(tree.right, depth + 1))
        return h.detach() if depth > 1 else h

    def step(trees):
        return net.update(sum(encode(tree, 0).pow(2).sum() for tree in trees))

    return Program(step, forests(binary), state=net)


@program(speculated=5, close=CLOSE)
def state_kept_between_calls():
    net = Net()
    memory = {"h": torch.zeros(WIDTH), "seen": 0}

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word] + memory["h"]
        return net.join(encode(tree.left), encode(tree.right))

    def step(tree):
        h = encode(tree)
        memory["h"] = h.detach()
        memory["seen"] += 1
        return net.update(h.pow(2).sum())

    return Program(step, single(binary), state=(net, memory))


@program(speculated=0, close=CLOSE)
def labels_that_are_text():
    net = Net()
    vocabulary = {name: index for index, name in enumerate("the a dog cat sees sleeps old".split())}
    rules = {"np": parameter(WIDTH), "vp": parameter(WIDTH), "s": parameter(WIDTH)}

    def encode(tree):
        if isinstance(tree, str):
            return net.words[vocabulary[tree]]
        rule, *parts = tree
        h = rules[rule]
        for part in parts:
            h = net.join(h, encode(part))
        return h

    def phrase(kind):
        noun = ("np", random.choice(["the", "a"]), *["old"] * random.randint(0, 1), random.choice(["dog", "cat"]))
        if kind == "np":
            return noun
        verb = ("vp", "sleeps") if random.random() < 0.5 else ("vp", "sees", phrase("np"))
        return ("s", noun, verb)

    def step(trees):
        for rule in rules.values():
            rule.grad = None
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: phrase("s")), state=(net, rules))


# -- sizes that depend on contents --------------------------------------------------------------------------------


def sized_by_contents(size):
    """A recursive function that computes with the size of what it selects. ``size``: that size."""
    w, b = parameter(WIDTH, WIDTH), parameter(WIDTH)

    def encode(tree, h):
        h = torch.relu(h @ w + b)
        h = h * size(h)
        if tree.left is None:
            return h
        return encode(tree.left, h) + encode(tree.right, h)

    def step(tree, x):
        return encode(tree, x).detach()

    return Program(step, [(*call, torch.randn(WIDTH)) for call in single(lambda: binary(4))], state=(w, b))


@program(speculated=0, compiles=8, close=CLOSE, reported="returns in a recursive call depend on contents")
def as_many_as_are_positive():
    return sized_by_contents(lambda h: torch.nonzero(h).size(0))


@program(speculated=0, compiles=8, close=CLOSE, reported="returns in a recursive call depend on contents")
def as_many_as_are_different():
    return sized_by_contents(lambda h: h.unique().numel())


@program(speculated=0, compiles=8, close=CLOSE, reported="returns in a recursive call depend on contents")
def as_many_classes_as_there_are():
    return sized_by_contents(lambda h: torch.nn.functional.one_hot((h > 0).long()).size(1))


# -- lists that are passed up -------------------------------------------------------------------------------------


@program(speculated=0, compiles=8, close=CLOSE, reported="returns lists of")
def states_of_one_child_passed_up():
    """Where there is one child, nothing is left of the loop when its first iteration is peeled."""
    net = Net()

    def states(node, h):
        found = [torch.tanh(h + net.words[node.word])]
        for child in node.children:
            found += states(child, found[-1])
        return found

    def step(tree):
        return net.update(torch.stack(states(tree, net.b)).pow(2).sum())

    return Program(step, single(bushy), state=net)

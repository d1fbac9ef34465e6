"""Nodes that pick a part of the model: a module of a table, a method by its name, a parameter of each level."""

import random

import torch
from torch import nn

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, WORDS, Net, binary, bushy, forests, parameter, single

RUN_ONE_IN = 20  # Each takes seconds: it is served only after many of its loops or calls have been merged.

ARITY = {"add": 2, "mul": 2, "neg": 1}


class Expression:
    def __init__(self, kind, children=(), word=0):
        self.kind, self.children, self.word = kind, list(children), word


def expression(kind=None, depth=0):
    """A random expression; the outermost operations are all there are, so that every part is used."""
    if kind is None:
        kind = "leaf" if depth > 2 or random.random() < 0.4 else random.choice(list(ARITY))
    if kind == "leaf":
        return Expression(kind, word=random.randrange(WORDS))
    return Expression(kind, [expression(depth=depth + 1) for _ in range(ARITY[kind])])


def every_kind():
    return Expression("add", [expression("mul", 1), expression("neg", 1)])


def trained(model, loss_of, calls):
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(tree):
        opt.zero_grad()
        loss = loss_of(tree)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, calls, state=model)


class Table(nn.Module):
    """A module for each operation (neural module networks)."""

    def __init__(self, plain=False):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        cells = {kind: nn.Linear(count * WIDTH, WIDTH) for kind, count in ARITY.items()}
        self.owned = nn.ModuleList(cells.values())
        self.cells = cells if plain else nn.ModuleDict(cells)

    def forward(self, node):
        if node.kind == "leaf":
            return self.embed(torch.tensor(node.word))
        return torch.tanh(self.cells[node.kind](torch.cat([self(child) for child in node.children])))


@program(speculated=9, close=CLOSE)
def modules_by_kind():
    model = Table()
    return trained(model, lambda tree: model(tree).pow(2).sum(), single(every_kind, 16))


@program(speculated=9, close=CLOSE)
def modules_in_a_plain_dictionary():
    model = Table(plain=True)
    return trained(model, lambda tree: model(tree).pow(2).sum(), single(every_kind, 16))


@program(speculated=5, compiles=5, close=CLOSE)
def modules_of_which_trees_use_some():
    model = Table()
    return trained(model, lambda tree: model(tree).pow(2).sum(), single(lambda: expression("add"), 30))


@program(speculated=8, compiles=4, close=CLOSE)
def modules_by_number_of_children():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.cells = nn.ModuleList(nn.Linear((count + 1) * WIDTH, WIDTH) for count in range(4))

        def forward(self, node):
            states = [self.embed(torch.tensor(node.word)), *(self(child) for child in node.children)]
            return torch.tanh(self.cells[len(node.children)](torch.cat(states)))

    model = Net()

    def loss_of(trees):
        return sum(model(tree).pow(2).sum() for tree in trees)

    return trained(model, loss_of, [([bushy(7) for _ in range(6)],) for _ in range(24)])


@program(speculated=8, compiles=3, close=CLOSE)
def pairs_of_parameters_by_kind():
    net = Net()
    table = {kind: (parameter(WIDTH), parameter(WIDTH)) for kind in (*ARITY, "leaf")}
    opt = torch.optim.SGD([part for pair in table.values() for part in pair], lr=0.05)

    def evaluate(node):
        scale, shift = table[node.kind]
        h = net.words[node.word]
        for child in node.children:
            h = h + evaluate(child)
        return torch.tanh(h * scale + shift)

    def step(tree):
        opt.zero_grad()
        loss = net.update(evaluate(tree).pow(2).sum())
        opt.step()
        return loss

    return Program(step, single(every_kind, 16), state=(net, table))


@program(speculated=8, compiles=3, close=CLOSE)
def objects_with_parameters_by_kind():
    net = Net()

    class Cell:
        def __init__(self):
            self.scale = parameter(WIDTH)
            self.uses = 0

        def __call__(self, h):
            return torch.tanh(h * self.scale)

    table = {kind: Cell() for kind in (*ARITY, "leaf")}
    opt = torch.optim.SGD([cell.scale for cell in table.values()], lr=0.05)

    def evaluate(node):
        h = net.words[node.word]
        for child in node.children:
            h = h + evaluate(child)
        return table[node.kind](h)

    def step(tree):
        opt.zero_grad()
        loss = net.update(evaluate(tree).pow(2).sum())
        opt.step()
        return loss

    return Program(step, single(every_kind, 16), state=(net, table))


@program(speculated=5, close=CLOSE, compiles=4)
def a_part_that_is_exchanged():
    model = Table(plain=True)
    program = trained(model, lambda tree: model(tree).pow(2).sum(), single(every_kind, 20))

    def exchange():
        model.cells["neg"] = nn.Linear(WIDTH, WIDTH)

    program.before = {11: exchange}
    return program


@program(speculated=6, close=CLOSE, compiles=3)
def a_kind_without_a_part():
    model = Table()

    def loss_of(tree):
        try:
            return model(tree).pow(2).sum()
        except KeyError as error:
            return model.embed.weight.sum() * len(str(error))

    def odd():
        tree = every_kind()
        tree.children[0].children[0] = Expression("odd", [Expression("leaf")])
        return tree

    calls = [(every_kind(),) for _ in range(14)]
    calls[9] = (odd(),)
    return trained(model, loss_of, calls)


@program(speculated=6, compiles=4, close=CLOSE)
def parameters_of_levels():
    net = Net()
    levels = [parameter(WIDTH) for _ in range(3)]
    opt = torch.optim.SGD(levels, lr=0.05)

    def encode(tree, depth):
        if tree.left is None:
            h = net.words[tree.word]
        else:
            h = net.join(encode(tree.left, depth + 1), encode(tree.right, depth + 1))
        return h * levels[depth % 3]

    def step(trees):
        opt.zero_grad()
        loss = net.update(sum(encode(tree, 0).pow(2).sum() for tree in trees))
        opt.step()
        return loss

    return Program(step, forests(lambda: binary(6), 3, 3, 16), state=(net, levels))

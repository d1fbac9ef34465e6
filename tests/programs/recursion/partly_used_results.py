"""Recursive calls whose results are used only in part: parameters that nothing uses have no gradient."""

import random

import torch
from torch import nn

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, WORDS, binary

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


class Parts(nn.Module):
    """What calls return has parameters of its own. ``cut``: what is passed up without gradients."""

    def __init__(self, cut=()):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.both, self.cell = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.out, self.aside = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 2)
        self.cut = cut
        self.seen = None
        self.opt = torch.optim.SGD(self.parameters(), lr=0.05)

    def encode(self, tree):
        if tree.left is None:
            h = self.words.weight[tree.word]
            c = h * 0.5
        else:
            left, right = self.encode(tree.left), self.encode(tree.right)
            if "h" in self.cut:
                h = torch.tanh(self.both(torch.cat([left["h"].detach(), right["h"]])))
            else:
                h = torch.tanh(self.both(torch.cat([left["h"], right["h"]])))
            c = torch.sigmoid(self.cell(torch.cat([left["c"], right["c"]])))
        return {"h": h, "c": c, "logits": self.out(h), "aside": self.aside(c)}

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item(), [parameter.grad is None for parameter in self.parameters()]


def batches(least=2, most=4, leaves=2, calls=14):
    def tree():
        return binary(random.randint(leaves, 5))

    return [([tree() for _ in range(random.randint(least, most))],) for _ in range(calls)]


def used(part, calls=None, cut=()):
    model = Parts(cut)

    def step(trees):
        return model.update(sum(part(model.encode(tree)).pow(2).sum() for tree in trees))

    return Program(step, calls or batches(2, 2), state=model)


@program(speculated=9, close=CLOSE)
def one_of_four():
    return used(lambda made: made["logits"])


@program(speculated=9, close=CLOSE)
def another_of_four():
    return used(lambda made: made["aside"])


@program(speculated=9, close=CLOSE)
def two_of_four():
    return used(lambda made: made["logits"].sum() * made["c"])


@program(speculated=15, close=CLOSE)
def trees_of_one_leaf():
    """Nothing is joined in some batches."""
    return used(lambda made: made["logits"], batches(2, 2, 1, 24))


@program(speculated=7, compiles=3, close=CLOSE)
def one_of_four_passed_up_without_gradients():
    return used(lambda made: made["h"], cut=("h",))


@program(speculated=4, compiles=4, close=CLOSE)
def a_mode_decides_which():
    model = Parts()

    def step(trees, key):
        return model.update(sum(model.encode(tree)[key].pow(2).sum() for tree in trees))

    calls = [(*call, ("logits", "aside")[n // 2 % 2]) for n, call in enumerate(batches(2, 2, calls=20))]
    return Program(step, calls, state=model)


@program(speculated=9, close=CLOSE)
def each_tree_another():
    model = Parts()

    def step(first, second):
        loss = model.encode(first)["logits"].pow(2).sum() + model.encode(second)["h"].pow(2).sum()
        return model.update(loss)

    return Program(step, [(one, other) for ((one, other),) in batches(2, 2)], state=model)


@program(speculated=4, compiles=3, close=CLOSE)
def some_only_looked_at():
    model = Parts()

    def step(trees):
        loss, seen = 0, 0
        for tree in trees:
            made = model.encode(tree)
            loss = loss + made["logits"].pow(2).sum()
            seen = seen + made["aside"].detach().abs().sum()
        return *model.update(loss), seen

    return Program(step, batches(), state=model)


class Listing(Parts):
    def encode(self, tree):
        made = super().encode(tree)
        self.seen.append(made["aside"].sum())
        return made


def listed(use):
    model = Listing()

    def step(trees):
        model.seen = []
        made = [model.encode(tree) for tree in trees]
        loss, seen = use(made, torch.stack(model.seen)), torch.stack(model.seen).abs().sum().item()
        model.seen = []
        return *model.update(loss), seen

    return Program(step, batches(2, 2), state=model)


@program(speculated=8, close=CLOSE)
def a_list_only_looked_at():
    return listed(lambda made, seen: sum(one["logits"].pow(2).sum() for one in made))


@program(speculated=8, close=CLOSE)
def only_the_list():
    return listed(lambda made, seen: seen.pow(2).mean() * 0.1)


@program(speculated=8, close=CLOSE)
def the_list_and_one_of_four():
    return listed(lambda made, seen: seen.pow(2).mean() * 0.1 + made[0]["logits"].pow(2).sum())

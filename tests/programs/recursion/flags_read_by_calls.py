"""What a step writes to objects before, between and after the recursive calls that read them."""

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, Net, binary, forests, single

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


class Marked:
    def __init__(self, word=None, left=None, right=None):
        self.word, self.left, self.right, self.bonus = word, left, right, False


def marked(tree=None):
    tree = tree or binary()
    if tree.left is None:
        return Marked(tree.word)
    return Marked(None, marked(tree.left), marked(tree.right))


@program(speculated=5, close=CLOSE)
def model_set_to_evaluation():
    net = Net()
    model = torch.nn.ModuleDict({"drop": torch.nn.Dropout(0.5), "inner": torch.nn.Linear(4, 4)})

    def encode(tree):
        if tree.left is None:
            return model["drop"](net.words[tree.word])
        h = net.join(encode(tree.left), encode(tree.right))
        return h * 2 if model.training else model["inner"](h)

    def step(trees):
        model.eval()
        loss = sum(encode(tree).pow(2).sum() for tree in trees)
        model.train()
        return net.update(loss)

    return Program(step, forests(binary), state=(net, model))


@program(speculated=5, close=CLOSE)
def flag_that_changes_between_calls():
    net = Net()
    net.rough = None

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        return h.sigmoid() if net.rough else h * 0.5

    def step(tree):
        net.rough = True
        first = encode(tree)
        net.rough = False
        second = encode(tree)
        net.rough = True
        return net.update((first - second + encode(tree)).pow(2).sum())

    return Program(step, single(binary), state=net)


@program(speculated=6, close=CLOSE, compiles=3)
def flag_that_is_what_the_step_is_given():
    net = Net()
    net.rough = None

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        return h.sigmoid() if net.rough else h * 0.5

    def step(tree, rough):
        if rough is not None:
            net.rough = bool(rough)
        return net.update(encode(tree).pow(2).sum())

    calls = [(tree, (True, False, None)[n % 3]) for n, (tree,) in enumerate(single(binary, 24))]
    return Program(step, calls, state=net)


@program(speculated=3, close=CLOSE, compiles=4)
def flag_on_a_node_that_another_tree_may_hold():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word] * (2.0 if tree.bonus else 1.0)
        h = net.join(encode(tree.left), encode(tree.right))
        return h * 3 if tree.bonus else h

    def step(one, other):
        one.bonus = True
        return net.update(encode(other).pow(2).sum())

    calls = [(marked(), marked()) for _ in range(16)]
    for number in (9, 11):
        calls[number][1].left = calls[number][0]
    calls[13] = (calls[13][0], calls[13][0])
    return Program(step, calls, state=net)


@program(speculated=3, close=CLOSE, compiles=4)
def number_on_a_node_that_another_tree_may_hold():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word] * (1 + tree.bonus)
        return net.join(encode(tree.left), encode(tree.right)) * (1 + tree.bonus)

    def step(one, other):
        one.bonus = 2
        return net.update(encode(other).pow(2).sum())

    calls = [(marked(), marked()) for _ in range(16)]
    for number in (9, 11):
        calls[number][1].left = calls[number][0]
    return Program(step, calls, state=net)


@program(speculated=3, close=CLOSE, compiles=4)
def child_that_the_step_replaces():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(one, other):
        one.left = None
        return net.update(encode(other).pow(2).sum())

    calls = [(marked(), marked()) for _ in range(16)]
    for number in (9, 11):
        calls[number][1].left = calls[number][0]
    return Program(step, calls, state=net)


@program(speculated=3, close=CLOSE, compiles=4)
def children_that_the_step_appends():
    net = Net()

    def encode(tree):
        h = net.words[tree["word"]]
        for child in tree["children"]:
            h = torch.tanh(h + encode(child))
        return h

    def step(one, other):
        one["children"].append({"word": 1, "children": []})
        return net.update(encode(other).pow(2).sum())

    def build(tree):
        if tree.left is None:
            return {"word": tree.word, "children": []}
        return {"word": 0, "children": [build(tree.left), build(tree.right)]}

    calls = [(build(binary()), build(binary())) for _ in range(16)]
    for number in (9, 11):
        calls[number][1]["children"].append(calls[number][0])
    return Program(step, calls, state=net)


def chained(number):
    trees = [marked() for _ in range(4)]
    if number in (9, 10, 12):
        trees[2].left = trees[number - 9 and 1]
    return (trees,)


@program(speculated=0, close=CLOSE, compiles=6)
def trees_marked_one_by_one():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word] * (2.0 if tree.bonus else 1.0)
        return net.join(encode(tree.left), encode(tree.right)) * (2.0 if tree.bonus else 1.0)

    def step(trees):
        loss = 0.0
        for tree in trees:
            tree.bonus = True
            loss = loss + encode(tree).pow(2).sum()
        return net.update(loss)

    return Program(step, [chained(number) for number in range(16)], state=net)


@program(speculated=3, close=CLOSE, compiles=6)
def trees_marked_when_they_are_done():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word] * (2.0 if tree.bonus else 1.0)
        return net.join(encode(tree.left), encode(tree.right)) * (2.0 if tree.bonus else 1.0)

    def step(trees):
        loss = 0.0
        for tree in trees:
            loss = loss + encode(tree).pow(2).sum()
            tree.bonus = True
        return net.update(loss)

    return Program(step, [chained(number) for number in range(16)], state=net)

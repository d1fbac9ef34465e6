"""Numbers on nodes that recursive calls update: each is computed from the earlier one."""

import random

import torch

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, Net, binary, bushy, forests, single

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


def counted(size=None):
    def build(node):
        node.visits, node.weight, node.deepest = 0, 0.5, 0
        for child in node.children:
            build(child)
        return node

    return build(bushy(size))


def shared():
    """Trees in which nodes are met twice."""
    tree, other = counted(6), counted(4)
    random.choice(tree.children).children.append(other)
    tree.children.append(other)
    return tree


@program(speculated=6, close=CLOSE)
def visits_of_each_node():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    kept = [counted() for _ in range(4)]
    calls = [(kept[n // 2 % 4] if n % 2 else counted(),) for n in range(20)]
    return Program(step, calls, state=net)


@program(speculated=6, close=CLOSE)
def visits_of_nodes_met_twice():
    net = Net()

    def encode(node, depth=0):
        node.visits += 1
        node.weight = node.weight * 0.9 + depth
        node.deepest = max(node.deepest, depth)
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child, depth + 1))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared, 16), state=net)


@program(speculated=6, close=CLOSE)
def counts_in_slots_and_dictionaries():
    net = Net()

    class Slotted:
        __slots__ = ("children", "visits", "word")

        def __init__(self, node):
            self.word, self.visits = node.word, 0
            self.children = [Slotted(child) for child in node.children]

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        node.visits += len(node.children) + 1
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    def build():
        tree, other = Slotted(bushy()), Slotted(bushy(3))
        tree.children += [other, other]
        return tree

    return Program(step, single(build, 16), state=net)


@program(speculated=0, compiles=3, close=CLOSE, reported="write what calls read")
def counts_before_and_after():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        node.visits += 1
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def counts_of_children_that_count_themselves():
    net = Net()

    def encode(node):
        node.visits = node.visits + 1
        h = net.words[node.word]
        for child in node.children:
            before = child.visits
            h = torch.tanh(h + encode(child))
            child.visits = before + 5
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared), state=net)


@program(speculated=6, close=CLOSE)
def counts_after_the_children():
    net = Net()

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        node.visits = 2 * node.visits + 1
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared, 16), state=net)


@program(speculated=0, compiles=3, close=CLOSE, reported="write what calls read")
def counts_that_are_computed_with():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word] / node.visits
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def counts_that_decide():
    net = Net()

    def encode(node):
        node.visits += 1
        if node.visits > 1:
            return net.words[node.word]
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(shared), state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def counts_that_are_returned():
    net = Net()

    def encode(node):
        node.visits += 1
        h, total = net.words[node.word], node.visits
        for child in node.children:
            below, more = encode(child)
            h, total = torch.tanh(h + below), total + more
        return h, total

    def step(tree):
        h, total = encode(tree)
        return net.update(h.pow(2).sum()), total

    return Program(step, single(shared), state=net)


@program(speculated=0, compiles=3, close=CLOSE, reported="write what other calls read")
def counts_that_another_function_reads():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def weigh(node):
        h = net.words[node.word] * node.visits
        for child in node.children:
            h = h + weigh(child)
        return h

    def step(tree, other):
        return net.update((encode(tree) + weigh(other)).pow(2).sum())

    calls = []
    for number in range(14):
        tree = counted()
        calls.append((tree, tree if number > 9 else counted()))
    return Program(step, calls, state=net)


@program(speculated=0, compiles=3, close=CLOSE)
def counts_that_the_step_reads():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum()), tree.visits

    return Program(step, single(shared), state=net)


@program(speculated=4, close=CLOSE, compiles=4)
def counts_that_are_something_else_in_time():
    net = Net()

    def encode(node):
        node.visits += 1
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    calls = [(counted(),) for _ in range(16)]
    calls[8][0].visits = 1.5
    calls[9][0].visits = True
    calls[10][0].visits = torch.ones(2)
    calls[11][0].visits = 2**70
    del calls[12][0].visits
    return Program(step, calls, state=net)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(7, 4)
        self.join = torch.nn.Linear(8, 4)
        self.visited, self.cost, self.leaves = 0, 0.0, 0
        self.opt = torch.optim.SGD(self.parameters(), lr=0.05)

    def forward(self, tree, depth=0):
        self.visited += 1
        if tree.left is None:
            self.leaves += 1
            return self.words.weight[tree.word]
        h = torch.cat([self(tree.left, depth + 1), self(tree.right, depth + 1)])
        self.cost = self.cost * 0.99 + depth
        return torch.tanh(self.join(h))

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


@program(speculated=8, close=CLOSE)
def calls_that_the_model_counts():
    model = Counter()

    def step(trees):
        return model.update(sum(model(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(binary, calls=16), state=model)


@program(speculated=5, close=CLOSE, compiles=4)
def calls_counted_in_other_types():
    model = Counter()

    def step(tree):
        return model.update(model(tree).pow(2).sum())

    def put(value):
        return lambda: setattr(model, "visited", value)

    before = {9: put(2.5), 11: put(torch.zeros(2)), 12: put(2**66), 13: put(True), 14: put(7)}
    return Program(step, single(binary, 16), state=model, before=before)


@program(speculated=0, close=CLOSE, compiles=4)
def calls_counted_and_looked_at():
    model = Counter()

    def step(tree):
        before = model.visited
        return model.update(model(tree).pow(2).sum()), model.visited - before

    return Program(step, single(binary, 12), state=model)


@program(speculated=0, close=CLOSE, compiles=4)
def calls_counted_from_nought():
    model = Counter()

    def step(tree):
        model.visited = 0
        return model.update(model(tree).pow(2).sum())

    return Program(step, single(binary, 12), state=model)


@program(speculated=0, close=CLOSE, compiles=4)
def calls_that_count_and_decide():
    net = Net()
    net.visited = 0

    def encode(tree):
        net.visited += 1
        if tree.left is None or net.visited > 40:
            return net.words[tree.word or 0] * net.visited
        return net.join(encode(tree.left), encode(tree.right))

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(binary, 14), state=net)


@program(speculated=0, close=CLOSE, compiles=4)
def calls_counted_by_a_variable():
    net = Net()
    visited = 0

    def encode(tree):
        nonlocal visited
        visited += 1
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(tree):
        return net.update(encode(tree).pow(2).sum())

    return Program(step, single(binary, 14), state=(net, lambda: visited))

"""Recursive functions that return new objects: dataclasses, named tuples, small classes."""

import random
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, WORDS, Net, bushy, forests, single

RUN_ONE_IN = 20  # Each takes seconds: it is served only after many of its loops or calls have been merged.


@dataclass
class State:
    h: torch.Tensor
    c: torch.Tensor


@dataclass(frozen=True)
class Frozen:
    h: torch.Tensor
    c: torch.Tensor


@dataclass(slots=True)
class Slotted:
    h: torch.Tensor
    c: torch.Tensor


class Named(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor


Pair = namedtuple("Pair", "h c")


class Plain:
    def __init__(self, h, c):
        self.h = h
        self.c = c

    @property
    def both(self):
        return torch.cat([self.h, self.c])


class ChildSum(nn.Module):
    """A child-sum TreeLSTM whose states are objects."""

    def __init__(self, make):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.gates = nn.Linear(2 * WIDTH, 3 * WIDTH)
        self.forget = nn.Linear(2 * WIDTH, WIDTH)
        self.make = make

    def encode(self, node):
        states = [self.encode(child) for child in node.children]
        x = self.embed(torch.tensor(node.word))
        below = sum(state.h for state in states) if states else torch.zeros(WIDTH)
        i, o, u = self.gates(torch.cat([x, below])).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        for state in states:
            c = c + torch.sigmoid(self.forget(torch.cat([x, state.h]))) * state.c
        return self.make(torch.sigmoid(o) * torch.tanh(c), c)


def tree_lstm(make):
    model = ChildSum(make)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(tree):
        opt.zero_grad()
        state = model.encode(tree)
        loss = state.h.pow(2).sum()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, single(bushy, 14), state=model)


@program(speculated=8, close=CLOSE)
def states_of_a_dataclass():
    return tree_lstm(State)


@program(speculated=8, close=CLOSE)
def states_of_a_frozen_dataclass():
    return tree_lstm(Frozen)


@program(speculated=8, close=CLOSE)
def states_with_slots():
    return tree_lstm(Slotted)


@program(speculated=8, close=CLOSE)
def states_with_names():
    return tree_lstm(Named)


@program(speculated=8, close=CLOSE)
def states_of_a_named_pair():
    return tree_lstm(Pair)


@program(speculated=8, close=CLOSE)
def states_of_a_class():
    return tree_lstm(Plain)


@program(speculated=8, close=CLOSE)
def states_with_properties_in_mini_batches():
    model = ChildSum(Plain)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(trees):
        opt.zero_grad()
        loss = sum(model.encode(tree).both.pow(2).sum() for tree in trees)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, forests(bushy, 2, 4, 14), state=model)


@program(speculated=8, close=CLOSE)
def an_object_that_leaves_the_step():
    model = ChildSum(State)

    def step(tree):
        with torch.no_grad():
            return model.encode(tree)

    return Program(step, single(bushy, 14), state=model)


@program(speculated=0, compiles=24, close=CLOSE)
def numbers_and_constants_in_objects():
    net = Net()

    @dataclass
    class Summary:
        h: torch.Tensor
        size: int = 1
        depth: int = 1
        leaf: bool = True
        extra: Any = None
        weights: tuple = ()

    def encode(node):
        h, size, depth = net.words[node.word], 1, 1
        for child in node.children:
            below = encode(child)
            h = torch.tanh(h + below.h * (1.0 if below.leaf else 0.5))
            size, depth = size + below.size, max(depth, below.depth + 1)
        return Summary(h, size, depth, not node.children, None, (h.sum(), size * 0.5))

    def step(tree):
        summary = encode(tree)
        loss = net.update(summary.h.pow(2).sum() / summary.size + summary.weights[0] * 0.1)
        return loss, summary.depth, summary.size, summary.weights[1]

    return Program(step, single(bushy, 20), state=net)


@program(speculated=8, close=CLOSE)
def objects_that_callers_change():
    net = Net()

    def encode(node):
        state = Plain(net.words[node.word], None)
        for child in node.children:
            below = encode(child)
            below.h = below.h * 0.5
            below.seen = True
            state.h = torch.tanh(state.h + below.h)
        return state

    def step(tree):
        state = encode(tree)
        state.c = None
        return net.update(state.h.pow(2).sum())

    return Program(step, single(bushy, 14), state=net)


@program(speculated=8, close=CLOSE)
def objects_within_objects():
    net = Net()

    @dataclass
    class Outer:
        state: State
        parts: list = field(default_factory=list)
        named: dict = field(default_factory=dict)

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            below = encode(child)
            h = torch.tanh(h + below.state.h + below.parts[0] + below.named["c"])
        return Outer(State(h, h * 2), [h * 3], {"c": h * 0.1})

    def step(tree):
        return net.update(encode(tree).state.c.pow(2).sum())

    return Program(step, single(bushy, 14), state=net)


@program(speculated=8, close=CLOSE)
def a_childs_object_is_passed_up():
    net = Net()

    def encode(node):
        if len(node.children) == 1:
            return encode(node.children[0])
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child).h)
        return State(h, h)

    def step(tree):
        state = encode(tree)
        return net.update(state.h.pow(2).sum() + state.c.sum())

    return Program(step, single(bushy, 20), state=net)


@program(speculated=0, close=CLOSE, reported="returns something else than")
def objects_that_hold_nodes():
    net = Net()

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            below = encode(child)
            h = torch.tanh(h + below.h * below.c.word)
        return State(h, node)

    def step(tree):
        return net.update(encode(tree).h.pow(2).sum())

    return Program(step, single(bushy), state=net)


@program(speculated=0, close=CLOSE, reported="returns something else than")
def one_object_twice():
    net = Net()

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            first, second = encode(child)
            first.h = first.h * 0.5
            h = torch.tanh(h + second.h)
        state = State(h, h)
        return state, state

    def step(tree):
        return net.update(encode(tree)[0].h.pow(2).sum())

    return Program(step, single(bushy), state=net)


@program(speculated=0, close=CLOSE, reported="returns something else than")
def trees_of_objects():
    """Each node's result holds those of its children, as deep as the tree is."""
    net = Net()

    def encode(node):
        below = [encode(child) for child in node.children]
        h = net.words[node.word]
        for state in below:
            h = torch.tanh(h + state.h)
        return State(h, tuple(below))

    def step(tree):
        return net.update(encode(tree).h.pow(2).sum())

    return Program(step, single(lambda: bushy(10), 16), state=net)


@program(speculated=0, close=CLOSE)
def objects_that_are_stored_and_returned():
    net = Net()

    def encode(node):
        h = net.words[node.word].detach()
        for child in node.children:
            h = torch.tanh(h + encode(child).h)
        node.state = State(h, h)
        return node.state

    def step(tree):
        with torch.no_grad():
            return encode(tree).h.sum()

    return Program(step, single(bushy), state=net)


@program(speculated=0, close=CLOSE)
def what_was_given_is_returned_in_an_object():
    net = Net()

    def encode(node, around):
        h = net.words[node.word] + around
        for child in node.children:
            below = encode(child, h)
            h = torch.tanh(h + below.h * below.c)
        return State(h, around)

    def step(tree):
        return net.update(encode(tree, net.b).h.pow(2).sum())

    return Program(step, single(bushy, 14), state=net)


@program(speculated=0, close=CLOSE)
def objects_counted_by_their_class():
    net = Net()

    class Counted:
        made = 0

        def __init__(self, h):
            Counted.made += 1
            self.h = h

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child).h)
        return Counted(h)

    def step(tree):
        return net.update(encode(tree).h.pow(2).sum())

    return Program(step, single(bushy), state=(net, Counted), between=lambda _: Counted.made)


@program(speculated=0, close=CLOSE, reported="objects hold only what the call that makes them has computed")
def results_of_several_classes():
    net = Net()

    class Leaf:
        def __init__(self, h):
            self.h = h

        def value(self):
            return self.h

    class Inner:
        def __init__(self, h, weight):
            self.h, self.weight = h, weight

        def value(self):
            return self.h * self.weight

    def encode(node):
        if not node.children:
            return Leaf(net.words[node.word])
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child).value())
        return Inner(h, net.b)

    def step(tree):
        return net.update(encode(tree).value().pow(2).sum())

    return Program(step, single(lambda: bushy(random.randint(3, 6)), 24), state=net)


@program(speculated=7, close=CLOSE)
def a_parameter_that_only_an_unused_result_holds():
    """It has no gradient, though calls return it."""
    net = Net()

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child)[0])
        return h, net.b

    def step(tree):
        return net.update(encode(tree)[0].pow(2).sum())

    return Program(step, single(bushy, 14), state=net)


@program(speculated=5, close=CLOSE, compiles=4)
def unused_results_with_gradients_in_mini_batches():
    net = Net()

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child)[0])
        return h, net.b

    def step(trees):
        return net.update(sum(encode(tree)[0].pow(2).sum() for tree in trees))

    return Program(step, forests(bushy, 2, 4, 14), state=net)


@program(speculated=10, close=CLOSE)
def results_used_by_some_callers_only():
    """What inner calls return is used, what the step calls is not."""
    net = Net()

    def encode(node):
        h, scale = net.words[node.word], net.b * 2
        for child in node.children:
            below, other = encode(child)
            h, scale = torch.tanh(h + below), scale + other
        return h, scale

    def step(tree):
        return net.update(encode(tree)[0].pow(2).sum())

    return Program(step, single(bushy, 20), state=net)


@program(speculated=0, close=CLOSE, reported="from before the step, or a view of it, and the step lets it out")
def parameters_returned_through_calls():
    net = Net()

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            h = torch.tanh(h + encode(child)[1] * net.b)
        return net.b[:2], h

    def step(tree):
        with torch.no_grad():
            return encode(tree)

    return Program(step, single(bushy, 14), state=net)


@program(speculated=0, close=CLOSE, reported="objects hold only what the call that makes them has computed")
def objects_that_hold_the_parameter_itself():
    """Who keeps such an object keeps the parameter, and sees it change."""
    net = Net()
    kept = []

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            below = encode(child)
            h = torch.tanh(h + below.h * below.c)
        return State(h, net.b)

    def step(tree):
        with torch.no_grad():
            state = encode(tree)
            net.b.mul_(0.9)
            kept.append(state)
            return state.c is net.b, state.c.sum()

    return Program(step, single(bushy, 14), state=(net, kept))


@program(speculated=0, close=CLOSE, reported="objects hold only what the call that makes them has computed")
def objects_with_parameters_that_callers_change():
    net = Net()

    def encode(node):
        state = Plain(net.b, net.words[node.word])
        for child in node.children:
            below = encode(child)
            below.h = below.h * 0.5
            state.c = torch.tanh(state.c + below.h + below.c)
        return state

    def step(tree):
        state = encode(tree)
        return net.update(state.c.pow(2).sum() + state.h.sum())

    return Program(step, single(bushy, 14), state=net)

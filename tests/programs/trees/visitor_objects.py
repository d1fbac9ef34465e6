"""Trees visited by an object made in the step: what it holds is the same in all calls, or they change it."""

import functools
import operator
import random
from dataclasses import dataclass

import torch
from torch import nn

from tests.programs.harness import Program, program


@dataclass
class Leaf:
    value: float


@dataclass
class Pair:
    left: object
    right: object
    kind: str = "sum"


def grow(depth):
    if depth == 0 or random.random() < 0.2:
        return Leaf(random.uniform(-1, 1))
    return Pair(grow(depth - 1), grow(depth - 1), random.choice(["sum", "product"]))


def trees(count=14):
    generator = random.getstate()
    random.seed(3)
    made = [(grow(4),) for _ in range(count)]
    random.setstate(generator)
    return made


def trained(visiting):
    """``visiting(model)`` gives what makes a tensor of a tree."""
    model = nn.Linear(3, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    visit = visiting(model)

    def step(tree):
        opt.zero_grad()
        out = visit(tree)
        loss = out.pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, trees(), state=model)


class Visitor:
    offset = 0.5

    def __init__(self, model, scale=1.0, name=None):
        self.model, self.scale, self.name = model, scale, name

    def visit(self, node):
        return getattr(self, f"visit_{type(node).__name__.lower()}")(node)

    def visit_leaf(self, node):
        return self.model(torch.full((3,), self.offset)) * node.value * self.scale

    def visit_pair(self, node):
        left, right = self.visit(node.left), self.visit(node.right)
        return left + right if node.kind == "sum" else torch.tanh(left * right)


@program(speculated=8, close=1e-5)
def by_names_of_classes():
    return trained(lambda model: lambda tree: Visitor(model, 2.0, "visitor").visit(tree))


@program(speculated=8, close=1e-5)
def of_a_class_of_its_own():
    class Louder(Visitor):
        offset = 2.0

        def visit_leaf(self, node):
            return 3 * super().visit_leaf(node)

    return trained(lambda model: lambda tree: Louder(model).visit(tree))


@program(speculated=4, close=1e-5)
def two_in_a_step():
    def visiting(model):
        return lambda tree: Visitor(model).visit(tree) - Visitor(model, 0.5).visit(tree)

    return trained(visiting)


@program(speculated=6, close=1e-5)
def changed_between_calls():
    def visiting(model):
        def visit(tree):
            visitor = Visitor(model)
            first = visitor.visit(tree)
            visitor.scale = 0.25
            return first + visitor.visit(tree)

        return visit

    return trained(visiting)


@program(speculated=0, close=1e-5)
def counting():
    class Counting(Visitor):
        def visit(self, node):
            self.count = getattr(self, "count", 0) + 1
            return super().visit(node)

    def visiting(model):
        def visit(tree):
            visitor = Counting(model)
            return visitor.visit(tree) / visitor.count

        return visit

    return trained(visiting)


@program(speculated=0, close=1e-5)
def that_knows_how_deep_it_is():
    class Deep(Visitor):
        depth = 0

        def visit_leaf(self, node):
            return super().visit_leaf(node) * 0.5**self.depth

        def visit_pair(self, node):
            self.depth += 1
            try:
                return super().visit_pair(node)
            finally:
                self.depth -= 1

    return trained(lambda model: lambda tree: Deep(model).visit(tree))


@program(speculated=0, close=1e-5)
def that_keeps_the_last():
    class Keeping(Visitor):
        last = None

        def visit_leaf(self, node):
            self.last = super().visit_leaf(node)
            return self.last

    def visiting(model):
        def visit(tree):
            visitor = Keeping(model)
            return visitor.visit(tree) + visitor.last.detach()

        return visit

    return trained(visiting)


@program(speculated=0, close=1e-5)
def that_holds_a_tensor_of_the_step():
    def visiting(model):
        def visit(tree):
            return Visitor(model, torch.sigmoid(model.bias)).visit(tree)

        return visit

    return trained(visiting)


@program(speculated=0, close=1e-5)
def of_another_scale_each_time():
    calls = []

    def visiting(model):
        def visit(tree):
            calls.append(tree)
            return Visitor(model, 1.0 / len(calls)).visit(tree)

        return visit

    return trained(visiting)


@program(speculated=4, close=1e-5)
def whose_class_is_changed():
    made = trained(lambda model: lambda tree: Visitor(model).visit(tree))

    def other():
        Visitor.offset = -1.5

    made.before[9] = other
    return made


@program(speculated=4, close=1e-5)
def whose_local_class_is_changed():
    class Local(Visitor):
        offset = 0.75

    made = trained(lambda model: lambda tree: Local(model).visit(tree))

    def other():
        Local.offset = 0.25

    made.before[9] = other
    return made


@program(speculated=8, close=1e-5)
def without_any_attributes():
    def visiting(model):
        class Bare:
            __slots__ = ()

            def visit(self, node):
                if isinstance(node, Leaf):
                    return model(torch.ones(3)) * node.value
                return self.visit(node.left) - self.visit(node.right)

        return lambda tree: Bare().visit(tree)

    return trained(visiting)


def by_turns(making):
    """``making(n)`` gives what the n-th call passes to all recursive calls, and what they multiply by is found with."""

    def visiting(model):
        calls = []

        def visit(node, find):
            if isinstance(node, Leaf):
                return model(torch.ones(3)) * node.value
            return find({"sum": 1.0, "product": 0.5}) * (visit(node.left, find) + visit(node.right, find))

        def start(tree):
            calls.append(tree)
            return visit(tree, making(("sum", "product")[len(calls) // 6 % 2]))

        return start

    return trained(visiting)


@program(speculated=0, close=1e-5)
def an_itemgetter():
    return by_turns(operator.itemgetter)


@program(speculated=0, close=1e-5)
def a_partial_function():
    return by_turns(lambda kind: functools.partial(lambda name, table: table[name], kind))


@program(speculated=0, close=1e-5)
def an_object_with_slots():
    class Slotted:
        __slots__ = ("kind",)

        def __init__(self, kind):
            self.kind = kind

        def __call__(self, table):
            return table[self.kind]

    return by_turns(Slotted)

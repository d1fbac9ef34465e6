"""Functions marked with ``stage`` are functions of the graph, recursive ones too (the paper's 5.5)."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import torchjanus
from tests.semantics.staged.checking import agree, grads_agree
from torchjanus import Rep, stage
from torchjanus.tracegraph.graph import walk


def power(n, k):
    if k == 0:
        return 1
    return n * power(n, k - 1)


@stage
def staged_power(x, n):
    if n == 0:
        return 1
    return x * staged_power(x, n - 1)


@stage
def power_of_tensors(x, n):
    if n == 0:
        return torch.ones(2)
    ret = power_of_tensors(x, n - 1)
    return x * ret


def kinds(graph):
    return [node.kind for node in walk(graph.body)]


def test_power_of_a_staged_base():
    staged = agree(lambda x: power(x, 5), (Rep(int),), (2,), (-3,), (0,))
    assert kinds(staged.graph) == ["compute"] * 5


def test_power_of_a_staged_base_and_exponent():
    staged = agree(lambda x, n: staged_power(x, n), (Rep(int), Rep(int)), (2, 10), (3, 0), (-2, 3))
    assert [one.name for one in staged.graph.functions] == ["staged_power"]
    assert kinds(staged.graph) == ["apply"]


def test_without_stage_there_is_no_end():
    with pytest.raises((torchjanus.NotStaged, RecursionError)):
        torchjanus.staged(power)(Rep(int), Rep(int))


def test_gradients_through_recursion():
    x = torch.tensor([2.0, -3.0], requires_grad=True)
    grads_agree(lambda x, n: power_of_tensors(x, n), (x, Rep(int)), *[(x, n) for n in range(5)])


def test_a_graph_function_is_itself_outside():
    assert staged_power(3, 4) == 81


@stage
def is_even(n):
    return True if n == 0 else is_odd(n - 1)


@stage
def is_odd(n):
    return False if n == 0 else is_even(n - 1)


def test_functions_that_call_each_other():
    staged = agree(lambda n: is_even(n), (Rep(int),), *[(n,) for n in range(6)])
    assert len(staged.graph.functions) == 2


# -- trees --------------------------------------------------------------------------------------------------------


class Tree:
    def __init__(self, value, left=None, right=None):
        self.value, self.left, self.right = value, left, right

    @property
    def is_leaf(self):
        return self.left is None


@dataclasses.dataclass
class Node:
    value: torch.Tensor
    children: list


def tree(depth):
    if depth <= 0:
        return Tree(torch.randn(4))
    return Tree(torch.randn(4), tree(depth - 1), tree(depth - 2))


def bush(depth):
    return Node(torch.randn(4), [bush(depth - 1 - k) for k in range(min(depth, 3))])


class TreeRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.combine, self.embed = nn.Linear(8, 4), nn.Linear(4, 4)

    @stage
    def visit(self, node):
        if node.is_leaf:
            return torch.tanh(self.embed(node.value))
        left = self.visit(node.left)
        right = self.visit(node.right)
        return torch.tanh(self.combine(torch.cat([left, right])))

    def forward(self, node):
        return self.visit(node).sum()


class TreeLSTM(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.embed, self.gates = nn.Linear(width, 3 * width), nn.Linear(2 * width, 5 * width)

    @stage
    def visit(self, node):
        if node.left is None:
            i, o, u = self.embed(node.value).chunk(3)
            c = torch.sigmoid(i) * torch.tanh(u)
            return torch.sigmoid(o) * torch.tanh(c), c
        (hl, cl), (hr, cr) = self.visit(node.left), self.visit(node.right)
        i, fl, fr, o, u = self.gates(torch.cat([hl, hr])).chunk(5)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(fl) * cl + torch.sigmoid(fr) * cr
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, node):
        h, c = self.visit(node)
        return h.sum() + c.norm()


class ChildSum(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @stage
    def visit(self, node):
        total = node.value
        for child in node.children:
            total = total + self.visit(child)
        return torch.tanh(self.linear(total))

    def forward(self, node):
        return self.visit(node).sum()


@pytest.mark.parametrize(("model", "grow"), [(TreeRNN, tree), (TreeLSTM, tree), (ChildSum, bush)])
def test_trees_are_staged_once_and_run_on_any_tree(model, grow):
    torch.manual_seed(0)
    module = model()
    staged = torchjanus.staged(module)(Rep(grow(3)))
    assert len(staged.graph.functions) == 1
    for depth in range(6):
        node = grow(depth)
        results = []
        for run in (module, staged):
            module.zero_grad()
            loss = run(node)
            loss.backward()
            results.append([loss.detach(), *(p.grad for p in module.parameters())])
        torch.testing.assert_close(*results, rtol=0, atol=0)


def test_parameters_are_read_when_the_graph_runs():
    module = TreeRNN()
    staged = torchjanus.staged(module)(Rep(tree(3)))
    node = tree(2)
    with torch.no_grad():
        module.embed.weight.mul_(2)
    torch.testing.assert_close(staged(node), module(node), rtol=0, atol=0)


def test_a_step_with_a_graph_function_is_speculated_on():
    torch.manual_seed(0)
    models = TreeLSTM(), TreeLSTM()
    models[1].load_state_dict(models[0].state_dict())

    def step_of(module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

        def step(nodes):
            optimizer.zero_grad()
            loss = sum(module(node) for node in nodes)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    eager, ours = step_of(models[0]), torchjanus.speculate(step_of(models[1]), executor="replay")
    for number in range(12):
        nodes = [tree(2 + number % 3), tree(3)]
        torch.testing.assert_close(ours(nodes), eager(nodes), rtol=1e-5, atol=1e-6)
        ours.wait()
    assert ours.statistics().speculated >= 6

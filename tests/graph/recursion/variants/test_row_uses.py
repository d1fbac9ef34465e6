"""Which rows are taken once, found from the variants of functions that were watched."""

import pytest
import torch

import torchjanus
from tests.graph.recursion.variants.test_variant import Learnt, Node

WIDTH = 3


@pytest.fixture
def words():
    return torch.randn(5, WIDTH)


def cells_of(encode, *sizes):
    learnt = Learnt(encode, *(Node(0, *(Node(1) for _ in range(n))) for n in sizes))
    return learnt.call_group.assembled.recursion


def test_a_state_that_goes_up_is_taken_once(words):
    def encode(node):
        if not node.children:
            return words[node.word] * 1.0
        return torch.tanh(encode(node.children[0]) + words[node.word])

    recursion = Learnt(encode, Node(0), Node(1, Node(2)), Node(1, Node(2, Node(3)))).call_group.assembled.recursion
    assert all(buffer.once for buffer in recursion.buffers)
    assert [cell.alone for cell in recursion.cells if cell.takes] == [(True,)]


def test_a_state_that_is_used_twice_is_taken_alone_each_time(words):
    def encode(node):
        h = words[node.word] * 1.0
        for child in node.children:
            below = encode(child)
            h = torch.tanh(h + below) * torch.sigmoid(h)
        return h + sum(encode(child) for child in node.children) if node.children else h

    recursion = cells_of(encode, 0, 1, 2, 3)
    assert all(all(cell.alone) for cell in recursion.cells)


def test_what_all_iterations_of_a_node_take_is_not_taken_alone(words):
    def encode(node):
        gate = words[node.word] * 2.0
        c = gate * gate
        for child in node.children:
            c = c + torch.sigmoid(gate + encode(child))
        return c

    recursion = cells_of(encode, 0, 1, 2, 3)
    (term,) = [cell for cell in recursion.cells if len(cell.takes) == 2]
    assert sorted(term.alone) == [False, True]
    assert len(recursion.totals) == 1


def test_what_is_passed_down_may_be_taken_by_many(words):
    def encode(node, above):
        above = torch.tanh(above + words[node.word])
        return above + sum(encode(child, above) for child in node.children) if node.children else above

    def whole(node):
        return encode(node, torch.zeros(WIDTH))

    recursion = cells_of(whole, 0, 1, 2, 3)
    taken = {place: alone for cell in recursion.cells for place, alone in zip(cell.takes, cell.alone, strict=True)}
    assert False in taken.values()


def test_what_is_appended_for_the_step_is_taken_by_no_other_call(words):
    def encode(node):
        if not node.children:
            return words[node.word] * 1.0
        return torch.tanh(encode(node.children[0]) + words[node.word])

    def step(nodes):
        return torch.stack([encode(node) for node in nodes]).sum(0).detach()

    speculated = torchjanus.speculate(step, executor="replay")
    for count in (3, 4, 5, 6, 7):
        speculated([Node(0), *(Node(1, Node(2, Node(n % 3))) for n in range(count))])
    recursion = speculated.entries[0].plan.call_groups[0].assembled.recursion
    assert recursion.lists == 1
    assert [cell.alone for cell in recursion.cells if cell.takes] == [(True,)]

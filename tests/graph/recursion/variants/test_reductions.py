"""Chains of additions among the operations of one call: which are found, and which stay what they are."""

import torch

from torchjanus.core.errors import Place
from torchjanus.graph.ir.program import Node, Ref
from torchjanus.graph.recursion.variants.reductions import accumulations, stacks_as_sums, varying
from torchjanus.trace.modes import Modes

HERE, THERE = Place("tree.py", 3), Place("tree.py", 7)


def add(one, other, out, place=HERE, **modes):
    second = 0 if other == "zero" else Ref(other)
    return Node(torch.add, (Ref(one), second), {}, (Ref(out),), Modes(**modes), place)


def chain(length, place=HERE, first=0):
    """``first + 10 + 11 ...``: what is added up is 20, 21 ..."""
    nodes, total = [], first
    for number in range(length):
        nodes.append(add(total, 10 + number, 20 + number, place))
        total = 20 + number
    return nodes


def test_additions_one_to_the_other_are_one_chain():
    (one,) = accumulations(chain(3), [22], 0)
    assert one.start == Ref(0)
    assert one.items == (Ref(10), Ref(11), Ref(12))
    assert one.out == Ref(22)
    assert one.links == (0, 1, 2)
    assert one.grad


def test_a_sum_that_begins_with_zero_has_no_start():
    (one,) = accumulations([add(10, "zero", 20), add(20, 11, 21)], [21], 0)
    assert one.start is None
    assert one.items == (Ref(10), Ref(11))


def test_the_other_operand_may_be_carried():
    nodes = [add(10, 0, 20), add(11, 20, 21)]
    (one,) = accumulations(nodes, [21], 1)
    assert (one.start, one.items) == (Ref(0), (Ref(10), Ref(11)))
    assert [len(found.items) for found in accumulations(nodes, [21], 0)] == [1, 1]


def test_what_is_seen_in_between_ends_a_chain():
    nodes = chain(3)
    seen = Node(torch.tanh, (Ref(20),), {}, (Ref(30),))
    found = accumulations([*nodes, seen], [22], 0)
    assert [len(one.items) for one in found] == [1, 2]
    assert [len(one.items) for one in accumulations(nodes, [21, 22], 0)] == [2, 1]


def test_chains_at_other_places_or_without_gradients_are_others():
    assert len(accumulations([add(0, 10, 20), add(20, 11, 21, THERE)], [21], 0)) == 2
    assert len(accumulations([add(0, 10, 20), add(20, 11, 21, grad=False)], [21], 0)) == 2


def test_only_sums_that_vary_are_merged():
    variants = [accumulations(chain(length), [], 0) for length in (1, 3)]
    assert varying(variants) == {HERE: 0}
    assert varying([variants[1], variants[1]]) == {}
    assert varying([variants[0]]) == {}


def test_a_stack_that_is_only_added_up_is_a_sum():
    stack = Node(torch.stack, ([Ref(10), Ref(11), Ref(12)],), {}, (Ref(20),), place=HERE)
    total = Node(torch.Tensor.sum, (Ref(20), 0), {}, (Ref(21),), place=THERE)
    made = stacks_as_sums([stack, total], [21], 40)
    assert [number for _, number in made] == [1, 1, 1]
    nodes = [node for node, _ in made]
    assert nodes[-1].outs == (Ref(21),)
    (one,) = accumulations(nodes, [21], 0)
    assert (one.start, one.items, one.place) == (None, (Ref(10), Ref(11), Ref(12)), HERE)
    # Integers add up to longer ones.
    first = nodes[0]
    assert first.func(torch.ones(2, dtype=torch.int32), *first.args[1:]).dtype is torch.int64


def test_a_stack_that_somebody_else_sees_stays_one():
    stack = Node(torch.stack, ([Ref(10), Ref(11)],), {"dim": 0}, (Ref(20),))
    total = Node(torch.sum, (Ref(20),), {"dim": 0}, (Ref(21),))
    assert len(stacks_as_sums([stack, total], [20, 21], 40)) == 2
    assert stacks_as_sums([stack, total], [20, 21], 40)[0][0] is stack
    whole = Node(torch.sum, (Ref(20),), {}, (Ref(21),))
    assert [node for node, _ in stacks_as_sums([stack, whole], [21], 40)] == [stack, whole]

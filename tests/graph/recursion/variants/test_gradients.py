"""To which tensors gradients flow from what a recursive call returns, and which results of its own calls carry them."""

import torch

from torchjanus.core.errors import NOWHERE
from torchjanus.graph.ir.program import Node, Ref
from torchjanus.graph.recursion.variants.gradients import Gradients
from torchjanus.trace.modes import Modes

MODES = Modes(grad=True)
WORDS, SCALE = Ref(0), Ref(1)
SHARED = {0: "words", 1: "scale"}


def node(func, args, outs, modes=MODES):
    return Node(func, args, {}, outs, modes, NOWHERE)


def invoke():
    """Stands for a recursive call."""


def made(nodes, results, others=(), quiet=False):
    return Gradients(nodes, SHARED, results, [(0, ref) for ref in others], quiet)


def test_gradients_flow_to_what_results_depend_on():
    nodes = [node(torch.tanh, (WORDS,), (Ref(2),)), node(torch.tanh, (SCALE,), (Ref(3),))]
    assert made(nodes, [Ref(2)]).differentiated == {"words"}
    assert made(nodes, [Ref(2), Ref(3)]).differentiated == {"words", "scale"}


def test_a_shared_tensor_may_itself_be_a_result():
    assert made([], [SCALE]).differentiated == {"scale"}


def test_detached_tensors_and_those_made_without_gradients_cut():
    detached = [node(torch.Tensor.detach, (WORDS,), (Ref(2),)), node(torch.add, (Ref(2), SCALE), (Ref(3),))]
    assert made(detached, [Ref(3)]).differentiated == {"scale"}
    silent = [node(torch.tanh, (WORDS,), (Ref(2),), Modes(grad=False))]
    assert made(silent, [Ref(2)]).differentiated == set()


def test_where_no_gradients_are_recorded_nothing_is_distinguished():
    nodes = [node(invoke, (), (Ref(2), Ref(3))), node(torch.Tensor.detach, (Ref(2),), (Ref(4),))]
    found = made(nodes, [Ref(4), SCALE], quiet=True)
    assert found.dropped == set()
    assert found.partly == {}
    assert found.same_for([0])


def test_calls_of_which_nothing_is_used_are_dropped_by_their_number():
    nodes = [
        node(invoke, (), (Ref(2),)),
        node(invoke, (), (Ref(3),)),
        node(torch.Tensor.detach, (Ref(2),), (Ref(4),)),
        node(torch.add, (Ref(4), Ref(3)), (Ref(5),)),
    ]
    found = made(nodes, [Ref(5)])
    assert found.dropped == {0}
    assert found.partly == {}


def test_calls_of_which_some_results_are_used():
    nodes = [
        node(invoke, (), (Ref(2), Ref(3))),
        node(invoke, (), (Ref(4), Ref(5))),
        node(torch.add, (Ref(3), Ref(4)), (Ref(6),)),
        node(torch.add, (Ref(6), Ref(5)), (Ref(7),)),
    ]
    found = made(nodes, [Ref(7)])
    assert found.partly == {0: {1}}
    assert found.dropped == set()


def test_what_calls_are_given_has_gradients_of_their_results():
    nodes = [node(torch.tanh, (WORDS,), (Ref(2),)), node(invoke, (Ref(2),), (Ref(3),))]
    assert made(nodes, [Ref(3)]).differentiated == {"words"}
    assert made(nodes, [SCALE]).differentiated == {"scale"}


def test_whether_other_results_would_reach_other_tensors():
    nodes = [node(torch.tanh, (WORDS,), (Ref(2),)), node(torch.exp, (WORDS,), (Ref(3),))]
    alike = made(nodes, [Ref(2), Ref(3)])
    assert alike.same_for([0])
    assert alike.same_for([1])
    assert not alike.same_for([])
    parted = made(nodes, [Ref(2), SCALE])
    assert parted.same_for([0, 1])
    assert not parted.same_for([0])
    assert not parted.same_for([1])


def test_whether_other_results_would_use_other_results_of_calls():
    nodes = [node(invoke, (), (Ref(2), Ref(3)))]
    found = made(nodes, [Ref(2), Ref(3)])
    assert found.partly == {}
    assert not found.same_for([0])
    joined = [*nodes, node(torch.add, (Ref(2), Ref(3)), (Ref(4),)), node(torch.mul, (Ref(2), Ref(3)), (Ref(5),))]
    assert made(joined, [Ref(4), Ref(5)]).same_for([0])


def test_what_is_appended_has_gradients_whoever_calls():
    nodes = [node(torch.tanh, (SCALE,), (Ref(2),))]
    found = made(nodes, [WORDS, Ref(2)], others=[Ref(2)])
    assert found.differentiated == {"words", "scale"}
    assert found.same_for([0, ("list", 0)])
    assert not found.same_for([0])
    assert not found.same_for([1, ("list", 0)])


def test_what_is_used_is_followed_to_the_calls():
    nodes = [
        node(invoke, (), (Ref(2), Ref(3))),
        node(torch.add, (Ref(2), WORDS), (Ref(4),)),
        node(torch.add, (Ref(3), SCALE), (Ref(5),)),
    ]
    found = made(nodes, [Ref(4), Ref(5)])
    assert found.flow(frozenset({0})) == ({"words"}, ({0},))
    assert found.flow(frozenset({1})) == ({"scale"}, ({1},))
    assert found.flow(frozenset({0, 1})) == ({"words", "scale"}, ({0, 1},))
    assert found.flow(frozenset()) == (set(), (set(),))
    assert not found.uniform


def test_lists_that_are_used_are_so_for_the_calls_within_too():
    nodes = [node(invoke, (), (Ref(2),)), node(torch.tanh, (SCALE,), (Ref(3),))]
    found = made(nodes, [Ref(2)], others=[Ref(3)])
    assert found.flow(frozenset({("list", 0)})) == ({"scale"}, ({("list", 0)},))
    assert found.flow(frozenset({0})) == (set(), ({0},))
    assert not found.uniform


def test_ways_that_are_the_same_whatever_is_used_are_uniform():
    assert made([node(torch.tanh, (WORDS,), (Ref(2),))], [Ref(2)]).uniform
    assert made([node(torch.tanh, (WORDS,), (Ref(2),))], [Ref(2), WORDS]).uniform

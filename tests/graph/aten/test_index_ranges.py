"""What integer tensors of a graph may hold, against what they do hold; and which lookups cannot fail."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchjanus.graph.aten.index_ranges import elements_of
from torchjanus.graph.aten.may_fail import bounds_of, may_fail


def traced(fn, *args):
    graph = make_fx(fn, tracing_mode="fake")(*args)
    nodes = list(graph.graph.nodes)
    inputs = {node: number for number, node in enumerate(n for n in nodes if n.op == "placeholder")}
    return nodes, inputs


IDS = torch.tensor([[3, 1, 4], [1, 5, 2]])


@pytest.mark.parametrize(
    ("fn", "inputs", "intervals"),
    [
        (lambda x: x.view(-1).unsqueeze(0).expand(2, 6), {0}, set()),
        (lambda x: torch.arange(4), set(), {(0, 3)}),
        (lambda x: torch.arange(2, 5) + 3, set(), {(5, 7)}),
        (lambda x: torch.arange(3) - 1, set(), {(-1, 1)}),
        (lambda x: x.clamp(0, 4), set(), {(0, 4)}),
        (lambda x: x.clamp(5, 2), set(), {(2, 2)}),
        (lambda x: torch.nn.functional.pad(x, (0, 1), value=-100), {0}, {(-100, -100)}),
        (lambda x: torch.where(x > 2, x, 7), {0}, {(7, 7)}),
        (lambda x: x.masked_fill(x > 2, 0), {0}, {(0, 0)}),
        (lambda x: torch.cat([x.view(-1), torch.arange(2)]), {0}, {(0, 1)}),
        (lambda x: x % 3, set(), {(0, 2)}),
        (lambda x: x.float().argmax(1), set(), {(0, 2)}),
        (lambda x: x.float().argmax(), set(), {(0, 5)}),
        (lambda x: x.sort(0).indices, set(), {(0, 1)}),
        (lambda x: x.argsort(descending=True), set(), {(0, 2)}),
        (lambda x: x.max(1).indices, set(), {(0, 2)}),
        (lambda x: x.topk(2, 0).indices, set(), {(0, 1)}),
        (lambda x: torch.zeros(2, dtype=torch.long), set(), {(0, 0)}),
        (lambda x: torch.full((2,), 9), set(), {(9, 9)}),
        (lambda x: (x > 1).long(), set(), {(0, 1)}),
        (lambda x: x.int(), {0}, set()),
        (lambda x: torch.gather(x, 1, x % 3), {0}, set()),
    ],
)
def test_what_the_elements_may_be(fn, inputs, intervals):
    nodes, given = traced(fn, IDS)
    found = elements_of(nodes[-1].args[0], given)
    assert (set(found.inputs), set(found.intervals)) == (inputs, intervals)
    held = {*IDS.flatten().tolist()} if inputs else set()
    for low, high in intervals:
        held |= {*range(low, high + 1)}
    assert {*fn(IDS).flatten().tolist()} <= held


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + 1,
        lambda x: x * 2,
        lambda x: x.to(torch.int8),
        lambda x: x.float().round().long(),
        lambda x: torch.arange(0, 9, 2),
        lambda x: x.clamp(min=0),
        lambda x: x.sum(0),
        lambda x: x + x,
    ],
)
def test_what_is_not_known(fn):
    nodes, given = traced(fn, IDS)
    assert elements_of(nodes[-1].args[0], given) is None


def test_a_node_that_is_come_to_by_many_ways_is_looked_at_once():
    def fn(x):
        for number in range(60):
            x = torch.where(x > number, x.clone(), x)
        return x

    nodes, given = traced(fn, IDS)
    assert elements_of(nodes[-1].args[0], given).inputs == {0}


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda t, x: torch.embedding(t, x), [(1, 10)]),
        (lambda t, x: torch.embedding(t, torch.arange(10)), []),
        (lambda t, x: torch.embedding(t, torch.arange(11)), None),
        (lambda t, x: torch.embedding(t, torch.arange(4) - 1), None),
        (lambda t, x: torch.embedding(t, x.clamp(0, 9)), []),
        (lambda t, x: torch.embedding(t, x.clamp(0, 10)), None),
        (lambda t, x: torch.embedding(t, torch.gather(x, 1, torch.arange(3).expand(2, 3))), [(1, 10)]),
        (lambda t, x: t[x], [(1, 10)]),
        (lambda t, x: t[:, x % 4], []),
        (lambda t, x: t[x, torch.arange(3)], [(1, 10)]),
        (lambda t, x: t[x + 1], None),
    ],
)
def test_which_lookups_cannot_fail(fn, expected):
    nodes, given = traced(fn, torch.randn(10, 4), IDS)
    looked = [bounds_of(node, given) for node in nodes if node.op == "call_function" and may_fail(node)]
    bounds = looked[-1]
    assert (None if bounds is None else [(bound.index, bound.limit) for bound in bounds]) == expected


def test_a_class_that_is_to_be_ignored_need_not_be_one():
    def fn(scores, x):
        target = torch.nn.functional.pad(x, (0, 1), value=-100)
        return torch.nn.functional.cross_entropy(scores, target.view(-1))

    nodes, given = traced(fn, torch.randn(8, 6), IDS)
    (node,) = (node for node in nodes if "nll_loss_forward" in str(node.target))
    assert [(bound.index, bound.limit, bound.exempt) for bound in bounds_of(node, given)] == [(1, 6, -100)]

"""The verifier finds each kind of broken tree, and nothing in a sound one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.loops.outline import outlined
from torchjanus.tracegraph.graph import Block, Const, Fact, Graph, Node, Ref, Value, walk
from torchjanus.tracegraph.record import tree_of
from torchjanus.tracegraph.verify import Broken, verify


def step(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(2):
        if n > 0:
            x = x + n
    x.mul_(2)
    return x


def made() -> Graph:
    with outlined():
        return tree_of(watch_call(step, (), (torch.ones(2), 3), {})[1])


def find(graph: Graph, kind: str, name: str = "") -> Node:
    named = (node for node in walk(graph.body) if node.kind == kind)
    return next(node for node in named if not name or node.get("name") == Const(name))


def later(graph: Graph) -> None:
    """An operation is used before it is made."""
    nodes = graph.body.nodes
    nodes.insert(0, nodes.pop())


def not_yielded(graph: Graph) -> None:
    find(graph, "loop").blocks[0].yields = ()


def yields_what_it_has_not_made(graph: Graph) -> None:
    block = find(graph, "loop").blocks[0]
    block.yields = (*block.yields, Ref(graph.inputs[0].value))


def made_nowhere(graph: Graph) -> None:
    node = find(graph, "op", "Tensor.mul_")
    node.recipes, node.kind = None, "op"
    graph.result = Ref(Value(999, "tensor", 0))


def another_version(graph: Graph) -> None:
    node = find(graph, "op", "Tensor.mul_")
    node.outs = tuple(Ref(out.value, out.version + 1) for out in node.outs)


def skipped_version(graph: Graph) -> None:
    node = find(graph, "op", "Tensor.mul_")
    node.writes = tuple((alias, version + 1) for alias, version in node.writes)


def forgotten_write(graph: Graph) -> None:
    find(graph, "op", "Tensor.mul_").writes = ()


def a_decision_writes(graph: Graph) -> None:
    find(graph, "branch").writes = ((0, 1),)


def an_operation_lets_out(graph: Graph) -> None:
    find(graph, "op").recipes = (Const(1),)


def two_arms(graph: Graph) -> None:
    find(graph, "switch").blocks.append(Block("else"))


def an_unknown_arm(graph: Graph) -> None:
    find(graph, "switch").blocks[0].role = "body"


def a_loop_of_arms(graph: Graph) -> None:
    find(graph, "loop").blocks[1].role = "then"


def no_blocks(graph: Graph) -> None:
    find(graph, "loop").blocks.clear()


def blocks_of_an_operation(graph: Graph) -> None:
    find(graph, "op").blocks.append(Block())


def an_unknown_node(graph: Graph) -> None:
    find(graph, "branch").kind = "jump"


def a_value_of_a_decision(graph: Graph) -> None:
    find(graph, "branch").outs = (Ref(Value(999, "int")),)


def an_operand_twice(graph: Graph) -> None:
    node = find(graph, "branch")
    node.fields = (*node.fields, *node.fields)


def left_by_break(graph: Graph) -> None:
    node = find(graph, "loop")
    node.fields = tuple((name, Const("break") if name == "exit" else one) for name, one in node.fields)


def a_fact_of_a_result(graph: Graph) -> None:
    fact = graph.facts[0]
    fact.fields = (*fact.fields, ("value", Ref(graph.inputs[0].value)))


def a_fact_that_nobody_relies_on(graph: Graph) -> None:
    graph.facts.append(Fact(len(graph.facts), "filled", ()))


def a_fact_that_is_none(graph: Graph) -> None:
    graph.facts[0] = replace(graph.facts[0], kind="op")


def an_alias_class_too_many(graph: Graph) -> None:
    graph.aliases = 1


BREAKING = {
    later: "V1",
    not_yielded: "V1",
    yields_what_it_has_not_made: "V1",
    made_nowhere: "V1",
    another_version: "V4",
    skipped_version: "V4",
    forgotten_write: "V4",
    an_alias_class_too_many: "V4",
    a_decision_writes: "V5",
    an_operation_lets_out: "V5",
    a_loop_of_arms: "V2",
    no_blocks: "V2",
    blocks_of_an_operation: "V2",
    an_unknown_node: "V2",
    a_value_of_a_decision: "V2",
    an_operand_twice: "V2",
    two_arms: "V7",
    an_unknown_arm: "V7",
    a_fact_of_a_result: "V9",
    a_fact_that_nobody_relies_on: "V9",
    a_fact_that_is_none: "V9",
    left_by_break: "V11",
}


def test_a_sound_tree() -> None:
    verify(made())


@pytest.mark.parametrize(("change", "rule"), BREAKING.items(), ids=[change.__name__ for change in BREAKING])
def test_a_broken_tree(change: Callable[[Graph], Any], rule: str) -> None:
    graph = made()
    change(graph)
    with pytest.raises(Broken, match=f"{rule}: "):
        verify(graph)

"""Reduces the values saved for backward, in number and size.

Works on two graphs as the partitioner leaves them: results of the first after its own ones are inputs of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchjanus.graph.aten import clean_up
from torchjanus.graph.aten.symbolic_sizes import key

__all__ = ["pack", "return_values", "returned", "root_views"]

aten = torch.ops.aten


def returned(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Return the values that the graph returns."""
    values: Any = graph.graph.output_node().args[0]
    return list(values)


def is_computed_size(node: torch.fx.Node) -> bool:
    """Whether the node computes a size."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt)


def return_values(graph: torch.fx.GraphModule, values: Sequence[torch.fx.Node]) -> None:
    """Make the graph return these values, and remove what it computes for nothing else."""
    graph.graph.output_node().args = (list(values),)
    graph.graph.eliminate_dead_code(is_impure_node=clean_up.has_effect)
    graph.graph.lint()
    graph.recompile()


def root_views(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, results: int) -> None:
    """Save the base of a view instead of the view, which the backward graph recomputes. It recomputes sizes, too."""
    given: dict[str, torch.fx.Node] = {node.name: node for node in backward.graph.nodes if node.op == "placeholder"}
    body = next(node for node in backward.graph.nodes if node.op != "placeholder")
    made: dict[torch.fx.Node, torch.fx.Node] = {}

    def again(node: torch.fx.Node) -> torch.fx.Node:
        if node.name in given:
            return given[node.name]
        if node not in made:
            if clean_up.is_view(node) or is_computed_size(node):
                with backward.graph.inserting_before(body):
                    made[node] = backward.graph.node_copy(node, again)
            else:
                with backward.graph.inserting_before(next(iter(backward.graph.nodes))):
                    made[node] = backward.graph.placeholder(node.name)
                made[node].meta["val"] = node.meta["val"]
        return made[node]

    values = returned(forward)
    kept: dict[torch.fx.Node, None] = {}
    for node in values[results:]:
        if is_computed_size(node):
            old = given.pop(node.name)
            old.replace_all_uses_with(again(node))
            backward.graph.erase_node(old)
            continue
        root = node
        while clean_up.is_view(root):
            root = root.args[0]  # type: ignore[assignment]
        if root is node:
            kept[node] = None
            continue
        if root.op != "placeholder":
            kept[root] = None
        old = given.pop(node.name)
        old.replace_all_uses_with(again(node))
        backward.graph.erase_node(old)
    return_values(forward, [*values[:results], *kept])
    backward.graph.lint()
    backward.recompile()


def pack(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, results: int) -> None:
    """Stack saved values of one size and dtype into one tensor, except inputs, which need no copy."""
    values = returned(forward)
    given = {node.name: node for node in backward.graph.nodes if node.op == "placeholder"}
    groups: dict[Any, list[torch.fx.Node]] = {}
    for node in values[results:]:
        value = node.meta["val"]
        own = node.op != "placeholder" and node not in values[:results]
        if own and isinstance(value, torch.Tensor) and value.is_contiguous():
            groups.setdefault((value.dtype, tuple(map(key, value.size()))), []).append(node)
    rest = values[results:]
    for nodes in groups.values():
        if len(nodes) < 2:
            continue
        fakes = [node.meta["val"] for node in nodes]
        with forward.graph.inserting_before(forward.graph.output_node()):
            packed = forward.graph.call_function(aten.stack.default, (nodes,))
        with fakes[0].fake_mode:
            packed.meta["val"] = torch.stack(fakes)
        with backward.graph.inserting_before(next(iter(backward.graph.nodes))):
            together = backward.graph.placeholder(packed.name)
        together.meta["val"] = packed.meta["val"]
        body = next(node for node in backward.graph.nodes if node.op != "placeholder")
        for position, node in enumerate(nodes):
            with backward.graph.inserting_before(body):
                one = backward.graph.call_function(aten.select.int, (together, 0, position))
            one.meta["val"] = node.meta["val"]
            given[node.name].replace_all_uses_with(one)
            backward.graph.erase_node(given[node.name])
        rest = [node for node in rest if node not in nodes] + [packed]
    return_values(forward, [*values[:results], *rest])
    backward.graph.lint()
    backward.recompile()

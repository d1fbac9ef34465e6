"""Writes that nobody can see: what is written over as a whole before anybody reads it.

Functional graphs have each write as a value. ``copy``, ``fill`` and ``zero`` give new contents to all of a tensor and
look at nothing of it but how it lies, so they need not wait for what was written before: they are led back to what was
there before that, and what nobody else reads is dead. A ``copy`` of what lies alike is that value itself, but where the
copy leaves the graph. A tensor that is given back what was in it need not be written at all. Knows the graph, not who
runs it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch

from torchjanus.graph.aten.symbolic_sizes import geometry
from torchjanus.ops.aten import operator_of

__all__ = ["drop_dead_writes", "unchanged"]

aten = torch.ops.aten
Node = torch.fx.Node


def drop_dead_writes(graph: torch.fx.Graph, leaving: Collection[Node]) -> None:
    """Lead whole writes back. ``leaving``: the nodes whose memory the graph gives out. What is dead then is left for
    dead code elimination."""
    for node in list(graph.nodes):
        if not operator_of(node.target).overwrites:
            continue
        first = node.args[0]
        if isinstance(first, list | tuple):
            led: Any = [_seen_by_others(one, node) for one in first]
        else:
            led = _seen_by_others(first, node)
        node.args = (led, *node.args[1:])
        if node.target is aten.copy.default and node not in leaving and _alike(node, node.args[1]):
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)


def unchanged(given: Sequence[Node], values: Sequence[Node]) -> list[int]:
    """Which of the ``values`` are copies of the tensors that they are to be written to."""
    pairs = enumerate(zip(given, values, strict=True))
    return [place for place, (one, value) in pairs if _copied(value) is one and _alike(value, one)]


def _copied(value: Node) -> Any:
    """What the value is a copy of."""
    if value.target is aten.copy.default:
        return value.args[1]
    return value.args[0] if value.target is aten.clone.default else value


def _alike(one: Any, other: Any) -> bool:
    """Whether both lie alike, and hold elements of one kind on one device."""
    if not isinstance(one, Node) or not isinstance(other, Node):
        return False
    first, second = one.meta.get("val"), other.meta.get("val")
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    kinds = [(value.dtype, value.device, geometry(value)) for value in (first, second)]
    return kinds[0] == kinds[1]


def _seen_by_others(node: Any, write: Node) -> Any:
    """Back from what is written over, the first value that is needed for something else, too; or an input."""
    while isinstance(node, Node) and node.op == "call_function" and set(node.users) == {write}:
        before = _written_over(node)
        if not _alike(before, node):
            break
        node = before
    return node


def _written_over(node: Node) -> Any:
    """What an operation was applied to, as in-place operations are; of a list the element in the same place."""
    if node.target is operator.getitem:
        maker, place = node.args
        first = maker.args[0] if isinstance(maker, Node) and maker.args else None
        return first[place] if isinstance(first, list | tuple) and isinstance(place, int) else None
    return node.args[0] if node.args else None

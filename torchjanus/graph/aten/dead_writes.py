"""Drop dead writes: those that a later write replaces as a whole before anything reads them.

In a functional graph each write is a value. ``copy``, ``fill`` and ``zero`` replace the whole contents of a tensor and
depend only on its layout. So they are applied to the value before the writes that they replace, which are then dead
unless something else reads them. A ``copy`` from a tensor of equal layout is that tensor, unless the copy leaves the
graph and the tensor's memory is not its own. An input whose old contents are restored need not be written at all. Knows
the graph, not who runs it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch

from torchjanus.graph.aten.symbolic_sizes import are_alike
from torchjanus.ops.aten import operator_of

__all__ = ["drop_dead_writes", "unchanged"]

aten = torch.ops.aten
Node = torch.fx.Node


def drop_dead_writes(graph: torch.fx.Graph, leaving: Collection[Node]) -> None:
    """Apply whole writes to the value before the dead writes that they replace. ``leaving``: the nodes whose memory the
    graph returns. Dead nodes are left to dead code elimination."""
    for node in list(graph.nodes):
        if not operator_of(node.target).overwrites:
            continue
        first = node.args[0]
        if isinstance(first, list | tuple):
            led: Any = [_seen_by_others(one, node) for one in first]
        else:
            led = _seen_by_others(first, node)
        node.args = (led, *node.args[1:])
        if node.target is aten.copy.default and are_alike(node, node.args[1]):
            if node not in leaving or _is_read_only_by(node.args[1], node):
                node.replace_all_uses_with(node.args[1])
                graph.erase_node(node)


def _is_read_only_by(value: Node, reader: Node) -> bool:
    """Whether nothing but ``reader`` reads a value that has memory of its own."""
    maker: Any = value.args[0] if value.target is operator.getitem else value
    return set(value.users) == {reader} and operator_of(maker.target).new_memory


def unchanged(given: Sequence[Node], values: Sequence[Node]) -> list[int]:
    """Return the positions of the ``values`` that are copies of the tensors that they are written to."""
    pairs = enumerate(zip(given, values, strict=True))
    return [place for place, (one, value) in pairs if _copied(value) is one and are_alike(value, one)]


def _copied(value: Node) -> Any:
    """Return the node of which the value is a copy."""
    if value.target is aten.copy.default:
        return value.args[1]
    return value.args[0] if value.target is aten.clone.default else value


def _seen_by_others(node: Any, write: Node) -> Any:
    """Return the last value before the overwritten ones that something else reads, too; or an input."""
    while isinstance(node, Node) and node.op == "call_function" and set(node.users) == {write}:
        before = _written_over(node)
        if not are_alike(before, node):
            break
        node = before
    return node


def _written_over(node: Node) -> Any:
    """Return the first argument of an operation, which its in-place form would overwrite; of a list, the element."""
    if node.target is operator.getitem:
        maker, place = node.args
        first = maker.args[0] if isinstance(maker, Node) and maker.args else None
        return first[place] if isinstance(first, list | tuple) and isinstance(place, int) else None
    return node.args[0] if node.args else None

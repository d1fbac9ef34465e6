"""Rewrite or refuse views through which functionalisation would not write back exactly what was written.

Functionalisation adds the change of an expanded tensor to the base as a difference, and writes an unfolded tensor as
the whole base. So an expansion that repeats nothing becomes another kind of view, and changes through other expansions
are refused. It treats the parts of ``unsafe_split`` as independent tensors, whose new contents have no gaps. But the
layout decides which numbers are vectorised together, and so their last bits (the sigmoid in a GRU cell).
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.graph.aten.clean_up import is_view
from torchjanus.graph.aten.in_place import evaluated
from torchjanus.graph.aten.index_ranges import named
from torchjanus.graph.aten.symbolic_sizes import key
from torchjanus.ops.aten import operator_of

__all__ = ["make_exact"]

aten = torch.ops.aten


def make_exact(graph: torch.fx.Graph) -> None:
    """Rewrite the views of a graph with in-place operations. Raises Refused."""
    inexact: set[torch.fx.Node] = set()
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _UNSAFE and _is_changed(node):
            node.target = _UNSAFE[node.target]
        target = node.target
        if operator_of(target).writes:
            _check(node, target, inexact)
        elif target is aten.expand.default and _repeats_nothing(node):
            _unsqueeze_instead(graph, node)
        elif target in (aten.expand.default, aten.unfold.default):
            inexact.add(node)
        elif node.op == "call_function" and is_view(node) and node.args[0] in inexact:
            inexact.add(node)


# Their parts are no views to autograd, but they are in memory; these graphs have no autograd.
_UNSAFE = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}


def _is_changed(split: torch.fx.Node) -> bool:
    """Whether a part of the split is changed in place."""
    for part in split.users:
        for user in part.users:
            if operator_of(user.target).writes and user.args and user.args[0] is part:
                return True
    return False


def _repeats_nothing(node: torch.fx.Node) -> bool:
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    before, after = source.meta["val"].shape, node.meta["val"].shape
    return (*map(key, after),) == (1,) * (len(after) - len(before)) + (*map(key, before),)


def _unsqueeze_instead(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    more = node.meta["val"].dim() - source.meta["val"].dim()
    steps: list[tuple[Any, ...]] = [(aten.unsqueeze.default, 0)] * more or [(aten.alias.default,)]
    made = source
    with graph.inserting_before(node):
        for target, *args in steps:
            before, made = made, graph.call_function(target, (made, *args))
            made.meta = {**node.meta, "val": evaluated(target, (before, *args), {})}
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _check(node: torch.fx.Node, target: Any, inexact: set[torch.fx.Node]) -> None:
    given = named(node)
    for name in operator_of(target).writes:
        value = given.get(name)
        if any(part in inexact for part in (value if isinstance(value, list | tuple) else (value,))):
            raise refused(
                "write-expanded",
                f"{target} changes a tensor through an expanded or unfolded view of it",
                "a graph would not write exactly that back.",
                "Change the tensor itself.",
            )

"""Assert conditions on sizes that a graph computes, within that graph.

Tracing sometimes decides by such a size (a mean over no elements, a loss over one). The graph is valid only if the size
agrees at run time. Knows nothing of why the conditions are needed.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchjanus.core.errors import Refused, refused
from torchjanus.graph.aten.flags import flags_of
from torchjanus.graph.aten.symbolic_sizes import key
from torchjanus.trace.values import Apply, Expr, leaves

__all__ = ["assert_sizes"]

aten = torch.ops.aten
Node = torch.fx.Node

_RELATIONS: dict[Any, Any] = {
    operator.ge: aten.ge.Scalar, operator.gt: aten.gt.Scalar, operator.le: aten.le.Scalar,
    operator.lt: aten.lt.Scalar, operator.eq: aten.eq.Scalar, operator.ne: aten.ne.Scalar,
}  # fmt: skip
_ARITHMETIC = frozenset({operator.add, operator.mul})
_DIVIDING = frozenset({operator.floordiv, operator.mod})


def assert_sizes(
    module: torch.fx.GraphModule, conditions: Sequence[Any], sizes: Mapping[Any, Any], place: int, asserted: bool
) -> None:
    """Let the graph return a flag for each condition, after those that it returns at position ``place`` if it has
    ``asserted`` anything. ``sizes``: torch's symbolic integers, by the tokens of expressions. Raises Refused."""
    graph = module.graph
    if any(node.target in _DIVIDING and isinstance(node.args[1], Node) for node in graph.nodes):
        # Compiled code would end the process if it is 0.
        raise _refused("a graph divides by the number of elements that it selects")
    output: Any = graph.output_node()
    values: list[Any] = list(output.args[0])
    before = flags_of(values[place]) if asserted else []
    if before is None:
        raise _refused("a graph's flags are not what they were")
    device = before[0].meta["val"].device if asserted else torch.device("cpu")
    made = [_flag(graph, condition, sizes, device) for condition in conditions]
    with graph.inserting_before(output):
        stacked = graph.call_function(aten.stack.default, ([*before, *made],))
    stacked.meta["val"] = made[0].meta["val"].new_empty(len(before) + len(made))
    output.args = ([*values[:place], stacked, *values[place + asserted :]],)
    if asserted and not values[place].users:
        graph.erase_node(values[place])
    graph.lint()
    module.recompile()


def _refused(what: str) -> Refused:
    what = f"a number of selected elements is asked for: {what}"
    return refused("selection-on-host", what, "The host makes the selection.")


def _flag(graph: torch.fx.Graph, condition: Any, sizes: Mapping[Any, Any], device: torch.device) -> Node:
    """Return a flag of whether the condition holds, computed as soon as its sizes are known."""
    relation = _RELATIONS.get(condition.func)
    if relation is None or isinstance(condition.args[1], Expr):
        raise _refused(f"a graph cannot ask whether {condition}")
    nodes = list(graph.nodes)
    known = {leaf.token: _known(nodes, sizes.get(leaf.token)) for leaf in leaves(condition)}
    if None in known.values():
        raise _refused(f"a graph does not know whether {condition}")
    places = [nodes.index(pair[0]) for pair in known.values() if pair is not None]
    first = next(place for place, node in enumerate(nodes) if node.op != "placeholder")
    with graph.inserting_before(nodes[max(first, max(places) + 1)]):
        one = _number(graph, condition.args[0], known)
        whole = graph.call_function(aten.full.default, ([], one), {"dtype": torch.int64, "device": device})
        flag = graph.call_function(relation, (whole, condition.args[1]))
    with nodes[places[0]].meta["val"].fake_mode:
        whole.meta["val"], flag.meta["val"] = (
            torch.empty((), dtype=kind, device=device) for kind in (torch.int64, torch.bool)
        )
    return flag


def _known(nodes: Sequence[Node], size: Any) -> tuple[Node, int] | None:
    """Return the first node, and its dimension, that has this size; None where there is none."""
    for node in nodes if size is not None else ():
        value = node.meta.get("val")
        numbers: Sequence[Any] = value.size() if isinstance(value, torch.Tensor) else ()
        for dim, one in enumerate(numbers):
            if isinstance(one, torch.SymInt) and key(one) == key(size):
                return node, dim
    return None


def _number(graph: torch.fx.Graph, expr: Any, known: Mapping[Any, Any]) -> Any:
    if not isinstance(expr, Expr):
        return expr
    if isinstance(expr, Apply):
        if expr.func not in _ARITHMETIC:
            raise _refused(f"a graph cannot compute {expr}")
        args = tuple(_number(graph, part, known) for part in expr.args)
        made = graph.call_function(expr.func, args)
        made.meta["val"] = expr.func(*(part.meta["val"] if isinstance(part, Node) else part for part in args))
        return made
    node, dim = known[expr.token]
    made = graph.call_function(aten.sym_size.int, (node, dim))
    made.meta["val"] = node.meta["val"].size(dim)
    return made

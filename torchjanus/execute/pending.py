"""Finds assertions that do not hold in a run that raised before it evaluated them.

An operation may raise only because an assumption does not hold: a mask has more elements than before. Then the graph is
not at fault. The flags that can still be computed from the run's variables are evaluated. In the generated code,
variables have the names of the graph's nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from torchjanus.execute.running.base import Violated
from torchjanus.execute.running.gate import Ambience, below_autograd
from torchjanus.graph.aten.clean_up import is_random
from torchjanus.graph.aten.flags import flags_of
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["violated_before"]

_REPLAYED = "<torchjanus replay"  # prefix of the generated code's file name
_SIZES = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default)
_Node = torch.fx.Node


def violated_before(lowered: Lowered, error: BaseException) -> Violated | None:
    """Return the assertions that are known not to hold; None if there are none."""
    if lowered.flags is None:
        return None
    step = error.__traceback__
    while step is not None and not step.tb_frame.f_code.co_filename.startswith(_REPLAYED):
        step = step.tb_next
    results: Any = lowered.graph.graph.output_node().args[0]
    flags = flags_of(results[lowered.flags])
    if step is None or flags is None:
        return None
    try:
        with Ambience(lowered), below_autograd():
            known = _known(lowered.graph, flags, step.tb_frame.f_locals)
            failed = [number for number, flag in enumerate(flags) if flag in known and not bool(known[flag])]
    except Exception:
        return None  # the original error is more informative
    return Violated(tuple(failed)) if failed else None


def _known(graph: torch.fx.GraphModule, wanted: Iterable[_Node], variables: Mapping[str, Any]) -> dict[_Node, Any]:
    """Return the values of the wanted nodes and of those that they depend on, without those that cannot be computed."""
    needed, waiting = set[_Node](), [*wanted]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            if node.name not in variables:
                waiting += node.all_input_nodes
    known: dict[_Node, Any] = {}
    for node in graph.graph.nodes:
        if node not in needed:
            continue
        if node.name in variables:
            known[node] = variables[node.name]
        elif node.op == "get_attr":
            known[node] = getattr(graph, node.target)
        elif _can_be_made_again(node) and all(used in known for used in node.all_input_nodes):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            try:
                known[node] = node.target(*args, **kwargs)
            except Exception:  # it may be the one that raised
                continue
    return known


def _can_be_made_again(node: _Node) -> bool:
    if node.op != "call_function" or is_random(node):
        return False
    target = node.target
    plain = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return plain or target is operator.getitem or target in _SIZES

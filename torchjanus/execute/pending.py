"""Which assertions do not hold in a run that has raised before it came to them.

An operation may raise only because something was assumed that does not hold: a mask has more elements than before.
Then it is not the graph that is at fault. The flags that can still be computed of what the run has left are looked at.
Knows the generated code's variables, which are called as the graph's nodes are.
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

_REPLAYED = "<torchjanus replay"  # how the name of the generated code begins
_SIZES = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default)
_Node = torch.fx.Node


def violated_before(lowered: Lowered, error: BaseException) -> Violated | None:
    """The assertions that do not hold, as far as that can be told; None where none is known not to."""
    if lowered.flags is None:
        return None
    step = error.__traceback__
    while step is not None and not step.tb_frame.f_code.co_filename.startswith(_REPLAYED):
        step = step.tb_next
    results: Any = next(iter(reversed(lowered.graph.graph.nodes))).args[0]
    flags = flags_of(results[lowered.flags])
    if step is None or flags is None:
        return None
    try:
        with Ambience(lowered), below_autograd():
            known = _known(lowered.graph, flags, step.tb_frame.f_locals)
            failed = [number for number, flag in enumerate(flags) if flag in known and not bool(known[flag])]
    except Exception:
        return None  # the error that there was tells more
    return Violated(tuple(failed)) if failed else None


def _known(graph: torch.fx.GraphModule, wanted: Iterable[_Node], variables: Mapping[str, Any]) -> dict[_Node, Any]:
    """The values of the wanted nodes, and of those that they are computed of; without what cannot be computed."""
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
            except Exception:  # it may be the one that has raised
                continue
    return known


def _can_be_made_again(node: _Node) -> bool:
    if node.op != "call_function" or is_random(node):
        return False
    target = node.target
    plain = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return plain or target is operator.getitem or target in _SIZES

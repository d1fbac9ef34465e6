"""Check graphs: that they hold no forbidden operator, and the invariants on which every executor relies.

A failure of ``verify`` is a defect of torchjanus, never of the user's program.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.core.errors import InternalFault, refused
from torchjanus.graph.aten.symbolic_sizes import key
from torchjanus.graph.ir.lowered import Fresh, FromInput, Lowered, Source, ViewOf
from torchjanus.ops.namespaces import REMEDY, foreign_overrides, is_operator, operator_name, unsupported_operator

__all__ = ["replaced_operators", "require_fit", "verify"]

# Keys for which torch itself registers Python functions in place of kernels: batching.
_BATCHING = ("/FuncTorchBatched", "/FuncTorchBatchedDecomposition", "/FuncTorchVmapMode", "/MPS")


def verify(lowered: Lowered) -> None:
    """Raise InternalFault unless the graph is functional and its flat output matches ``lowered``."""
    nodes = list(lowered.graph.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    expected = len(lowered.program.inputs) + len(lowered.program.slots)
    _require(len(placeholders) == expected, "the placeholders are not inputs and slots")
    for entry, node in zip(lowered.program.inputs, placeholders, strict=False):
        value = node.meta["val"]
        same = _alike(value, entry.example, entry.symbols) and value.dtype == entry.example.dtype
        _require(same, f"placeholder {node} is not like its input")
    for node in nodes:
        _require(node.op in ("placeholder", "get_attr", "call_function", "output"), f"{node.op} node {node}")
        if isinstance(node.target, torch._ops.OpOverload):
            _require(not node.target._schema.is_mutable, f"{node.target} changes its arguments")
    values: Any = nodes[-1].args[0]
    _require(len(values) == lowered.updates + len(lowered.mutated), "the flat output has another length")
    for value in values:
        _require(isinstance(value, torch.fx.Node), f"returns {value}")
        _require(isinstance(value.meta.get("val"), torch.Tensor), f"returns {value}, which is no tensor")
    for index, value in zip(lowered.mutated, values[lowered.updates :], strict=True):
        example, made = lowered.program.inputs[index].example, value.meta["val"]
        same = _alike(made, example, lowered.program.inputs[index].symbols) and made.dtype == example.dtype
        _require(same, f"the update of input {index} has another shape or dtype")
    for one in lowered.replaced:
        _require(not isinstance(_base_of(one.result.source), FromInput), f"input {one.index} moves to another")
    for result in (*lowered.outputs, *(leaf.result for leaf in lowered.leaves), *(r.result for r in lowered.replaced)):
        _require(_in_range(result.source, lowered), f"{result.source} does not exist")


def _alike(made: torch.Tensor, example: torch.Tensor, symbols: tuple[int | None, ...]) -> bool:
    """Whether the sizes are equal, except those that change."""
    pairs = zip(made.size(), example.size(), symbols or (None,) * example.dim(), strict=True)
    return made.dim() == example.dim() and all(s is not None or key(one) == other for one, other, s in pairs)


def _in_range(source: Source, lowered: Lowered) -> bool:
    if isinstance(source, ViewOf):
        return _in_range(source.base, lowered)
    return not isinstance(source, Fresh) or source.index < lowered.fresh


def _base_of(source: Source) -> Source:
    return source.base if isinstance(source, ViewOf) else source


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise InternalFault(f"lowering made a graph that does not hold together: {what}")


def replaced_operators() -> set[str]:
    """Return torch's own operators for which others have registered a function through ``torch.library``."""
    keys = (key for key in foreign_overrides() if not key.endswith(_BATCHING))
    return {"aten::" + key.split("/")[1].partition(".")[0] for key in keys}


def require_fit(graph: torch.fx.Graph) -> None:
    """Raise Refused if a graph contains an operator that no graph may contain, in any context."""
    replaced = replaced_operators()
    for node in graph.nodes:
        if node.op != "call_function" or not is_operator(node.target):
            continue
        unsuited, name = unsupported_operator(node.target), operator_name(node.target)
        if unsuited is None and name in replaced:
            unsuited = "a function of Python's has been registered in its place.", REMEDY
        if unsuited is not None:
            why, remedy = unsuited
            raise refused("custom-operator", f"calls the operator {name}", why, remedy)

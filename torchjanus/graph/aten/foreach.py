"""Split ``aten._foreach_*`` calls on lists into single operations, as eager does on the CPU.

Knows nothing of executors: the caller says how a single call becomes a node.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

__all__ = ["Splits", "split_lists"]

aten = torch.ops.aten

_UNARY = ("sqrt", "neg", "abs", "reciprocal", "exp", "sign", "rsqrt")


class Converter(Protocol):
    """Makes nodes of single calls, whose arguments are the old graph's."""

    def convert_call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> torch.fx.Node: ...


@dataclass(frozen=True, slots=True)
class Splits:
    """The nodes that are replaced: the list calls, and the ``getitem`` nodes of their results."""

    nodes: frozenset[torch.fx.Node]
    made: dict[torch.fx.Node, list[torch.fx.Node]]

    def emit(self, node: torch.fx.Node, converter: Converter) -> Any:
        """Return the nodes that replace a list call, or the one node that replaces a ``getitem``."""
        if node.target is operator.getitem:
            source, position = node.args
            return self.made[source][position]  # type: ignore[index]
        self.made[node] = [
            converter.convert_call(target, args, kwargs, node.meta["val"][position])
            for position, (target, args, kwargs) in enumerate(_singles(node))
        ]
        return self.made[node]


def split_lists(nodes: Sequence[torch.fx.Node]) -> Splits:
    """Find the list calls that can be split."""
    found: set[torch.fx.Node] = set()
    for node in nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            if node.target._schema.name.startswith("aten::_foreach_") and _singles(node):
                found.add(node)
        elif node.target is operator.getitem and node.args[0] in found:
            found.add(node)
    return Splits(frozenset(found), {})


def _singles(node: torch.fx.Node) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Return the single calls of a list call; empty if unknown."""
    target: Any = node.target
    name = target._schema.name.removeprefix("aten::_foreach_")
    named = dict(zip((argument.name for argument in target._schema.arguments), node.args, strict=False)) | node.kwargs
    own: Sequence[Any] = named["self"]
    count = range(len(own))

    def each(key: str) -> list[Any]:
        value = named[key]
        return list(value) if isinstance(value, list | tuple) else [value for _ in count]

    if name in _UNARY:
        return [(getattr(aten, name).default, (own[i],), {}) for i in count]
    if name in ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "clamp_min", "clamp_max"):
        key = next((k for k in ("other", "scalars", "scalar", "tensor", "exponent") if k in named), None)
        if key is None:
            return []
        others = each(key)
        extra = {"alpha": named["alpha"]} if "alpha" in named else {}
        return [(_binary(name, others[i]), (own[i], others[i]), extra) for i in count]
    if name in ("addcmul", "addcdiv"):
        if "scalars" in named and isinstance(named["scalars"], torch.fx.Node):
            return []
        values = each("scalars" if "scalars" in named else "value") if {"scalars", "value"} & set(named) else None
        first, second = each("tensor1"), each("tensor2")
        single = getattr(aten, name).default
        return [
            (single, (own[i], first[i], second[i]), {"value": values[i]} if values is not None else {}) for i in count
        ]
    if name == "lerp":
        ends = each("tensors1")
        key = next(k for k in ("weight", "weights", "scalars") if k in named)
        weights = each(key)
        return [(aten.lerp.Tensor if _is_tensor(weights[i]) else aten.lerp.Scalar, (own[i], ends[i], weights[i]), {})
                for i in count]  # fmt: skip
    if name == "norm":
        order = named.get("ord", 2)
        return [(aten.linalg_vector_norm.default, (own[i], order), {}) for i in count]
    return []


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _binary(name: str, other: Any) -> Any:
    if name == "pow":
        return aten.pow.Tensor_Tensor if _is_tensor(other) else aten.pow.Tensor_Scalar
    if name in ("maximum", "clamp_min"):
        return aten.maximum.default if _is_tensor(other) else aten.clamp_min.default
    if name in ("minimum", "clamp_max"):
        return aten.minimum.default if _is_tensor(other) else aten.clamp_max.default
    return getattr(aten, name).Tensor

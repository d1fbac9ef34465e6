"""Rewrites calls of ATen so that changing numbers are tensors, and so that Inductor compiles them correctly.

The numbers are elements of one float64 and one int64 tensor. Results are bitwise as eager's. Knows nothing of whole
graphs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.errors import refused
from torchjanus.graph.aten.symbolic_sizes import geometry
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["NumberRewrites"]

aten = torch.ops.aten

_TEXT: dict[Any, str] = {
    operator.neg: "(-{})", operator.sub: "({} - {})", operator.truediv: "({} / {})", operator.mul: "({} * {})",
    float: "float({})",
}  # fmt: skip
_BINARY = frozenset(
    {"add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "fmod", "remainder", "maximum", "minimum"}
)


class NumberRewrites:
    """The graph in the making. ``rewrite_alpha``, ``compiled``: see ``prepare``."""

    def __init__(self, lowered: Lowered, rewrite_alpha: bool, compiled: bool) -> None:
        self.lowered = lowered
        self.rewrite_alpha = rewrite_alpha
        self.compiled = compiled
        devices = {entry.example.device for entry in lowered.program.inputs}
        self.device = devices.pop() if len(devices) == 1 else torch.device("cpu")
        self.graph = torch.fx.Graph()
        self.values: dict[torch.fx.Node, Any] = {}
        self.numbers: dict[torch.fx.Node, str] = {}  # scalar nodes of the old graph, as Python text
        self.packed: dict[type, dict[str, torch.fx.Node]] = {float: {}, int: {}}
        self.sources: dict[type, torch.fx.Node] = {}
        self.fakes = next(
            (node.meta["val"].fake_mode for node in lowered.graph.graph.nodes if _is_fake(node.meta.get("val"))), None
        )

    @property
    def place(self) -> torch.device:
        """The device of the packed numbers among the graph's fake values."""
        return self.device if self.fakes is not None else torch.device("meta")

    def mode(self) -> Any:
        """Return the context in which fake values are made."""
        return self.fakes if self.fakes is not None else torch.device("meta")

    def count(self, nodes: list[torch.fx.Node], kind: type) -> int:
        """Record the text of every scalar node; return how many different ones of this kind tensor operations use."""
        wanted: dict[str, None] = {}
        for node in nodes:
            if node.op == "call_function" and node.target in _TEXT and set(node.all_input_nodes) <= self.numbers.keys():
                parts = [self.numbers[part] if isinstance(part, torch.fx.Node) else repr(part) for part in node.args]
                self.numbers[node] = _TEXT[node.target].format(*parts)
            elif node.op == "call_function":
                for part in node.all_input_nodes:
                    if part in self.numbers and type(part.meta["val"]) is kind:
                        wanted[self.numbers[part]] = None
        return len(wanted)

    def emit(self, target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Return a new node with its fake value. Raises Refused for a symbolic size among the arguments."""

        def value_of(part: Any) -> Any:
            return part.meta["val"]

        if any(isinstance(part, torch.SymInt) for part in pytree.tree_leaves((args, kwargs))):
            what = f"Inductor cannot take a changing number in {target} beside changing sizes"
            raise refused("inductor-compile", what, "There is no rewrite for it yet.", "The replay executor is used.")
        made = self.graph.call_function(target, args, kwargs)
        fake_args, fake_kwargs = torch.fx.node.map_arg((args, kwargs), value_of)
        with torch.no_grad(), self.mode():
            made.meta["val"] = target(*fake_args, **fake_kwargs)
        return made

    def number(self, node: torch.fx.Node, like: torch.Tensor | None) -> torch.fx.Node:
        """Return a scalar node as a 0-d tensor of the type in which eager's kernel computes with it beside ``like``."""
        kind = type(node.meta["val"])
        text = self.numbers[node]
        if text not in self.packed[kind]:
            position = len(self.packed[kind])
            self.packed[kind][text] = self.emit(aten.select.int, self.sources[kind], 0, position)
        value = self.packed[kind][text]
        if like is None or kind is int:
            return value
        if like.dtype.is_floating_point:
            wanted = like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
        else:
            wanted = self.lowered.default_dtype
        return value if wanted == torch.float64 else self.emit(aten._to_copy.default, value, dtype=wanted)

    def of_dtype(self, made: torch.fx.Node, value: Any) -> torch.fx.Node:
        """Return a node with the dtype and the sizes of ``value``."""
        if made.meta["val"].dtype != value.dtype:
            made = self.emit(aten._to_copy.default, made, dtype=value.dtype)
        if geometry(made.meta["val"])[0] != geometry(value)[0]:
            made = self.emit(aten.expand.default, made, list(value.size()))
        return made

    def rewritten(self, target: Any, named: dict[str, Any], value: Any) -> torch.fx.Node | None:
        """Return the replacement of an operation that takes a number or that Inductor compiles wrongly, else None."""
        name = target._schema.name.removeprefix("aten::")
        first = next((part for part in named.values() if isinstance(part, torch.fx.Node) and part in self.values), None)
        like = None if first is None else first.meta["val"]
        scalars = {key: part for key, part in named.items() if isinstance(part, torch.fx.Node) and part in self.numbers}

        def tensor(key: str) -> Any:
            """Return the argument as a value of the new graph; a number as a tensor."""
            part = named[key]
            if key in scalars:
                return self.number(part, like)
            return self.values[part] if isinstance(part, torch.fx.Node) else part

        if name in ("add", "sub") and named.get("alpha", 1) != 1 and isinstance(like, torch.Tensor):
            return self._scaled_sum(name, named, tensor, "alpha" in scalars)
        if self.compiled and name == "log_sigmoid_backward" and _is_sized(value):
            return self._log_sigmoid_backward(tensor("grad_output"), tensor("self"))
        if not scalars:
            return None
        if name in _BINARY and {"self", "other"} >= set(scalars):
            return self.emit(getattr(aten, name).Tensor, tensor("self"), tensor("other"))
        if name == "rsub":
            return self.emit(aten.sub.Tensor, tensor("other"), tensor("self"))
        if name in ("addcmul", "addcdiv") and set(scalars) == {"value"}:
            # Bitwise as eager: the kernels compute self + value * t1 * t2 from the left.
            scaled = self.emit(aten.mul.Tensor, tensor("tensor1"), tensor("value"))
            return self.emit(getattr(aten, name).default, tensor("self"), scaled, tensor("tensor2"))
        if name == "lerp":
            return self.emit(aten.lerp.Tensor, tensor("self"), tensor("end"), tensor("weight"))
        if name == "pow":
            return self.emit(aten.pow.Tensor_Tensor, tensor("self"), tensor("exponent"))
        if name in ("full", "full_like", "new_full", "fill", "scalar_tensor"):
            (key,) = scalars
            one = self.emit(aten._to_copy.default, self.number(scalars[key], None), dtype=value.dtype)
            spread = self.emit(aten.expand.default, one, list(value.size()))
            return self.emit(aten.clone.default, spread, memory_format=torch.contiguous_format)
        if name == "leaky_relu":
            scaled = self.emit(aten.mul.Tensor, tensor("self"), tensor("negative_slope"))
            return self.emit(aten.where.self, self.emit(aten.gt.Scalar, tensor("self"), 0), tensor("self"), scaled)
        if name == "leaky_relu_backward":
            scaled = self.emit(aten.mul.Tensor, tensor("grad_output"), tensor("negative_slope"))
            positive = self.emit(aten.gt.Scalar, tensor("self"), 0)
            return self.emit(aten.where.self, positive, tensor("grad_output"), scaled)
        if name == "where" and set(scalars) <= {"self", "other"}:
            sides = [self._as_tensor(tensor(side), value) for side in ("self", "other")]
            return self.emit(aten.where.self, tensor("condition"), *sides)
        if name == "masked_fill":
            return self.emit(aten.masked_fill.Tensor, tensor("self"), tensor("mask"), tensor("value"))
        if name in ("clamp", "clamp_min", "clamp_max"):
            made = tensor("self")
            if named.get("min") is not None:
                made = self.emit(aten.maximum.default, made, self._as_tensor(tensor("min"), like))
            if named.get("max") is not None:
                made = self.emit(aten.minimum.default, made, self._as_tensor(tensor("max"), like))
            return made  # type: ignore[no-any-return]
        return None

    def _log_sigmoid_backward(self, tangent: torch.fx.Node, given: torch.fx.Node) -> torch.fx.Node:
        """Avoid Inductor's own form, which needs to know at compile time whether there are any elements."""
        z = self.emit(aten.exp.default, self.emit(aten.neg.default, self.emit(aten.abs.default, given)))
        share = self.emit(aten.div.Tensor, z, self.emit(aten.add.Scalar, z, 1))
        rest = self.emit(aten.rsub.Scalar, share, 1)
        slope = self.emit(aten.where.self, self.emit(aten.lt.Scalar, given, 0), rest, share)
        return self.emit(aten.mul.Tensor, tangent, slope)

    def _as_tensor(self, value: Any, like: torch.Tensor | None) -> torch.fx.Node:
        if isinstance(value, torch.fx.Node):
            return value
        dtype = torch.float64 if like is None else like.dtype
        return self.emit(aten.full.default, [], value, dtype=dtype, device=torch.device("cpu"))

    def _scaled_sum(
        self, name: str, named: dict[str, Any], tensor: Callable[[str], Any], varies: bool
    ) -> torch.fx.Node | None:
        """Rewrite ``x + alpha * y``: Inductor's add-of-mm patterns lose alpha; addcmul is the FMA of eager's add."""
        other = named["other"]
        if not isinstance(other, torch.fx.Node) or other in self.numbers or named["self"] in self.numbers:
            return None
        if not varies and not self.rewrite_alpha:
            return None
        alpha = tensor("alpha")
        floating = other.meta["val"].dtype.is_floating_point
        if not isinstance(alpha, torch.fx.Node):
            dtype = torch.float64 if floating else torch.int64
            alpha = self.emit(aten.full.default, [], alpha, dtype=dtype, device=other.meta["val"].device)
        if name == "sub":
            alpha = self.emit(aten.neg.default, alpha)
        own = named["self"].meta["val"]
        if floating and own.dtype == other.meta["val"].dtype:
            if own.dtype != torch.float64:
                alpha = self.emit(aten._to_copy.default, alpha, dtype=torch.float32)
            return self.emit(aten.addcmul.default, tensor("self"), tensor("other"), alpha)
        return self.emit(aten.add.Tensor, tensor("self"), self.emit(aten.mul.Tensor, tensor("other"), alpha))


def _is_sized(value: Any) -> bool:
    """Whether it is a tensor in single or double precision with symbolic sizes."""
    precise = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.float64)
    return precise and any(isinstance(size, torch.SymInt) for size in value.size())


def _is_fake(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, "fake_mode")

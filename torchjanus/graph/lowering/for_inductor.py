"""Prepare a lowered graph for Inductor: numbers become data, known defects are avoided, updates are gated.

The result takes the inputs, then (if there are any) one float64 tensor and one int64 tensor with the slots' numbers. It
returns the fresh values and the flags, and updates the mutated inputs itself where all flags hold. Rewrites keep
results bitwise as eager (see the comments). Knows nothing of how Inductor is called.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.errors import refused
from torchjanus.graph.aten.foreach import split_lists
from torchjanus.graph.aten.symbolic_sizes import geometry
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.operators.loop_op import compiled_key, is_loop
from torchjanus.graph.recursion.cells.invoke_op import is_invoke
from torchjanus.ops.aten import SAMPLERS, operator_of

__all__ = ["Prepared", "prepare"]

aten = torch.ops.aten

_TEXT: dict[Any, str] = {
    operator.neg: "(-{})", operator.sub: "({} - {})", operator.truediv: "({} / {})", operator.mul: "({} * {})",
    float: "float({})",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prepared:
    """The graph, and the sources of two tuples over ``slots`` that give its packed numbers.

    ``copies``: values that equal an earlier one, as (position, position of the other). The graph leaves them out, since
    Inductor would return one tensor for both: the caller clones.
    """

    graph: torch.fx.GraphModule
    floats: tuple[str, ...]
    ints: tuple[str, ...]
    copies: tuple[tuple[int, int], ...]
    constants: tuple[torch.Tensor, ...]  # passed after the packed numbers
    device: torch.device  # where the packed numbers are expected

    def bare(self) -> Prepared:
        """Return what the caller of the graph needs, without the graph."""
        return replace(self, graph=torch.fx.GraphModule({}, torch.fx.Graph()))


def prepare(lowered: Lowered, *, rewrite_alpha: bool = True, gated: bool = True, compiled: bool = True) -> Prepared:
    """Return a copy of ``lowered.graph`` for Inductor. Raises Refused where a number is used where it cannot be data.
    ``rewrite_alpha=False`` leaves ``add(x, y, alpha=...)`` as it is, which Inductor of PyTorch 2.13 compiles wrongly
    where one operand is a matrix product: for tests only. ``compiled=False``: for calls of ATen, which need no rewrites
    on account of Inductor."""
    return _Preparation(lowered, rewrite_alpha and compiled, compiled).build(gated)


class _Preparation:
    """Copies the graph node by node and rewrites it on the way."""

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

    def build(self, gated: bool) -> Prepared:
        lowered = self.lowered
        nodes = list(lowered.graph.graph.nodes)
        split = split_lists(nodes if self.compiled else [node for node in nodes if _takes_number(node)])
        inputs = [node for node in nodes if node.op == "placeholder"]
        tensors = inputs[: len(lowered.program.inputs)]
        for node in tensors:
            self.values[node] = self.graph.placeholder(node.name)
            self.values[node].meta["val"] = node.meta["val"]
        for number, node in enumerate(inputs[len(tensors) :]):
            self.numbers[node] = f"slots[{number}]"
        for kind, dtype, name in ((float, torch.float64, "floats"), (int, torch.int64, "ints")):
            count = self._count(nodes, kind)
            if count:
                self.sources[kind] = self.graph.placeholder(name)
                with self._mode():
                    self.sources[kind].meta["val"] = torch.empty(count, dtype=dtype, device=self._place)
        constants = []
        for node in (node for node in nodes if node.op == "get_attr"):
            constant: torch.Tensor = getattr(lowered.graph, str(node.target))
            self.values[node] = self.graph.placeholder(str(node.target))
            with self._mode():
                self.values[node].meta["val"] = torch.empty_strided(
                    constant.size(), constant.stride(), dtype=constant.dtype, device=constant.device
                )
            constants.append(constant)
        for node in nodes:
            if node.op == "call_function" and node in self.numbers:
                continue
            if node.op == "call_function":
                self.values[node] = split.emit(node, self) if node in split.nodes else self.convert(node)
        copies = _copies(nodes[-1].args[0][: lowered.fresh])
        self._finish([self.values[value] for value in nodes[-1].args[0]], tensors, gated, {copy for copy, _ in copies})
        module = torch.fx.GraphModule(lowered.graph, self.graph)
        module.graph.eliminate_dead_code(is_impure_node=_is_commit_or_random)
        module.graph.lint()
        module.recompile()
        numbers = tuple(self.packed[float]), tuple(self.packed[int])
        return Prepared(module, *numbers, copies, tuple(constants), self.device)

    @property
    def _place(self) -> torch.device:
        """The device of the packed numbers among the graph's fake values."""
        return self.device if self.fakes is not None else torch.device("meta")

    def _mode(self) -> Any:
        return self.fakes if self.fakes is not None else torch.device("meta")

    def _count(self, nodes: list[torch.fx.Node], kind: type) -> int:
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
        with torch.no_grad(), self._mode():
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

    def convert(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the node of the new graph for an operation of the old one."""
        return self.convert_call(node.target, node.args, node.kwargs, node.meta.get("val"))

    def convert_call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> torch.fx.Node:
        """Do the same for a call that need not be a node; its arguments are nodes of the old graph."""
        if isinstance(target, torch._ops.OpOverload):
            schema = [argument.name for argument in target._schema.arguments]
            named = {**dict(zip(schema, args, strict=False)), **kwargs}
            rewritten = self._rewritten(target, named, value)
            if rewritten is not None:
                return self._of_dtype(rewritten, value)
            if self.compiled and target in SAMPLERS and not args[0].meta["val"].is_contiguous():
                return self._drawn(target, args, kwargs)
        if any(part in self.numbers for part in _nodes((args, kwargs))):
            what = f"Inductor cannot take a changing number in {target}"
            raise refused("inductor-compile", what, "There is no rewrite for it yet.", "The replay executor is used.")
        if self.compiled and target in (aten.view.default, aten._unsafe_view.default):
            target = aten.reshape.default  # Inductor's own decompositions may leave other strides than eager's kernels
        new_args, new_kwargs = torch.fx.node.map_arg((args, kwargs), lambda part: self.values[part])
        if self.compiled and ((is_loop(target) and not new_args[-1]) or is_invoke(target)):
            new_args = (compiled_key(new_args[0]), *new_args[1:])
        made = self.graph.call_function(target, new_args, new_kwargs)
        made.meta["val"] = value
        return made

    def _drawn(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node:
        """Draw in memory order, as eager does, where that differs from the order of the indices (channels last)."""
        like = args[0].meta["val"]
        order = sorted(range(like.dim()), key=lambda axis: -like.stride(axis))
        if not like.permute(order).is_contiguous():
            what = f"{target} fills a tensor with gaps, of strides {like.stride()}"
            raise refused("inductor-random-strides", what, "Inductor would draw in another order.", "Replay is used.")
        sizes = [like.size(axis) for axis in order]
        blank = self.emit(aten.empty.memory_format, sizes, dtype=like.dtype, device=like.device)
        rest = torch.fx.node.map_arg((args[1:], kwargs), lambda part: self.values[part])
        filled = self.emit(target, blank, *rest[0], **rest[1])
        return self.emit(aten.permute.default, filled, [order.index(axis) for axis in range(like.dim())])

    def _of_dtype(self, made: torch.fx.Node, value: Any) -> torch.fx.Node:
        if made.meta["val"].dtype != value.dtype:
            made = self.emit(aten._to_copy.default, made, dtype=value.dtype)
        if geometry(made.meta["val"])[0] != geometry(value)[0]:
            made = self.emit(aten.expand.default, made, list(value.size()))
        return made

    def _rewritten(self, target: Any, named: dict[str, Any], value: Any) -> torch.fx.Node | None:
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

    def _of_its_own(self, value: torch.fx.Node) -> torch.fx.Node:
        """Force a copy of an input: Inductor would replace it by the input and read that after its update."""
        if value.meta["val"].dtype.is_complex:
            what = "an input is copied that changes"
            raise refused("inductor-copied-input", what, "Inductor would take its new contents.", "Replay is used.")
        return self.emit(aten.maximum.default, value, value)

    def _finish(
        self, values: list[torch.fx.Node], tensors: list[torch.fx.Node], gated: bool, left_out: set[int]
    ) -> None:
        """Gate the updates, emit them, and return the other values."""
        lowered = self.lowered
        holds = None
        if lowered.flags is not None and gated:
            holds = self.emit(aten.all.default, values[lowered.flags])
        updates = []
        written = {self.values[tensors[index]] for index in lowered.mutated}
        values = [self._of_its_own(v) if _copied(v) in written else v for v in values]
        for index, value in zip(lowered.mutated, values[lowered.updates :], strict=True):
            old = self.values[tensors[index]]
            updates.append((old, value if holds is None else self.emit(aten.where.self, holds, value, old)))
        for old, new in updates:
            self.graph.call_function(aten.copy_.default, (old, new))
        self.graph.output(tuple(v for number, v in enumerate(values[: lowered.updates]) if number not in left_out))


def _copied(value: torch.fx.Node) -> torch.fx.Node | None:
    """Return the input of which a value is only a copy or a view, or None."""
    while value.op == "call_function" and value.all_input_nodes:
        if value.target is aten.copy.default:
            value = value.args[1]  # type: ignore[assignment]
        elif (known := operator_of(value.target)).same_elements or known.name == "_to_copy":
            value = value.args[0]  # type: ignore[assignment]
        else:
            return None
    return value if value.op == "placeholder" else None


def _copies(values: Sequence[torch.fx.Node]) -> tuple[tuple[int, int], ...]:
    first: dict[torch.fx.Node, int] = {}
    found = []
    for number, value in enumerate(values):
        root = value
        while root.target is aten.clone.default and _same_geometry(root, root.args[0]):
            root = root.args[0]  # type: ignore[assignment]
        if root in first:
            found.append((number, first[root]))
        else:
            first[root] = number
    return tuple(found)


def _same_geometry(one: Any, other: Any) -> bool:
    mine, theirs = one.meta["val"], other.meta["val"]
    return geometry(mine) == geometry(theirs)


_BINARY = frozenset(
    {"add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "fmod", "remainder", "maximum", "minimum"}
)


def _takes_number(node: torch.fx.Node) -> bool:
    """Whether an operation on lists takes a number of the host, or the node picks one result of such an operation."""
    source = node.args[0] if node.target is operator.getitem else node
    given = source.all_input_nodes if isinstance(source, torch.fx.Node) else ()
    return any(isinstance(used.meta.get("val"), int | float) for used in given)


def _is_sized(value: Any) -> bool:
    """Whether it is a tensor in single or double precision with symbolic sizes."""
    precise = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.float64)
    return precise and any(isinstance(size, torch.SymInt) for size in value.size())


def _nodes(value: Any) -> list[torch.fx.Node]:
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg(value, found.append)
    return found


def _is_fake(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, "fake_mode")


def _is_commit_or_random(node: torch.fx.Node) -> bool:
    known = operator_of(node.target)
    return node.op in ("placeholder", "output") or bool(known.writes) or known.draws

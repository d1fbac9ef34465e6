"""Prepare a lowered graph for Inductor: numbers become data, known defects are avoided, updates are gated.

The result takes the inputs, then (if there are any) one float64 tensor and one int64 tensor with the slots' numbers. It
returns the fresh values and the flags, and updates the mutated inputs itself where all flags hold. Rewrites keep
results bitwise as eager (see the comments). Knows nothing of how Inductor is called.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.graph.aten.foreach import split_lists
from torchjanus.graph.aten.symbolic_sizes import geometry
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.number_rewrites import NumberRewrites
from torchjanus.graph.operators.loop_op import compiled_key, is_loop
from torchjanus.graph.recursion.cells.invoke_op import is_invoke
from torchjanus.ops.aten import SAMPLERS, operator_of

__all__ = ["Prepared", "prepare"]

aten = torch.ops.aten


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


def prepare(lowered: Lowered, *, rewrite_alpha: bool = True, compiled: bool = True) -> Prepared:
    """Return a copy of ``lowered.graph`` for Inductor. Raises Refused where a number is used where it cannot be data.
    ``rewrite_alpha=False`` leaves ``add(x, y, alpha=...)`` as it is, which Inductor of PyTorch 2.13 compiles wrongly
    where one operand is a matrix product: for tests only. ``compiled=False``: for calls of ATen, which need no rewrites
    for Inductor."""
    return _Preparation(lowered, rewrite_alpha and compiled, compiled).build()


class _Preparation(NumberRewrites):
    """Copies the graph node by node and rewrites it on the way."""

    def build(self) -> Prepared:
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
            count = self.count(nodes, kind)
            if count:
                self.sources[kind] = self.graph.placeholder(name)
                with self.mode():
                    self.sources[kind].meta["val"] = torch.empty(count, dtype=dtype, device=self.place)
        constants = []
        for node in (node for node in nodes if node.op == "get_attr"):
            constant: torch.Tensor = getattr(lowered.graph, str(node.target))
            self.values[node] = self.graph.placeholder(str(node.target))
            with self.mode():
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
        self._finish([self.values[value] for value in nodes[-1].args[0]], tensors, {copy for copy, _ in copies})
        module = torch.fx.GraphModule(lowered.graph, self.graph)
        module.graph.eliminate_dead_code(is_impure_node=_is_commit_or_random)
        module.graph.lint()
        module.recompile()
        numbers = tuple(self.packed[float]), tuple(self.packed[int])
        return Prepared(module, *numbers, copies, tuple(constants), self.device)

    def convert(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the node of the new graph for an operation of the old one."""
        return self.convert_call(node.target, node.args, node.kwargs, node.meta.get("val"))

    def convert_call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> torch.fx.Node:
        """Do the same for a call that need not be a node; its arguments are nodes of the old graph."""
        if isinstance(target, torch._ops.OpOverload):
            schema = [argument.name for argument in target._schema.arguments]
            named = {**dict(zip(schema, args, strict=False)), **kwargs}
            rewritten = self.rewritten(target, named, value)
            if rewritten is not None:
                return self.of_dtype(rewritten, value)
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

    def _of_its_own(self, value: torch.fx.Node) -> torch.fx.Node:
        """Force a copy of an input: Inductor would replace it by the input and read that after its update."""
        if value.meta["val"].dtype.is_complex:
            what = "an input is copied that changes"
            raise refused("inductor-copied-input", what, "Inductor would take its new contents.", "Replay is used.")
        return self.emit(aten.maximum.default, value, value)

    def _finish(self, values: list[torch.fx.Node], tensors: list[torch.fx.Node], left_out: set[int]) -> None:
        """Gate the updates, emit them, and return the other values."""
        lowered = self.lowered
        holds = None
        if lowered.flags is not None:
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


def _takes_number(node: torch.fx.Node) -> bool:
    """Whether an operation on lists takes a number of the host, or the node picks one result of such an operation."""
    source = node.args[0] if node.target is operator.getitem else node
    given = source.all_input_nodes if isinstance(source, torch.fx.Node) else ()
    return any(isinstance(used.meta.get("val"), int | float) for used in given)


def _nodes(value: Any) -> list[torch.fx.Node]:
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg(value, found.append)
    return found


def _is_commit_or_random(node: torch.fx.Node) -> bool:
    known = operator_of(node.target)
    return node.op in ("placeholder", "output") or bool(known.writes) or known.draws

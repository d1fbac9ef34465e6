"""Prints a functional ATen graph as a Python function that calls each operator directly and frees values early.

It is bitwise eager: eager's kernels in eager's order. It uses no fx interpreter, and does not know what the graph is
for.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from torchjanus.core.errors import InternalFault
from torchjanus.execute.running.bindings import called
from torchjanus.graph.aten.buffer_reuse import Overwriting, of_intermediates
from torchjanus.ops.aten import SAMPLERS

__all__ = ["ReplaySource", "last_uses"]


class ReplaySource:
    """Writes the source of ``compute``, and collects its constants."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        tensors: int,
        overwriting: Overwriting | None = None,
        flags: int | None = None,
        lent: int | None = None,
    ) -> None:
        """``tensors``: how many of the graph's placeholders are tensors; the others are slots. If ``overwriting`` has a
        ``last``, ``compute`` takes a function ``begin`` besides, and calls it with the flags (None if there are none)
        before the first input is overwritten; unless that returns true, nothing is overwritten and None is returned.
        ``lent``: the tensors after so many are removed from the list of inputs, and freed after their last use."""
        self.graph = graph
        self.tensors = tensors
        self.constants: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._overwriting = of_intermediates(list(graph.graph.nodes)) if overwriting is None else overwriting
        self._flags_at = flags
        self._lent = tensors if lent is None else lent

    def generate(self) -> str:
        nodes = list(self.graph.graph.nodes)
        count = self.tensors
        placeholders = [node.name for node in nodes if node.op == "placeholder"]
        begin = self._overwriting.last
        lines = [f"def compute(inputs, slots{'' if begin is None else ', begin'}):"]
        for names, source in ((placeholders[:count], "inputs"), (placeholders[count:], "slots")):
            if names:
                lines.append(f"    {', '.join(names)}, = {source}")
        if self._lent < count:
            lines.append(f"    del inputs[{self._lent}:]")
        flags = None if self._flags_at is None else nodes[-1].args[0][self._flags_at]
        dying, written = last_uses(nodes, placeholders[self._lent : count]), set()
        for node in nodes:
            if node.op == "output":
                lines.append(f"    return {self.text(node.args[0])}")
            elif node.op != "placeholder" and node not in written:
                lines += self.lines(node)
                written.add(node)
            if gone := dying.get(node):
                lines.append(f"    del {', '.join(gone)}")
            if node is begin:
                if flags is not None and flags not in written and flags.op != "placeholder":
                    lines += self.lines(flags)
                    written.add(flags)
                looked_up = (self._called(_aten.index.Tensor, one, {}) for one in self._overwriting.asked)
                lines += [f"    {call}" for call in looked_up]
                lines.append(f"    if not begin({self.text(flags)}): return None")
        return "\n".join(lines) + "\n"

    def lines(self, node: Any) -> list[str]:
        """Return the lines that compute a node."""
        form = self._overwriting.forms.get(node)
        if form is None:
            return [f"    {node.name} = {self.expression(node)}"]
        if not isinstance(node.args[0], list | tuple):
            return [f"    {node.name} = {self._called(form, node.args, node.kwargs)}"]
        first = f"    {node.name} = {self.text(node.args[0])}"
        return [first, f"    {self._called(form, (node, *node.args[1:]), node.kwargs)}"]

    def compute(self, source: str) -> Any:
        """Return the function with this source."""
        exec(compile(source, "<torchjanus replay>", "exec"), self.constants)
        return self.constants["compute"]

    def expression(self, node: Any) -> str:
        if node.op == "get_attr":
            return self._constant(getattr(self.graph, node.target))
        if node.target is operator.getitem:
            return f"{self.text(node.args[0])}[{self.text(node.args[1])}]"
        if node.target is torch.ops.aten.sym_size.int:
            return f"{self.text(node.args[0])}.size({node.args[1]})"
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise InternalFault(f"replay does not know {node.target}")
        if node.target in _VIEWS:
            return self._called(_VIEWS[node.target], node.args, node.kwargs)
        if node.target in _TRAINING:
            given = ", ".join(self.text(argument) for argument in (*node.args, *node.kwargs.values()))
            return f"{self._constant(_with_gradients)}({self._constant(node.target)}, {given})"
        if node.target is _aten.slice.Tensor and (bounds := _bounds(node)) is not None:
            return self._called(torch._C._VariableFunctions.narrow, (node.args[0], *bounds), {})
        if node.target in SAMPLERS:
            target = SAMPLERS[node.target]
            source = node.args[0]
            if source.target not in _BLANKS or len(source.users) > 1:
                blank = f"{self._constant(_blank)}({self.text(source)})"
                return self._called(target._op, node.args[1:], node.kwargs, blank)
            return self._called(target, node.args, node.kwargs)
        return self._called(node.target, node.args, node.kwargs)

    def _called(self, target: Any, args: Any, kwargs: Any, *first: str) -> str:
        if isinstance(target, torch._ops.OpOverload):
            target, more = called(target, args, kwargs)
            kwargs = {**kwargs, **more}
        arguments = [*first, *map(self.text, args), *(f"{key}={self.text(value)}" for key, value in kwargs.items())]
        return f"{self._constant(target)}({', '.join(arguments)})"

    def _constant(self, value: Any) -> str:
        name = self._names.setdefault(id(value), f"c{len(self._names)}")
        self.constants[name] = value  # keeps it alive, so that its id stays unique
        return name

    def text(self, value: Any) -> str:
        if hasattr(value, "all_input_nodes"):
            return str(value.name)
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.text, value))}]"
        plain = value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))
        return repr(value) if plain else self._constant(value)


def last_uses(
    nodes: Sequence[Any], owned: Collection[str] = (), others: Mapping[Any, Sequence[Any]] | None = None
) -> dict[Any, list[str]]:
    """Return, by node, the names of the values that are not used after it, if the nodes run in this order. ``owned``:
    the names of placeholders that are freed, too; ``others``: what nodes use besides their arguments."""
    others = others or {}
    last = {used: node for node in nodes for used in (*node.all_input_nodes, *others.get(node, ()))}
    dying: dict[Any, list[str]] = {}
    for used, node in last.items():
        if (used.op == "call_function" or used.name in owned) and node.op != "output":
            dying.setdefault(node, []).append(used.name)
    return dying


def _bounds(node: Any) -> tuple[int, int, int] | None:
    """Return dimension, first index and length of a slice of whole rows, where they are the same in every call: torch's
    function for these takes less time. Else None."""
    given: list[Any] = [*node.args, *(0, None, None, 1)[len(node.args) - 1 :]]
    tensor, dim, start, _end, step = given
    source, made = tensor.meta.get("val"), node.meta.get("val")
    if step != 1 or type(dim) is not int or source is None or made is None or node.kwargs:
        return None
    size, length, first = source.shape[dim], made.shape[dim], 0 if start is None else start
    if not all(type(one) is int for one in (size, length, first)):
        return None
    return dim, min(max(first + size if first < 0 else first, 0), size), length


def _blank(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)


def _with_gradients(target: Any, *arguments: Any) -> Any:
    with torch.enable_grad():
        return target(*(part.detach() if isinstance(part, torch.Tensor) else part for part in arguments))


_aten = torch.ops.aten

_BLANKS = (_aten.empty_like.default, _aten.empty_strided.default)


def _viewing(view: Any) -> Any:
    """Return the operation with a copy as its fallback: a kernel may choose other strides than tracing did, of which no
    such view exists. The difference cannot be observed, since nothing that others read is changed."""

    def viewing(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
        try:
            return view(tensor, size)  # type: ignore[no-any-return]
        except RuntimeError:
            return tensor.reshape(size)

    return viewing


_VIEWS = {
    _aten.view.default: _viewing(torch._C.TensorBase.view),
    _aten._unsafe_view.default: _viewing(_aten._unsafe_view.default._op),
}

# Kernels that return no workspace for the backward unless gradients are on.
_TRAINING = frozenset({_aten.mkldnn_rnn_layer.default})

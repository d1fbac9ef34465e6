"""Batches one cell over calls: forward and backward in one functional ATen graph.

torch.vmap maps the function of one call over the calls; it is traced for two numbers of calls. A size that differs
between the two graphs is a multiple of the number of calls, so the merged graph holds for any number. (Symbolic sizes
do not work: the C++ code of vmap asks for their values.) Independent of how graphs are split and of schedules.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from torchjanus.core.errors import JanusError, Refused, refused
from torchjanus.graph.aten import clean_up
from torchjanus.graph.aten.functional import functionalize
from torchjanus.graph.aten.in_place import traced
from torchjanus.graph.aten.symbolic_sizes import Symbolic, quiet
from torchjanus.graph.ir.program import Input
from torchjanus.graph.recursion.variants.plan import Cell, Recursion
from torchjanus.graph.tracing.ambient import Ambient

__all__ = ["COUNT", "Batched", "Like", "batched", "outputs_of", "refused_cell"]

aten = torch.ops.aten

# Primes that no model has as a size: a multiple of one in one graph and of the other in the other is no coincidence.
_COUNTS = (1009, 1013)
COUNT = "count"  # the placeholder of the number of calls


@dataclass(frozen=True, slots=True)
class Like:
    """The metadata of a value of the batched cell. ``size``: for one call; ``axis``: the dimension along which the
    calls lie, each with ``size[axis]`` entries; None for a value that is the same for all calls."""

    dtype: torch.dtype
    size: tuple[int, ...]
    axis: int | None


@dataclass(frozen=True, slots=True)
class Batched:
    """A batched cell. ``graph`` takes ``shared_0...``, ``given_0...``, ``tangent_0...`` (numbered as outputs), and
    perhaps ``count``. It returns the outputs, then the gradients of the input rows numbered in ``taken`` and of the
    shared tensors numbered in ``wanted``. ``likes``: the metadata of each tensor node, by name."""

    graph: torch.fx.GraphModule
    outputs: int
    tangents: tuple[int, ...]
    taken: tuple[int, ...]
    wanted: tuple[int, ...]
    likes: dict[str, Like]


def batched(cell: Cell, recursion: Recursion, shared: Sequence[bool], active: Sequence[bool]) -> Batched:
    """Return the cell for any number of calls. ``shared``, ``active``: those that require gradients. Raises Refused."""
    with _disable_current_modes(), Ambient(), torch.enable_grad(), quiet():
        one, other = (_Trace(cell, recursion, shared, active, count) for count in _COUNTS)
        for trace in (one, other):
            trace.run()
        return _Union(one, other).made()


def outputs_of(
    cell: Cell, recursion: Recursion, shared: Sequence[bool], active: Sequence[bool]
) -> Sequence[torch.Tensor]:
    """Return the cell's outputs as fake tensors. Raises Refused."""
    with _disable_current_modes(), Ambient(), torch.enable_grad(), quiet():
        return _Trace(cell, recursion, shared, active, _COUNTS[0]).outputs()


def refused_cell(cell: Cell, what: str, why: str = "") -> Refused:
    """Return the refusal of a cell that cannot run for many calls at once."""
    return refused("recursion-body", f"{cell.name} {what}", why or "It cannot be run for many calls at once.")


class _BatchableFunctions(torch.overrides.TorchFunctionMode):
    """Replaces functions that vmap maps badly by others with the same results and errors. Of ``index_select`` vmap
    would copy the table for each call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.index_select, torch.Tensor.index_select):
            named: dict[str, Any] = {**dict(zip(("input", "dim", "index"), args, strict=False)), **kwargs}
            table, dim, index = (named.get(name, args[0]) for name in ("input", "dim", "index"))
            if dim == 0 and table.dim() == 2 and index.dim() == 1 and "out" not in kwargs:
                return torch.nn.functional.embedding(index, table)
        return func(*args, **kwargs)


class _Trace:
    """The cell traced for one number of calls."""

    def __init__(
        self, cell: Cell, recursion: Recursion, shared: Sequence[bool], active: Sequence[bool], count: int
    ) -> None:
        self.cell, self.recursion, self.count = cell, recursion, count
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.asked_shared = [index for index, asked in enumerate(shared) if asked]
        self.asked_taken = [place for place, index in enumerate(cell.takes) if active[index]]
        self.tangents: list[int] = []
        self.taken: list[int] = []
        self.wanted: list[int] = []
        self.graph: torch.fx.GraphModule

    def _fakes(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        cell, buffers = self.cell, self.recursion.buffers
        rows = [(buffers[index].shape, buffers[index].dtype) for index in cell.takes]
        rows += [(column.shape, column.dtype) for column in cell.columns]
        with self.mode:
            shared = [torch.empty_strided(one.size(), one.stride(), dtype=one.dtype) for one in self.recursion.shared]
            given = [torch.empty((self.count, *shape), dtype=dtype) for shape, dtype in rows or [((), torch.int64)]]
        for index in self.asked_shared:
            shared[index].requires_grad_()
        for place in self.asked_taken:
            given[place].requires_grad_()
        return shared, given

    def _all(self, shared: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs of the cell's function mapped over all calls."""
        cell = self.cell
        rows = len(cell.takes) + len(cell.columns)

        def one(shared: list[torch.Tensor], given: list[torch.Tensor]) -> list[torch.Tensor]:
            return list(cell.function(shared, given[:rows]))

        with _BatchableFunctions():
            made: list[torch.Tensor] = torch.vmap(one, in_dims=(None, 0))(list(shared), list(given))
        return made

    def outputs(self) -> list[torch.Tensor]:
        """Return the cell's outputs as fake tensors. Raises Refused."""
        shared, given = self._fakes()
        try:
            with self.mode:
                outs = self._all(shared, given)
        except JanusError:
            raise
        except Exception as error:  # whatever vmap or fake tensors do not support
            raise self._failed(error) from error
        kinds = [(tuple(out.size()), out.dtype) for out in outs]
        expected = [self.recursion.buffers[index] for index in self.cell.gives]
        if kinds != [((self.count, *one.shape), one.dtype) for one in expected]:
            spoken = ", ".join(f"{dtype}{list(size[1:])}" for size, dtype in kinds)
            raise refused_cell(self.cell, f"gives {spoken or 'nothing'}: not what other calls give there")
        return outs

    def run(self) -> None:
        """Trace forward and backward. Raises Refused."""
        outs = self.outputs()
        self.tangents = [place for place, out in enumerate(outs) if out.requires_grad]
        shared, given = self._fakes()
        with self.mode:
            likes = [torch.empty(outs[place].size(), dtype=outs[place].dtype) for place in self.tangents]
        first, second = len(shared), len(shared) + len(given)

        def joint(*values: torch.Tensor) -> list[torch.Tensor]:
            made = self._all(values[:first], values[first:second])
            asked = [(self.wanted, i, values[i]) for i in self.asked_shared]
            asked += [(self.taken, i, values[first + i]) for i in self.asked_taken]
            gradients: Sequence[torch.Tensor | None] = ()
            if self.tangents:
                ends = [made[place] for place in self.tangents]
                inputs = [value for _, _, value in asked]
                gradients = torch.autograd.grad(ends, inputs, values[second:], allow_unused=True)
            self.taken, self.wanted = [], []
            rows, sums = list[torch.Tensor](), list[torch.Tensor]()
            for (_, index, value), gradient in zip(asked, gradients, strict=False):
                if gradient is not None:
                    row = any(value is one for one in values[first:second])
                    (self.taken if row else self.wanted).append(index)
                    (rows if row else sums).append(gradient)
            return [one.detach() for one in made] + rows + sums

        flat = [*shared, *given, *likes]
        try:
            graph = traced(joint, *flat)
            self.graph, mutated, restored = functionalize.functionalise(
                graph, [Input(one, False, True) for one in flat], Symbolic(())
            )
        except JanusError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        if mutated or restored:
            raise refused_cell(self.cell, "changes a tensor in place that was there before the call")
        if any(clean_up.is_random(node) for node in self.graph.graph.nodes):
            raise self._random()
        names = [f"shared_{index}" for index in range(len(shared))] + [f"given_{index}" for index in range(len(given))]
        names += [f"tangent_{place}" for place in self.tangents]
        for node, name in zip((n for n in self.graph.graph.nodes if n.op == "placeholder"), names, strict=True):
            node.target = name
            node._rename(name)

    def _random(self) -> Refused:
        what = "draws random numbers"
        return refused_cell(self.cell, what, "Many calls at once would draw them in another order than one by one.")

    def _failed(self, error: Exception) -> Refused:
        text = str(error)
        if "random" in text:
            return self._random()
        if "in-place" in text or "output with shape" in text:
            return refused_cell(self.cell, "changes in place a tensor that is the same for all calls")
        if (
            ".item()" in text
            or "dynamic shape" in text
            or "data-dependent" in text
            or "DataDependent" in type(error).__name__
        ):
            return refused_cell(self.cell, "needs the contents of a tensor as a number, or as a size")
        line = text.strip().partition("\n")[0][:200]
        return refused_cell(self.cell, f"cannot be mapped over calls ({type(error).__name__}: {line})")


class _Union:
    """Merges two traces of a cell into one graph for any number of calls."""

    def __init__(self, one: _Trace, other: _Trace) -> None:
        self.one, self.other = one, other
        self.counts: dict[int, torch.fx.Node] = {}  # factor -> node of that multiple of the number of calls

    def made(self) -> Batched:
        one, other = self.one, self.other
        graph = one.graph.graph
        nodes, others = list(graph.nodes), list(other.graph.graph.nodes)
        same = dict(zip(nodes, others, strict=False))
        if len(nodes) != len(others) or (one.taken, one.wanted) != (other.taken, other.wanted):
            raise self._differ()
        likes: dict[str, Like] = {}
        for node in nodes:
            counterpart = same[node]
            if (node.op, str(node.target)) != (counterpart.op, str(counterpart.target)):
                raise self._differ()
            if node.op == "get_attr":
                if not torch.equal(getattr(one.graph, node.target), getattr(other.graph, node.target)):
                    raise self._differ()
                continue
            with graph.inserting_before(node):
                node.args = self._general(node.args, counterpart.args, same)
                node.kwargs = self._general(node.kwargs, counterpart.kwargs, same)
            if isinstance(node.meta.get("val"), torch.Tensor):
                likes[node.name] = self._like(node.meta["val"], counterpart.meta["val"])
        graph.lint()
        one.graph.recompile()
        return Batched(one.graph, len(one.cell.gives), tuple(one.tangents), tuple(one.taken), tuple(one.wanted), likes)

    def _differ(self) -> Refused:
        return refused_cell(self.one.cell, "computes something else for other numbers of calls")

    def _general(self, value: Any, counterpart: Any, same: dict[torch.fx.Node, torch.fx.Node]) -> Any:
        """Return an argument that holds for any number of calls, given those of the two traces."""
        if isinstance(value, torch.fx.Node):
            if same.get(value) is not counterpart:
                raise self._differ()
            return value
        if isinstance(value, list | tuple) and len(value) == len(counterpart):
            return type(value)(self._general(v, c, same) for v, c in zip(value, counterpart, strict=True))
        if isinstance(value, dict) and value.keys() == counterpart.keys():
            return {name: self._general(part, counterpart[name], same) for name, part in value.items()}
        if type(value) is int and type(counterpart) is int and value != counterpart:
            return self._count(self._multiple(value, counterpart))
        if type(value) is not type(counterpart) or (value != counterpart and value == value):
            raise self._differ()
        return value

    def _multiple(self, value: int, counterpart: int) -> int:
        factor = value // self.one.count
        if factor < 1 or (value, counterpart) != (factor * self.one.count, factor * self.other.count):
            raise self._differ()
        return factor

    def _count(self, factor: int) -> torch.fx.Node:
        graph = self.one.graph.graph
        if 1 not in self.counts:
            with graph.inserting_before(next(iter(graph.nodes))):
                self.counts[1] = graph.placeholder(COUNT)
        if factor not in self.counts:
            with graph.inserting_after(self.counts[1]):
                self.counts[factor] = graph.call_function(operator.mul, (self.counts[1], factor))
        return self.counts[factor]

    def _like(self, value: torch.Tensor, counterpart: torch.Tensor) -> Like:
        sizes = list(value.size())
        if len(sizes) != counterpart.dim() or value.dtype != counterpart.dtype:
            raise self._differ()
        found = None
        for axis, (size, other) in enumerate(zip(value.size(), counterpart.size(), strict=True)):
            if size != other:
                if found is not None:
                    raise self._differ()
                found = axis
                sizes[axis] = self._multiple(size, other)
        return Like(value.dtype, tuple(sizes), found)

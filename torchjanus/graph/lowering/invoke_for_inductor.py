"""Prepare the parts of a cell for Inductor: they read rows in place and write to where rows are needed.

One artifact serves any number of calls: the first dimension of everything with rows is symbolic. Knows neither how
Inductor is called nor level schedules.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from torchjanus.core.lazy import deferred
from torchjanus.graph.aten import clean_up
from torchjanus.graph.aten.may_fail import may_fail
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Input, Program
from torchjanus.graph.lowering.for_inductor import Prepared, prepare
from torchjanus.graph.lowering.prepared_bytes import Geometry
from torchjanus.graph.recursion.cells.batch import COUNT, Like
from torchjanus.graph.recursion.cells.split import CellParts
from torchjanus.graph.recursion.variants.plan import Cell, Recursion
from torchjanus.graph.regions.partition import SourcedGraph

__all__ = ["PARTS", "Argument", "PreparedPart", "adds", "adds_rows_up", "work_of", "writing_of"]

dynamo_sources = deferred("torch._dynamo.source")
symbolic_shapes = deferred("torch.fx.experimental.symbolic_shapes")

aten = torch.ops.aten

# The example number of calls in a batch. Each further size gets another, since Inductor takes equal sizes to be one.
_HINT = 37


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an artifact.

    ``kind``: that of a ``Source``, with the rows of one batch (in ``sums`` of all calls); "buffer" and "gradient", by
    the buffer's number, with all rows; or, by position in the cell's ``takes``, "rows" (the indices of the rows taken)
    and "share" (gradients of these rows that the caller adds). ``written``: it is written to.
    """

    kind: str
    index: int
    written: bool = False


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """One part of a cell, ready for Inductor. ``checked``: it must check indices that come from data. ``code``: the
    graph's; ``taken``: its input geometries."""

    part: str
    prepared: Prepared
    arguments: tuple[Argument, ...]
    checked: bool
    code: str
    taken: tuple[Geometry, ...]

    def text(self) -> str:
        """Return a text that is equal for equal artifacts, also of cells of other recursions."""
        kinds = (f"{one.dtype} {one.size} {one.stride}" for one in self.taken)
        return "\n".join([str(self.checked), self.code, *kinds])

    def bare(self) -> PreparedPart:
        """Return what the caller of the compiled part needs."""
        return replace(self, prepared=self.prepared.bare())


PARTS = ("forward", "rows", "sums")


def writing_of(parts: CellParts, recursion: Recursion, name: str) -> PreparedPart | None:
    """Return one of the PARTS of a cell; None where it does not exist or cannot serve any number of calls."""
    part: SourcedGraph | None = getattr(parts, name)
    return None if part is None else _PartPreparation(parts, recursion, name, part).writing()


def adds(cell: Cell, place: int) -> bool:
    """Whether the backward part can itself add the gradients of the rows taken at this position."""
    return bool(cell.alone) and cell.alone[place]


def work_of(parts: CellParts, name: str) -> int:
    """Return the number of operations of the part that are not views."""
    part: SourcedGraph | None = getattr(parts, name)
    nodes = () if part is None else part.graph.graph.nodes
    return sum(isinstance(node.target, torch._ops.OpOverload) and not clean_up.is_view(node) for node in nodes)


def adds_rows_up(parts: CellParts, name: str) -> bool:
    """Whether the part adds rows by index, as the gradient of an embedding does. Inductor adds element by element then;
    ATen adds whole rows, several times as fast."""
    part: SourcedGraph | None = getattr(parts, name)
    nodes = () if part is None else part.graph.graph.nodes
    return any(node.target is aten.embedding_dense_backward.default for node in nodes)


class _PartPreparation:
    """Prepares one part."""

    def __init__(self, parts: CellParts, recursion: Recursion, name: str, part: SourcedGraph) -> None:
        self.parts, self.recursion, self.name, self.part = parts, recursion, name, part
        self.env = symbolic_shapes.ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=self.env)
        self.symbols = 0
        self.count = self._symbol()

    def _symbol(self) -> Any:
        """Return a new symbolic size."""
        number = self.symbols
        self.symbols += 1
        hint, source = _HINT * (number + 1) + number, dynamo_sources.ConstantSource(f"size{number}")
        symbol = self.env.create_symbol(
            hint, source, dynamic_dim=symbolic_shapes.DimDynamic.DYNAMIC, constraint_dim=None
        )
        return self.env.create_symintnode(symbol, hint=hint, source=source)

    def _fake(self, kind: str, index: int) -> torch.Tensor:
        parts, cell, buffers = self.parts, self.parts.cell, self.recursion.buffers
        sizes: Sequence[Any]
        match kind:
            case "shared":
                like = self.recursion.shared[index]
                with self.mode:
                    return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
            case "common":
                one = parts.common_likes[index]
                sizes, dtype = one.size, one.dtype
            case "buffer" | "gradient":
                sizes, dtype = [self._symbol(), *buffers[index].shape], buffers[index].dtype
            case "rows":
                sizes, dtype = [self.count], torch.int64
            case "column":
                sizes, dtype = [self.count, *cell.columns[index].shape], cell.columns[index].dtype
            case "saved" | "row_results":
                rows: Like = (parts.saved if kind == "saved" else parts.row_results)[index]
                sizes, dtype = [self.count * rows.size[0], *rows.size[1:]], rows.dtype
            case _:
                buffer = buffers[(cell.takes if kind in ("taken", "share") else cell.gives)[index]]
                sizes, dtype = [self.count, *buffer.shape], buffer.dtype
        with self.mode:
            return torch.empty(sizes, dtype=dtype)

    def writing(self) -> PreparedPart | None:
        """Return the prepared part; None where no argument shows the number of calls."""
        arguments, graph = self._read()
        if not any(one.kind not in ("shared", "common", "buffer") for one in arguments):
            return None
        fakes = [self._fake(one.kind, one.index) for one in arguments]

        def run(*given: torch.Tensor) -> object:
            # Not the module itself: calling that would run the hooks that the user has put on all modules.
            return graph.forward(*given)

        with _disable_current_modes(), self.mode, torch.no_grad():
            traced = make_fx(run, tracing_mode="real")(*fakes)
        program = Program(tuple(Input(fake, False, True) for fake in fakes), (), (), (), (), (), ())
        count = len(traced.graph.output_node().args[0])  # type: ignore[arg-type]
        size = len(traced.graph.nodes)
        lowered = Lowered(program, traced, count, (), (), (), (), {}, {}, False, torch.get_default_dtype(), size)
        prepared = prepare(lowered)
        written = () if self.name == "sums" else self._write(prepared, arguments, count)
        checked = any(may_fail(node) for node in self.part.graph.graph.nodes)
        placeholders = (node for node in prepared.graph.graph.nodes if node.op == "placeholder")
        taken = tuple(Geometry.of(node.meta["val"]) for node in placeholders)
        return PreparedPart(self.name, prepared, (*arguments, *written), checked, prepared.graph.code, taken)

    def _read(self) -> tuple[list[Argument], torch.fx.GraphModule]:
        """Return the part's arguments, and the part reading its taken rows by index (``sums`` takes them stacked)."""
        part, cell = self.part, self.parts.cell
        gathers = self.name != "sums"
        arguments: dict[Argument, None] = {}
        for source in part.sources:
            if source.kind == "taken" and gathers:
                arguments[Argument("buffer", cell.takes[source.index])] = None
                arguments[Argument("rows", source.index)] = None
            elif source.kind != COUNT:
                arguments[Argument(source.kind, source.index)] = None
        if self.name == "rows":
            arguments.update((Argument("rows", index), None) for index in self.parts.taken if adds(cell, index))
        graph = torch.fx.Graph()
        placed = {one: graph.placeholder(f"{one.kind}_{one.index}") for one in arguments}
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        placeholders = [node for node in part.graph.graph.nodes if node.op == "placeholder"]
        for node, source in zip(placeholders, part.sources, strict=True):
            if source.kind == COUNT:
                continue
            if source.kind == "taken" and gathers:
                rows = placed[Argument("rows", source.index)]
                buffer = placed[Argument("buffer", cell.takes[source.index])]
                copies[node] = graph.call_function(aten.index.Tensor, (buffer, [rows]))
            else:
                copies[node] = placed[Argument(source.kind, source.index)]
        for node, source in zip(placeholders, part.sources, strict=True):
            if source.kind == COUNT:
                copies[node] = self._count(graph, placed)
        for node in part.graph.graph.nodes:
            if node.op == "output":
                graph.output([copies[value] for value in node.args[0]])
            elif node.op != "placeholder":
                copies[node] = graph.node_copy(node, lambda one: copies[one])
        return list(arguments), torch.fx.GraphModule(part.graph, graph)

    def _count(self, graph: torch.fx.Graph, placed: dict[Argument, torch.fx.Node]) -> Any:
        for one, node in placed.items():
            if one.kind in ("saved", "row_results"):
                rows = (self.parts.saved if one.kind == "saved" else self.parts.row_results)[one.index].size[0]
                size = graph.call_function(aten.sym_size.int, (node, 0))
                return size if rows == 1 else graph.call_function(operator.floordiv, (size, rows))
            if one.kind not in ("shared", "common", "buffer"):
                return graph.call_function(aten.sym_size.int, (node, 0))
        return None

    def _write(self, prepared: Prepared, arguments: Sequence[Argument], count: int) -> tuple[Argument, ...]:
        """Let the part write its results to arguments instead of returning them. Returns these arguments."""
        graph = prepared.graph.graph
        output = graph.output_node()
        dropped = dict(prepared.copies)
        left = iter(output.args[0])  # type: ignore[arg-type]
        values: list[Any] = []
        for position in range(count):
            values.append(values[dropped[position]] if position in dropped else next(left))
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        given = dict(zip(arguments, placeholders, strict=False))  # constants follow
        written: dict[Argument, torch.fx.Node] = {}
        last = placeholders[len(arguments) - 1]

        def place(kind: str, index: int) -> torch.fx.Node:
            nonlocal last
            argument = Argument(kind, index, True)
            if argument not in written:
                with graph.inserting_after(last):
                    last = written[argument] = graph.placeholder(f"written_{len(written)}")
                last.meta["val"] = self._fake(kind, index)
            return written[argument]

        cell = self.parts.cell
        if self.name == "forward":
            targets = [("output", index) for index in range(len(cell.gives))]
            targets += [("saved", index) for index in range(len(self.parts.saved))]
            for number, (kind, index) in enumerate(targets):
                target = place(kind, index)
                with graph.inserting_before(output):
                    graph.call_function(aten.copy_.default, (target, values[number]))
        else:
            for number, index in enumerate(self.parts.taken):
                if not adds(cell, index):
                    target = place("share", index)
                    with graph.inserting_before(output):
                        graph.call_function(aten.copy_.default, (target, values[number]))
                    continue
                target, rows, value = (
                    place("gradient", cell.takes[index]),
                    given[Argument("rows", index)],
                    values[number],
                )
                with graph.inserting_before(output):
                    if not self.recursion.buffers[cell.takes[index]].once:
                        there = graph.call_function(aten.index.Tensor, (target, [rows]))
                        value = graph.call_function(aten.add.Tensor, (there, value))
                    graph.call_function(aten.index_put_.default, (target, [rows], value))
            for index in range(len(self.parts.row_results)):
                target = place("row_results", index)
                with graph.inserting_before(output):
                    graph.call_function(aten.copy_.default, (target, values[len(self.parts.taken) + index]))
        output.args = ((),)
        graph.lint()
        prepared.graph.recompile()
        return tuple(written)

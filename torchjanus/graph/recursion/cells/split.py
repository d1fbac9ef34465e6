"""Splits a batched cell into parts by when they can run: forward, backward by batch, and backward once for all calls.

The gradients of input rows are computed batch by batch, since other cells wait for them. The gradients of shared
tensors are computed once over all rows, from what the other parts saved. Independent of how parts run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from torchjanus.core.errors import InternalFault
from torchjanus.graph.aten import clean_up
from torchjanus.graph.recursion.cells.batch import COUNT, Batched, Like
from torchjanus.graph.recursion.variants.plan import Cell
from torchjanus.graph.regions.partition import Source, SourcedGraph

__all__ = ["CellParts", "split_cell"]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, eq=False)
class CellParts:
    """The parts of one cell, each for any number of calls, which lie in the first dimension of all values. ``common``
    depends on shared tensors only. ``forward`` returns the outputs, then the ``saved`` values. ``rows`` returns the
    gradients of the input rows in ``taken``, then the ``row_results`` values. ``sums`` takes the rows of all calls and
    returns the gradients of the shared tensors in ``wanted``.

    The sources of their arguments: shared (by number); common (computed from shared tensors once a run); taken (an
    input row, stacked for all calls of the batch); column; output; tangent (of an output); saved (by the forward part);
    row_results (by the backward part that runs by batch); count (the number of calls)."""

    cell: Cell
    common: SourcedGraph | None
    forward: SourcedGraph
    rows: SourcedGraph | None
    sums: SourcedGraph | None
    saved: tuple[Like, ...]
    row_results: tuple[Like, ...]
    common_likes: tuple[Like, ...]
    taken: tuple[int, ...]
    wanted: tuple[int, ...]
    tangents: tuple[int, ...]


def split_cell(cell: Cell, whole: Batched) -> CellParts:
    """Return the parts of the cell."""
    return _CellSplit(cell, whole).parts()


class _CellSplit:
    """One split in progress."""

    def __init__(self, cell: Cell, whole: Batched) -> None:
        self.cell, self.whole = cell, whole
        self.likes = dict(whole.likes)
        self.graph = whole.graph.graph
        self.varying = self._after("given_", "tangent_", COUNT)
        _transpose_products(self.graph, self.varying, self.likes)
        self.backward = self._after("tangent_")
        flat = list(self.graph.output_node().args[0])  # type: ignore[arg-type]
        second = whole.outputs + len(whole.taken)
        self.outputs: list[torch.fx.Node] = flat[: whole.outputs]
        self.row_gradients, self.sum_gradients = flat[whole.outputs : second], flat[second:]
        self.of_forward = _before(self.outputs)
        self.of_rows = _before(self.row_gradients) & self.backward
        self.common: dict[torch.fx.Node, int] = {}
        self.saved: dict[torch.fx.Node, int] = {}
        self.row_results: dict[torch.fx.Node, int] = {}

    def parts(self) -> CellParts:
        whole = self.whole
        # From last to first: each part determines what those before it have to save for it.
        sums = self._part(self.sum_gradients, self._source_in_sums) if self.sum_gradients else None
        rows = None
        if self.row_gradients:
            rows = self._part(
                [*self.row_gradients, *self.row_results], self._source_in_rows, rows=len(self.row_gradients)
            )
        forward = self._part([*self.outputs, *self.saved], self._source_in_forward, rows=len(self.outputs))
        common = self._part(list(self.common), self._source) if self.common else None
        used = {source for part in (rows, sums) if part is not None for source in part.sources}
        return CellParts(
            cell=self.cell,
            common=common,
            forward=forward,
            rows=rows,
            sums=sums,
            saved=tuple(_first(self.likes[node.name]) for node in self.saved),
            row_results=tuple(_first(self.likes[node.name]) for node in self.row_results),
            common_likes=tuple(self.likes[node.name] for node in self.common),
            taken=whole.taken,
            wanted=whole.wanted,
            tangents=tuple(k for k in whole.tangents if any(source == Source("tangent", k) for source in used)),
        )

    def _after(self, *names: str) -> set[torch.fx.Node]:
        """Return the nodes that depend on placeholders whose names begin like this."""
        found: set[torch.fx.Node] = set()
        for node in self.graph.nodes:
            given = node.op == "placeholder" and str(node.target).startswith(names)
            if given or not found.isdisjoint(node.all_input_nodes):
                found.add(node)
        return found

    def _source(self, node: torch.fx.Node) -> Source | None:
        """Return the source of a placeholder of the whole cell, or None for any other node."""
        if node.op != "placeholder":
            return None
        name, _, number = str(node.target).partition("_")
        if name == COUNT:
            return Source(COUNT, 0)
        rows = len(self.cell.takes)
        if name == "given" and int(number) >= rows:
            return Source("column", int(number) - rows)
        return Source({"shared": "shared", "given": "taken", "tangent": "tangent"}[name], int(number))

    def _source_in_forward(self, node: torch.fx.Node) -> Source | None:
        return self._source(node) or self._source_of_common(node)

    def _source_of_common(self, node: torch.fx.Node) -> Source | None:
        constant = not node.all_input_nodes
        if node in self.varying or constant or clean_up.is_view(node) or node.name not in self.likes:
            return None
        return Source("common", self.common.setdefault(node, len(self.common)))

    def _source_in_rows(self, node: torch.fx.Node) -> Source | None:
        return self._source(node) or self._source_of_forward(node) or self._source_of_common(node)

    def _source_in_sums(self, node: torch.fx.Node) -> Source | None:
        if node in self.of_rows and self._can_be_kept(node) and node.op != "placeholder":
            return Source("row_results", self.row_results.setdefault(node, len(self.row_results)))
        if self._is_moved(node):
            return self._source(node)  # taken rows are gathered again, for all calls at once, rather than saved
        return self._source(node) or self._source_of_forward(node)

    def _is_moved(self, node: torch.fx.Node) -> bool:
        """Whether the value only views or concatenates input rows and columns."""
        if node.op == "placeholder":
            source = self._source(node)
            return source is not None and source.kind in ("taken", "column")
        moves = node.target is aten.cat.default or clean_up.is_view(node)
        return moves and all(map(self._is_moved, node.all_input_nodes))

    def _source_of_forward(self, node: torch.fx.Node) -> Source | None:
        if node not in self.of_forward or node not in self.varying or not self._can_be_kept(node):
            return None
        if node in self.outputs:
            return Source("output", self.outputs.index(node))
        return Source("saved", self.saved.setdefault(node, len(self.saved)))

    def _can_be_kept(self, node: torch.fx.Node) -> bool:
        """Whether the value has a row for each call and is no view."""
        like = self.likes.get(node.name)
        return like is not None and like.axis is not None and not clean_up.is_view(node)

    def _part(
        self, values: Sequence[torch.fx.Node], source_of: Callable[[torch.fx.Node], Source | None], rows: int = -1
    ) -> SourcedGraph:
        """Return the part that computes these values. From index ``rows`` on, dimension 0 is that of the calls."""
        stops: dict[torch.fx.Node, Source] = {}
        needed: set[torch.fx.Node] = set()
        pending = list(values)
        # A part computes its own outputs, even those that other parts take as sources.
        own = set(values)
        while pending:
            node = pending.pop()
            if node in needed:
                continue
            needed.add(node)
            source = self._source(node) if node in own else source_of(node)
            if source is None:
                pending.extend(node.all_input_nodes)
            else:
                stops[node] = source
        order = [node for node in self.graph.nodes if node in needed]
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        placed: dict[Source, torch.fx.Node] = {}
        for node in (node for node in order if node in stops):
            source = stops[node]
            placed[source] = graph.placeholder(f"{source.kind}_{source.index}")
        for node in (node for node in order if node in stops):
            copies[node] = placed[stops[node]]
            if stops[node].kind in ("saved", "row_results"):
                copies[node] = self._reversed(graph, copies[node], node, back=True)
        for node in order:
            if node not in stops:
                copies[node] = graph.node_copy(node, lambda one: copies[one])
        made = [
            self._reversed(graph, copies[node], node) if 0 <= rows <= place else copies[node]
            for place, node in enumerate(values)
        ]
        graph.output(made)
        graph.lint()
        module = torch.fx.GraphModule(self.whole.graph, graph)
        for node in module.graph.nodes:
            node.meta.clear()
        return SourcedGraph(module, tuple(placed))

    def _reversed(
        self, graph: torch.fx.Graph, copy: torch.fx.Node, node: torch.fx.Node, back: bool = False
    ) -> torch.fx.Node:
        """Return the value with the calls moved to the first dimension, or with ``back`` moved from there."""
        like = self.likes[node.name]
        if not like.axis:
            return copy
        order = [like.axis, *(axis for axis in range(len(like.size)) if axis != like.axis)]
        if back:
            order = [order.index(axis) for axis in range(len(order))]
        return graph.call_function(aten.permute.default, (copy, order))


def _transpose_products(graph: torch.fx.Graph, varying: set[torch.fx.Node], likes: dict[str, Like]) -> None:
    """Transpose products of a shared matrix with one column per call, so that each call has a row of its own."""
    for node in list(graph.nodes):
        if node.target is not aten.mm.default:
            continue
        one, other = node.args
        if one in varying or other not in varying or likes[node.name].axis != 1:
            continue
        with graph.inserting_before(node):
            parts = []
            for part in (other, one):
                if part.target is aten.permute.default or part.target is aten.t.default:
                    parts.append(part.args[0])
                    continue
                parts.append(graph.call_function(aten.t.default, (part,)))
                likes[parts[-1].name] = _transposed(likes[part.name])
            product = graph.call_function(aten.mm.default, tuple(parts))
            transposed = graph.call_function(aten.t.default, (product,))
        like = likes[node.name]
        likes[product.name], likes[transposed.name] = _transposed(like), like
        varying.update((product, transposed, *(part for part in parts[:1])))
        node.replace_all_uses_with(transposed)
        graph.erase_node(node)


def _transposed(like: Like) -> Like:
    return Like(like.dtype, like.size[::-1], None if like.axis is None else 1 - like.axis)


def _first(like: Like) -> Like:
    """Return the metadata with the calls in the first dimension."""
    axis = like.axis
    if axis is None:
        raise InternalFault("a value without rows is kept")
    return Like(like.dtype, (like.size[axis], *like.size[:axis], *like.size[axis + 1 :]), 0)


def _before(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return these nodes and all that they depend on."""
    found: set[torch.fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found

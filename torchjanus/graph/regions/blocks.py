"""Combines several iterations of a loop into one graph, since calling a small iteration costs more than computing it.

The forward or backward graph of one iteration is inlined ``width`` times; a row that an iteration takes or returns
becomes ``width`` rows. How blocks are compiled and run is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.graph.regions.partition import Partition, Source, SourcedGraph
from torchjanus.graph.regions.products import (
    NOTHING,
    FactoredGradients,
    HoistedProduct,
    with_products,
    without_products,
)
from torchjanus.graph.regions.saved_values import returned

__all__ = ["Block", "backward_block", "forward_block", "width_for"]

aten = torch.ops.aten

WIDEST = 8
NODES = 160  # nodes of a block


@dataclass(frozen=True, slots=True)
class Block:
    """``width`` iterations. ``sources``: where its arguments come from; ``rows``: which of them are ``width`` rows.

    A forward block returns the carried values that no output equals (see ``Partition.shown``), then all stacked
    outputs. It takes rows of products computed before it (``ahead``) as stacked inputs after those of the loop. A
    backward block returns the gradients at positions ``gives`` of ``Partition.wanted``, then the rows of the other
    gradients' factors (see ``FactoredGradients``). For a carried value it takes the value before its first iteration
    and the rows that equal the later ones."""

    graph: torch.fx.GraphModule
    width: int
    sources: tuple[Source, ...]
    rows: tuple[bool, ...]
    gives: tuple[int, ...] = ()
    factored: FactoredGradients = NOTHING
    ahead: tuple[HoistedProduct, ...] = ()


def width_for(partition: Partition, counts: Iterable[int | None]) -> int:
    """Return the number of iterations per block, for loops of these trip counts (None: unknown)."""
    nodes = sum(node.op == "call_function" for node in partition.forward.graph.graph.nodes)
    widest = min(WIDEST, NODES // max(1, nodes))
    known = [count for count in counts if count is not None]
    fitting = [width for width in range(3, widest + 1) if all(count % width == 0 for count in known)]
    return max(fitting if known and fitting else [max(1, widest)])


class _BlockWriter:
    """Builds the graph of a block."""

    def __init__(self, direction: SourcedGraph, width: int) -> None:
        self.direction, self.width = direction, width
        self.graph = torch.fx.Graph()
        self.sources: list[Source] = []
        self.rows: list[bool] = []
        placeholders = [node for node in direction.graph.graph.nodes if node.op == "placeholder"]
        self.likes = {source: node.meta["val"] for source, node in zip(direction.sources, placeholders, strict=True)}
        self.mode = placeholders[0].meta["val"].fake_mode
        self._given: dict[tuple[Source, bool], Any] = {}
        self._selected: dict[Any, Any] = {}

    def given(self, source: Source, like: torch.Tensor, rows: bool) -> Any:
        """Return the argument from this source."""
        key = (source, rows)
        if key not in self._given:
            node = self.graph.placeholder(f"given_{len(self.sources)}")
            with self.mode:
                contiguous = rows and source.kind != "stacked"
                if contiguous:
                    node.meta["val"] = torch.empty((self.width, *like.size()), dtype=like.dtype)
                elif rows:
                    stride = like.size().numel() if like.is_contiguous() else 0
                    node.meta["val"] = torch.empty_strided(
                        (self.width, *like.size()), (max(stride, 1), *like.stride()), dtype=like.dtype
                    )
                else:
                    node.meta["val"] = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
            self.sources.append(source)
            self.rows.append(rows)
            self._given[key] = node
        return self._given[key]

    def row(self, source: Source, like: torch.Tensor, number: int) -> Any:
        """Return one row of an argument of ``width`` rows."""
        key = (source, number)
        if key not in self._selected:
            self._selected[key] = self.call(aten.select.int, self.given(source, like, True), 0, number)
        return self._selected[key]

    def call(self, target: Any, *args: Any) -> Any:
        node = self.graph.call_function(target, args)
        with self.mode:
            node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda part: part.meta["val"]))
        return node

    def stacked(self, values: Sequence[Any]) -> Any:
        return self.call(aten.stack.default, list(values))

    def inline(self, given: dict[Source, Any]) -> list[Any]:
        """Inline one iteration; return its results."""
        names: dict[Any, Any] = {}
        sources = iter(self.direction.sources)
        for node in self.direction.graph.graph.nodes:
            if node.op == "placeholder":
                names[node] = given[next(sources)]
            elif node.op == "output":
                return [names[value] for value in node.args[0]]
            elif node.op == "get_attr":
                names[node] = self.graph.get_attr(node.target)
                names[node].meta = dict(node.meta)
            else:
                names[node] = self.graph.node_copy(node, lambda part: names[part])
        raise AssertionError("a graph that returns nothing")

    def finished(self, values: Sequence[Any]) -> Block:
        self.graph.output(list(values))
        # Move the placeholders to the front.
        first = next(node for node in self.graph.nodes if node.op != "placeholder")
        for node in list(self.graph.nodes):
            if node.op == "placeholder":
                first.prepend(node)
        module = torch.fx.GraphModule(self.direction.graph, self.graph)
        module.graph.lint()
        order = [node for node in self.graph.nodes if node.op == "placeholder"]
        places = {node: key for key, node in self._given.items()}
        return Block(module, self.width, tuple(places[n][0] for n in order), tuple(places[n][1] for n in order))


def forward_block(partition: Partition, width: int) -> Block:
    """Return a block of ``width`` iterations forward."""
    direction, ahead = with_products(partition)
    work = _BlockWriter(direction, width)
    current: dict[int, Any] = {}
    columns: list[list[Any]] = [[] for _ in partition.gives[partition.carried :]]
    flat = len(returned(direction.graph))
    for number in range(width):
        given = {}
        for source in direction.sources:
            like = work.likes[source]
            if source.kind == "carried":
                if source.index not in current:
                    current[source.index] = work.given(source, like, False)
                given[source] = current[source.index]
            else:
                stacked = source.kind == "stacked"
                given[source] = work.row(source, like, number) if stacked else work.given(source, like, False)
        for column, index in zip(columns[flat - partition.carried :], partition.histories, strict=True):
            if index not in current:
                source = Source("carried", index)
                current[index] = work.given(source, work.likes[source], False)
            column.append(current[index])
        made = work.inline(given)
        for column, value in zip(columns, made[partition.carried :], strict=False):
            column.append(value)
        current.update(enumerate(made[: partition.carried]))
    finals = [current[index] for index in range(partition.carried) if index not in partition.shown]
    return replace(work.finished([*finals, *(work.stacked(column) for column in columns)]), ahead=ahead)


def backward_block(partition: Partition, width: int, widest: int) -> Block:
    """Return a block of ``width`` backward iterations, last one first. ``widest``: of the loop's widest block."""
    direction, gives, factored = without_products(partition, widest)
    work = _BlockWriter(direction, width)
    flowing: dict[int, Any] = {}
    for source in direction.sources:
        if source.kind == "tangent" and source.index < partition.carried:
            flowing[source.index] = work.given(source, work.likes[source], False)
    first, second = partition.carried, partition.carried + partition.stacked
    wanted = [partition.wanted[position] for position in gives]
    rows: dict[int, list[Any]] = {p: [] for p, index in enumerate(wanted) if first <= index < second}
    rows.update((len(gives) + number, []) for number in range(len(factored.rows)))
    sums: dict[int, list[Any]] = {}
    ends: dict[int, Any] = {}
    for number in reversed(range(width)):
        made = work.inline(
            {source: _given_back(partition, work, source, number, flowing) for source in direction.sources}
        )
        following = {index: work.call(aten.zeros_like.default, value) for index, value in flowing.items()}
        for position, value in enumerate(made):
            if position in rows:
                rows[position].insert(0, value)
            elif wanted[position] < first:
                following[wanted[position]] = ends[position] = value
            else:
                sums.setdefault(position, []).append(value)
        flowing = following
    results = []
    for position in range(len(gives) + len(factored.rows)):
        if position in rows:
            results.append(work.stacked(rows[position]))
        else:
            results.append(ends[position] if position in ends else _sum(work, sums[position]))
    return replace(work.finished(results), gives=gives, factored=factored)


def _sum(work: _BlockWriter, values: Sequence[Any]) -> Any:
    """Return the sum of the iterations' gradients. Matrix products (gradients of weights) become one product."""
    if len(values) > 1 and all(value.target is aten.mm.default for value in values):
        left, right = zip(*(value.args for value in values), strict=True)
        return work.call(aten.mm.default, _side_by_side(work, left), work.call(aten.cat.default, list(right), 0))
    total = values[0]
    for value in values[1:]:
        total = work.call(aten.add.Tensor, total, value)
    return total


def _side_by_side(work: _BlockWriter, parts: Sequence[Any]) -> Any:
    """Concatenate matrices by columns; for transposed ones, concatenate the originals by rows."""
    if not all(part.target is aten.t.default for part in parts):
        return work.call(aten.cat.default, list(parts), 1)
    below = [part.args[0] for part in parts]
    return work.call(aten.t.default, work.call(aten.cat.default, below, 0))


def _given_back(partition: Partition, work: _BlockWriter, source: Source, number: int, flowing: dict[int, Any]) -> Any:
    """Return the argument of one backward iteration."""
    like = work.likes[source]
    if source.kind == "tangent" and source.index < partition.carried:
        return flowing[source.index]
    if source.kind == "invariant":
        return work.given(source, like, False)
    if source.kind == "carried" and source.index in partition.shown:
        shown = partition.shown[source.index]
        entering = work.given(source, like, False)  # so that a block always takes both arguments
        row = work.row(shown, like, max(number - 1, 0))
        return row if number else entering
    if source.kind == "carried":
        saved = len(partition.gives) - partition.results - len(partition.histories)
        return work.row(Source("saved", saved + partition.histories.index(source.index)), like, number)
    return work.row(source, like, number)

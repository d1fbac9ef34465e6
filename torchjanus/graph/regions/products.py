"""Moves matrix products that are not loop-carried out of the iterations: one product before or after a loop.

For ``h @ w`` in each iteration, the gradient of ``w`` is a sum of products, which equals one product of all iterations'
rows; adding to a matrix of the weight's size after each block costs more than keeping the rows. ``x @ w`` of rows that
exist before the loop is one product of all of them, faster than many products of few rows. Rewrites the graphs of one
iteration; blocks are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.graph.operators.loop_op import TensorSignature
from torchjanus.graph.regions.partition import Partition, Source, SourcedGraph

__all__ = ["NOTHING", "Factor", "FactoredGradients", "HoistedProduct", "Product", "with_products", "without_products"]

aten = torch.ops.aten

TALL = 128  # rows; larger products gain nothing from being joined

Factor = Source | int  # the source of an operand, or the index of a row output of the iterations


@dataclass(frozen=True, slots=True)
class Product:
    """The gradient at ``position`` (see ``Partition.wanted``): ``left.T @ right`` over the rows of all iterations."""

    position: int
    left: Factor
    right: Factor


@dataclass(frozen=True, slots=True)
class FactoredGradients:
    """The gradients that become products, and the rows that one iteration outputs for them."""

    products: tuple[Product, ...]
    rows: tuple[TensorSignature, ...]


NOTHING = FactoredGradients((), ())


def without_products(partition: Partition, width: int) -> tuple[SourcedGraph, tuple[int, ...], FactoredGradients]:
    """Return the backward graph with rows in place of products, the positions of its gradients, and the products.

    ``width``: the number of iterations after which a sum would be added to."""
    direction = partition.backward
    assert direction is not None
    graph = torch.fx.Graph()
    made: Any = graph.graph_copy(direction.graph.graph, {})
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    sources = dict(zip(nodes, direction.sources, strict=True))
    rows: dict[Any, int] = {}
    products = []
    for position, (index, value) in enumerate(zip(partition.wanted, made, strict=True)):
        if index < partition.carried + partition.stacked or not _is_product(value):
            continue
        factors = [value.args[0].args[0], value.args[1]]
        own = {node for node in factors if not _is_stacked(partition, sources.get(node))}
        tall = factors[0].meta["val"].size(0) >= TALL
        if tall and _count(own - rows.keys()) * width > value.meta["val"].numel():
            continue  # many rows to keep, and a small matrix to add to
        for node in factors:
            if node in own:
                rows.setdefault(node, len(rows))
        products.append(Product(position, *(rows[node] if node in own else sources[node] for node in factors)))
    if not products:
        return direction, tuple(range(len(made))), NOTHING
    instead = {product.position for product in products}
    gives = tuple(position for position in range(len(made)) if position not in instead)
    values = [node.meta["val"] for node in rows]
    likes = tuple(TensorSignature(value.dtype, tuple(value.size()), True, value.device) for value in values)
    results = [*(made[position] for position in gives), *rows]
    return _rewritten(direction, graph, results, sources), gives, FactoredGradients(tuple(products), likes)


def _rewritten(
    direction: SourcedGraph, graph: torch.fx.Graph, results: Any, sources: dict[torch.fx.Node, Source], kept: str = ""
) -> SourcedGraph:
    """Return the direction with this graph, without what is unused; unused inputs of kind ``kept`` stay."""
    graph.output(list(results))
    graph.eliminate_dead_code()
    for node in list(sources):
        if not node.users and sources[node].kind != kept:
            del sources[node]
            graph.erase_node(node)
    module = torch.fx.GraphModule(direction.graph, graph)
    return SourcedGraph(module, tuple(sources[node] for node in graph.nodes if node.op == "placeholder"))


@dataclass(frozen=True, slots=True)
class HoistedProduct:
    """A product that is computed before the iterations: rows of a stacked input times an invariant, plus a bias.

    Its rows follow those of the stacked inputs, in the order of these records."""

    rows: int
    weight: int
    transposed: bool
    bias: int | None

    def made(self, stacked: Sequence[torch.Tensor], invariants: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the product for all rows, shape (iterations, rows, columns)."""
        rows, weight = stacked[self.rows], invariants[self.weight]
        weight = weight.t() if self.transposed else weight
        flat = rows.flatten(0, 1)
        made = torch.mm(flat, weight) if self.bias is None else torch.addmm(invariants[self.bias], flat, weight)
        return made.view(rows.size(0), rows.size(1), -1)


def with_products(partition: Partition) -> tuple[SourcedGraph, tuple[HoistedProduct, ...]]:
    """Return the forward graph that takes rows of products as inputs, and these products."""
    direction = partition.forward
    graph = torch.fx.Graph()
    names: dict[torch.fx.Node, torch.fx.Node] = {}
    made: Any = graph.graph_copy(direction.graph.graph, names)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    sources = dict(zip(placeholders, direction.sources, strict=True))
    found: list[HoistedProduct] = []
    behind = next(node for node in graph.nodes if node.op != "placeholder")
    for node in list(graph.nodes):
        ahead = _ahead(node, sources)
        if ahead is None:
            continue
        with graph.inserting_before(behind):
            row = graph.placeholder(f"ahead_{len(found)}")
        row.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(row)
        sources[row] = Source("stacked", partition.stacked + len(found))
        found.append(ahead)
    if not found:
        return direction, ()
    # The backward graph may need a carried value that the iterations do not use.
    return _rewritten(direction, graph, made, sources, "carried"), tuple(found)


def _ahead(node: Any, sources: dict[torch.fx.Node, Source]) -> HoistedProduct | None:
    """Return the product that the node computes if it can be computed before the iterations; otherwise None."""
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return None
    *bias, rows, weight = node.args
    transposed = weight.target is aten.t.default
    known = (sources.get(part) for part in (rows, weight.args[0] if transposed else weight, *bias))
    given = [source for source in known if source is not None]
    kinds = [source.kind for source in given]
    if kinds != ["stacked", "invariant", *["invariant"] * len(bias)] or rows.meta["val"].size(0) >= TALL:
        return None
    if any(part.meta["val"].dim() != 1 for part in bias):
        return None
    return HoistedProduct(given[0].index, given[1].index, transposed, given[2].index if bias else None)


def _is_product(value: Any) -> bool:
    return bool(value.target is aten.mm.default and value.args[0].target is aten.t.default)


def _is_stacked(partition: Partition, source: Source | None) -> bool:
    """Whether the rows of all iterations are available after the loop."""
    if source is None or source.kind in ("invariant", "size"):
        return False
    return source.kind != "tangent" or source.index >= partition.carried


def _count(nodes: set[Any]) -> int:
    return sum(math.prod(node.meta["val"].size()) for node in nodes)

"""Products that are not loop-carried, made once for all iterations: the same results as iterations one by one give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from tests.graph.regions.test_loop import body_of
from torchjanus.execute.compiled.loop import CompiledLoop, prepared_blocks
from torchjanus.execute.regions.loop import ReplayLoop
from torchjanus.graph.operators.loop_op import LoopInputs, Tangents
from torchjanus.graph.regions.partition import Partition, Source, kind_of, partition_of
from torchjanus.graph.regions.products import TALL, HoistedProduct, with_products, without_products
from torchjanus.graph.regions.sizes import named

Iteration = Callable[[Any, Any, Any], tuple[list[torch.Tensor], list[torch.Tensor]]]


def cell(carried: Any, rows: Any, rest: Any) -> Any:
    (h,), (x,), (wx, wh, b) = carried, rows, rest
    h = torch.tanh(x @ wx + h @ wh + b)
    return [h], [h * 2]


def layers(carried: Any, rows: Any, rest: Any) -> Any:
    (h,), (x,), (wx, wh, b) = carried, rows, rest
    h = torch.tanh(linear(x, wx.t(), b) + linear(h, wh))
    return [h], [h]


def deep(carried: Any, rows: Any, rest: Any) -> Any:
    """The product's factors are computed in the iteration, both of them."""
    (h,), (x,), (wx, wh, b) = carried, rows, rest
    h = torch.tanh((x * h.mean()) @ wx + torch.sin(h) @ wh + b)
    return [h], [h]


def of_iterations(carried: Any, rows: Any, rest: Any) -> Any:
    """The weight is another one in each iteration: nothing is made once."""
    (h, w), (x,), (wx, wh, b) = carried, rows, rest
    h = torch.tanh(x @ w + h @ wh + b)
    return [h, w + wx], [h]


def behind(carried: Any, rows: Any, rest: Any) -> Any:
    """A carried value that iterations forward only pass on unchanged, and iterations backward multiply by."""
    (h, k), (x,), (wx, wh, b) = carried, rows, rest
    return [torch.tanh(x @ wx + h @ wh + b) * k, k * 0.9], [h.clone()]


def made(iteration_: Iteration, batch: int, requires: bool = True) -> tuple[Partition, dict[str, list[torch.Tensor]]]:
    torch.manual_seed(0)
    weights = [torch.randn(3, 5), torch.randn(5, 5), torch.randn(5)]
    carried = [torch.randn(batch, 5)]
    if iteration_ is of_iterations:
        carried.append(torch.randn(3, 5))
    if iteration_ is behind:
        carried.append(torch.randn(batch, 5))
    given = {"carried": carried, "stacked": [torch.randn(batch, 3)], "invariant": weights}
    for tensor in weights:
        tensor.requires_grad_(requires)
    loop = body_of(iteration_, given["carried"], given["stacked"], given["invariant"])
    kinds = [kind_of(tensor) for tensors in given.values() for tensor in tensors]
    return partition_of(loop.body, len(carried), 1, named(kinds)), given


@pytest.mark.parametrize("count", [1, 5, 8, 17])
@pytest.mark.parametrize("batch", [2, TALL])
@pytest.mark.parametrize("iteration_", [cell, layers, deep, of_iterations, behind])
def test_results_and_gradients_are_those_of_iterations_one_by_one(
    iteration_: Iteration, batch: int, count: int
) -> None:
    partition, given = made(iteration_, batch)
    written = prepared_blocks(partition, [None])
    iterations = CompiledLoop(partition, written, [writing.prepared.graph for writing in written])
    one_by_one = ReplayLoop(partition)
    weights = [tensor.detach() for tensor in given["invariant"]]
    rows = [torch.randn(count, batch, 3)]
    mine, theirs = (
        [t.detach() for t in one.forward(count, LoopInputs(given["carried"], rows, weights))]
        for one in (iterations, one_by_one)
    )
    torch.testing.assert_close(mine, theirs)
    known = {"carried": given["carried"], "stacked": rows, "invariant": weights}
    results = partition.results - partition.carried
    known["output"], known["saved"] = theirs[partition.carried :][:results], theirs[partition.carried :][results:]
    kept = [known[source.kind][source.index] for source in partition.kept]
    tangents = [torch.randn_like(theirs[index]) for index in partition.tangents]
    flows = Tangents("1" * len(tangents), tangents)
    torch.testing.assert_close(
        [t.detach() for t in iterations.backward(count, flows, kept)],
        [t.detach() for t in one_by_one.backward(count, flows, kept)],
        rtol=1e-4,
        atol=1e-4,
    )


def test_what_is_made_before_the_iterations() -> None:
    direction, ahead = with_products(made(cell, 2)[0])
    assert ahead == (HoistedProduct(rows=0, weight=0, transposed=False, bias=None),)
    assert Source("stacked", 0) not in direction.sources
    assert Source("stacked", 1) in direction.sources
    assert with_products(made(of_iterations, 2)[0])[1] == ()
    assert with_products(made(deep, 2)[0])[1] == ()
    assert with_products(made(cell, TALL)[0])[1] == ()  # a product of many rows is as fast as one of more


def test_gradients_that_are_products_are_made_after_the_iterations() -> None:
    partition = made(cell, 2)[0]
    _, gives, factored = without_products(partition, 8)
    assert {partition.wanted[product.position] for product in factored.products} == {2, 3}  # of wx and wh
    assert sorted([*gives, *(product.position for product in factored.products)]) == [*range(len(partition.wanted))]
    assert len(factored.rows) == 1  # what both products have in common
    _, gives, factored = without_products(made(cell, TALL)[0], 8)
    assert (len(gives), factored.products) == (4, ())  # more to keep than to add to


def test_iterations_without_gradients_have_products_before_them_all_the_same() -> None:
    partition, _ = made(cell, 2, requires=False)
    assert partition.backward is None
    assert len(prepared_blocks(partition, [None])[0].block.ahead) == 1

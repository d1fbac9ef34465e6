"""Products that no round hands on, made once for all rounds: the same results as rounds one by one give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from tests.graph.regions.test_loop import body_of
from torchjanus.execute.compiled.loop import CompiledRounds, writings
from torchjanus.execute.regions.loop import ReplayRounds
from torchjanus.graph.regions.partition import Halves, Source, halves_of, kind_of
from torchjanus.graph.regions.products import TALL, Ahead, with_products, without_products
from torchjanus.graph.regions.sizes import named

Round = Callable[[Any, Any, Any], tuple[list[torch.Tensor], list[torch.Tensor]]]


def cell(carried: Any, rows: Any, rest: Any) -> Any:
    (h,), (x,), (wx, wh, b) = carried, rows, rest
    h = torch.tanh(x @ wx + h @ wh + b)
    return [h], [h * 2]


def layers(carried: Any, rows: Any, rest: Any) -> Any:
    (h,), (x,), (wx, wh, b) = carried, rows, rest
    h = torch.tanh(linear(x, wx.t(), b) + linear(h, wh))
    return [h], [h]


def deep(carried: Any, rows: Any, rest: Any) -> Any:
    """The product's factors are computed in the round, both of them."""
    (h,), (x,), (wx, wh, b) = carried, rows, rest
    h = torch.tanh((x * h.mean()) @ wx + torch.sin(h) @ wh + b)
    return [h], [h]


def of_rounds(carried: Any, rows: Any, rest: Any) -> Any:
    """The weight is another one in each round: nothing is made once."""
    (h, w), (x,), (wx, wh, b) = carried, rows, rest
    h = torch.tanh(x @ w + h @ wh + b)
    return [h, w + wx], [h]


def behind(carried: Any, rows: Any, rest: Any) -> Any:
    """A carried value that rounds forward only hand on, and rounds backward multiply by."""
    (h, k), (x,), (wx, wh, b) = carried, rows, rest
    return [torch.tanh(x @ wx + h @ wh + b) * k, k * 0.9], [h.clone()]


def made(round_: Round, batch: int, requires: bool = True) -> tuple[Halves, dict[str, list[torch.Tensor]]]:
    torch.manual_seed(0)
    weights = [torch.randn(3, 5), torch.randn(5, 5), torch.randn(5)]
    carried = [torch.randn(batch, 5)]
    if round_ is of_rounds:
        carried.append(torch.randn(3, 5))
    if round_ is behind:
        carried.append(torch.randn(batch, 5))
    given = {"carried": carried, "stacked": [torch.randn(batch, 3)], "invariant": weights}
    for tensor in weights:
        tensor.requires_grad_(requires)
    loop = body_of(round_, given["carried"], given["stacked"], given["invariant"])
    kinds = [kind_of(tensor) for tensors in given.values() for tensor in tensors]
    return halves_of(loop.body, len(carried), 1, named(kinds)), given


@pytest.mark.parametrize("count", [1, 5, 8, 17])
@pytest.mark.parametrize("batch", [2, TALL])
@pytest.mark.parametrize("round_", [cell, layers, deep, of_rounds, behind])
def test_results_and_gradients_are_those_of_rounds_one_by_one(round_: Round, batch: int, count: int) -> None:
    halves, given = made(round_, batch)
    written = writings(halves, [None])
    rounds = CompiledRounds(halves, written, [writing.prepared.graph for writing in written])
    one_by_one = ReplayRounds(halves)
    weights = [tensor.detach() for tensor in given["invariant"]]
    rows = [torch.randn(count, batch, 3)]
    mine, theirs = (
        [t.detach() for t in one.forward(count, given["carried"], rows, weights)] for one in (rounds, one_by_one)
    )
    torch.testing.assert_close(mine, theirs)
    known = {"carried": given["carried"], "stacked": rows, "invariant": weights}
    results = halves.results - halves.carried
    known["output"], known["saved"] = theirs[halves.carried :][:results], theirs[halves.carried :][results:]
    kept = [known[source.kind][source.index] for source in halves.kept]
    tangents = [torch.randn_like(theirs[index]) for index in halves.tangents]
    present = "1" * len(tangents)
    torch.testing.assert_close(
        [t.detach() for t in rounds.backward(count, present, tangents, kept)],
        [t.detach() for t in one_by_one.backward(count, present, tangents, kept)],
        rtol=1e-4,
        atol=1e-4,
    )


def test_what_is_made_before_the_rounds() -> None:
    half, ahead = with_products(made(cell, 2)[0])
    assert ahead == (Ahead(rows=0, weight=0, transposed=False, bias=None),)
    assert Source("stacked", 0) not in half.sources
    assert Source("stacked", 1) in half.sources
    assert with_products(made(of_rounds, 2)[0])[1] == ()
    assert with_products(made(deep, 2)[0])[1] == ()
    assert with_products(made(cell, TALL)[0])[1] == ()  # a product of many rows is as fast as one of more


def test_gradients_that_are_products_are_made_after_the_rounds() -> None:
    halves = made(cell, 2)[0]
    _, gives, factored = without_products(halves, 8)
    assert {halves.wanted[product.position] for product in factored.products} == {2, 3}  # of wx and wh
    assert sorted([*gives, *(product.position for product in factored.products)]) == [*range(len(halves.wanted))]
    assert len(factored.rows) == 1  # what both products have in common
    _, gives, factored = without_products(made(cell, TALL)[0], 8)
    assert (len(gives), factored.products) == (4, ())  # more to keep than to add to


def test_rounds_without_gradients_have_products_before_them_all_the_same() -> None:
    halves, _ = made(cell, 2, requires=False)
    assert halves.backward is None
    assert len(writings(halves, [None])[0].block.ahead) == 1

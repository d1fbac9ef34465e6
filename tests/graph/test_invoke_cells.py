"""A cell for any number of calls, and its parts: what is batched, what is kept, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from torchjanus.core.errors import Refused
from torchjanus.graph.lowering.invoke_for_inductor import PARTS, writing_of
from torchjanus.graph.recursion.cells.batch import _COUNTS
from torchjanus.graph.recursion.cells.invoke import Invocation
from torchjanus.graph.recursion.cells.split import CellParts
from torchjanus.graph.recursion.variants.plan import Buffer, Cell, Column, Recursion
from torchjanus.graph.regions.partition import SourcedGraph

ROW = Buffer((4,), torch.float32, torch.device("cpu"), True)
WEIGHT = torch.randn(4, 4, requires_grad=True)
TABLE = torch.randn(50, 4, requires_grad=True)

Function = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]


def parts_of(function: Function, *, takes: int = 1, columns: Sequence[Column] = (), buffer: Buffer = ROW) -> CellParts:
    cell = Cell("walk", function, (0,) * takes, tuple(columns), (1,))
    recursion = Recursion((cell,), (ROW, buffer), (WEIGHT, TABLE), (0,), (1,))
    seed = torch.randn(3, 4, requires_grad=True)
    return Invocation(recursion).partition([WEIGHT, TABLE], [seed]).cells[0]


def targets(part: SourcedGraph | None) -> list[str]:
    assert part is not None
    return [str(node.target).removeprefix("aten.") for node in part.graph.graph.nodes if node.op == "call_function"]


def kinds(part: SourcedGraph | None) -> set[str]:
    assert part is not None
    return {source.kind for source in part.sources}


@pytest.mark.parametrize(
    "product",
    [
        lambda w, x: w @ x,
        lambda w, x: x @ w,
        lambda w, x: torch.nn.functional.linear(x, w),
        lambda w, x: torch.nn.functional.linear(x.unsqueeze(0), w).squeeze(0),
        lambda w, x: torch.mv(w, x),
        lambda w, x: torch.mm(x.unsqueeze(0), w)[0],
        lambda w, x: torch.mm(w, x.unsqueeze(1))[:, 0],
        lambda w, x: torch.addmm(x.unsqueeze(0), x.unsqueeze(0), w)[0],
        lambda w, x: torch.matmul(x.view(1, 1, 4), w).view(4),
    ],
)
def test_a_product_is_one_for_all_calls(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    parts = parts_of(lambda shared, given: [torch.tanh(product(shared[0], given[0]))])
    for part in (parts.forward, parts.rows, parts.sums):
        assert targets(part).count("mm.default") == 1
        assert not any("bmm" in target for target in targets(part))
    # No weights' gradient for each call.
    likes = (*parts.saved, *parts.row_results)
    assert all(len(like.size) <= 3 and like.size[-1] * like.size[-2] <= 4 for like in likes)


@pytest.mark.parametrize(
    "read",
    [
        lambda table, word: table[word],
        lambda table, word: torch.nn.functional.embedding(word, table),
        lambda table, word: torch.nn.functional.embedding(word.view(1), table)[0],
        lambda table, word: torch.index_select(table, 0, word.view(1))[0],
    ],
)
def test_rows_of_a_table_have_no_dense_gradients(read: Callable[[Tensor, Tensor], Tensor]) -> None:
    parts = parts_of(lambda shared, given: [given[0] * read(shared[1], given[1])], columns=[Column((), torch.int64)])
    assert parts.wanted == (1,)
    assert all(like.size in ((1, 4), (1, 1, 4)) for like in (*parts.saved, *parts.row_results))
    accumulated = [t for t in targets(parts.sums) if t.startswith(("embedding_dense", "index_put", "index_add"))]
    assert len(accumulated) == 1


def test_what_is_the_same_for_all_calls_is_computed_once() -> None:
    parts = parts_of(lambda shared, given: [given[0] * torch.sigmoid(shared[0]).sum(0)])
    assert targets(parts.common) == ["sigmoid.default", "sum.dim_IntList"]
    assert targets(parts.forward) == ["mul.Tensor"]
    assert kinds(parts.rows) == {"tangent", "common"}


def test_parts_are_as_late_as_they_can_be() -> None:
    parts = parts_of(lambda shared, given: [torch.tanh(shared[0] @ given[0])])
    assert kinds(parts.rows) == {"shared", "tangent", "saved"}
    assert kinds(parts.sums) == {"taken", "row_results"}
    assert [like.size for like in parts.row_results] == [(1, 4)]


def test_rows_that_are_only_put_together_are_found_again_and_not_saved() -> None:
    parts = parts_of(lambda shared, given: [torch.tanh(shared[0] @ torch.cat([given[0], given[1]])[:4])], takes=2)
    assert kinds(parts.sums) == {"taken", "row_results"}
    assert len(parts.saved) <= 1  # what tanh gives, if that


def test_a_cell_that_passes_its_row_on() -> None:
    parts = parts_of(lambda shared, given: [given[0]])
    assert parts.sums is None
    assert kinds(parts.rows) == {"tangent"}


def test_a_cell_that_takes_nothing() -> None:
    parts = parts_of(lambda shared, given: [shared[0].sum(0)], takes=0)
    assert parts.rows is None
    assert parts.wanted == (0,)


def in_place(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
    with torch.no_grad():
        shared[0].add_(1)
    return [given[0] * 2]


def changes_its_row(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
    given[0].detach().add_(1)
    return [given[0] * 2]


def adds_up(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
    with torch.no_grad():
        shared[0][0].add_(given[0])
    return [given[0] * 2]


def by_number(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
    return [given[0] * given[0].sum().item()]


def by_size(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
    return [given[0] * torch.nonzero(given[0]).sum()]


def by_truth(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
    return [given[0] if given[0].sum() > 0 else -given[0]]


REFUSED: list[tuple[Any, str]] = [
    (in_place, "changes a tensor in place"),
    (changes_its_row, "changes a tensor in place"),
    (adds_up, "changes in place a tensor"),
    (by_number, "as a number"),
    (by_size, "as a number, or as a size"),
    (by_truth, "as a number|data-dependent"),
    (lambda shared, given: [torch.nn.functional.dropout(given[0])], "draws random numbers"),
    (lambda shared, given: [given[0] + torch.randn(4)], "draws random numbers"),
    (lambda shared, given: [given[0][:2]], r"gives torch.float32\[2\]"),
    (lambda shared, given: [given[0].double()], r"gives torch.float64\[4\]"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_what_cannot_be_run_for_many_calls_is_refused(function: Function, message: str) -> None:
    with pytest.raises(Refused, match=f"walk .*({message})"):
        parts_of(function)


def test_gradients_where_there_were_none_are_refused() -> None:
    with pytest.raises(Refused, match="had none when it was watched"):
        parts_of(lambda shared, given: [given[0] * 2], buffer=Buffer((4,), torch.float32, torch.device("cpu"), False))


def test_rows_made_from_nothing_have_a_symbolic_number() -> None:
    def starts(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        state = torch.zeros(4)
        for weight in (shared[0], shared[0].t()):
            state = torch.tanh(weight @ (state + given[0]))
        return [torch.where(state > 0, state, given[0].new_full((4,), 2.0))]

    recursion = Recursion((Cell("walk", starts, (0,), (), (1,)),), (ROW, ROW), (WEIGHT, TABLE), (0,), (1,))
    partition = Invocation(recursion).partition([WEIGHT, TABLE], [torch.randn(3, 4, requires_grad=True)])
    made = {name: writing_of(partition.cells[0], recursion, name) for name in PARTS}
    for writing in made.values():
        assert writing is not None
        assert str(_COUNTS[0]) not in writing.prepared.graph.code

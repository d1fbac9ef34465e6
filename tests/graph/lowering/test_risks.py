"""Within which elements of inputs, and which of their sizes, no operation of a graph raises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.graph.generalize.test_generalize import plan_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.lower import lower
from torchjanus.graph.lowering.risks import cannot_fail_within, risks_of


def lowered(fn: Any) -> Lowered:
    """Of a function of a table of 12 rows, and of numbers that are more or less at each call."""
    table = SimpleNamespace(rows=torch.randn(12, 4))
    runs = [(table, torch.zeros(2, length, dtype=torch.int64)) for length in (3, 5, 6)]
    return lower(plan_of(fn, runs).program)


def given(made: Lowered, length: int, number: int = 0) -> dict[int, torch.Tensor]:
    """Inputs for the graph, by number."""
    found = {}
    for index, entry in enumerate(made.program.inputs):
        words = entry.example.dtype is torch.int64
        found[index] = torch.full((2, length), number) if words else torch.randn(12, 4)
    return found


@pytest.mark.parametrize(
    ("fn", "least", "most"),
    [
        (lambda t, x: t.rows[torch.arange(x.shape[1])], 3, 12),
        (lambda t, x: t.rows[torch.arange(x.shape[1] - 1)], 3, 13),
        (lambda t, x: torch.embedding(t.rows, torch.arange(2, x.shape[1] + 2).unsqueeze(0)), 3, 10),
        (lambda t, x: t.rows[torch.arange(4) + x.shape[1]], 3, 8),
        (lambda t, x: t.rows[torch.arange(3) - 5 + x.shape[1]], 5, 14),
        (lambda t, x: t.rows[x.float().argmax(1)], 3, 12),
    ],
)
def test_positions_that_follow_from_sizes(fn: Any, least: int, most: int) -> None:
    made = lowered(fn)
    limits = cannot_fail_within(made, (), ())
    assert limits is not None
    held = [length for length in range(3, 20) if limits.hold({n: given(made, length)[n] for n in limits.inputs})]
    assert held == [*range(least, min(most, 19) + 1)]
    for length in range(3, 16):
        table = SimpleNamespace(rows=torch.randn(12, 4))
        try:
            fn(table, torch.zeros(2, length, dtype=torch.int64).index_fill(1, torch.tensor([length - 1]), 1))
        except IndexError:
            assert length not in held


def test_elements_and_sizes_are_both_asked() -> None:
    made = lowered(lambda t, x: t.rows[x] + t.rows[torch.arange(x.shape[1])])
    limits = cannot_fail_within(made, (), ())
    assert limits is not None
    cases = [(12, 11, True), (13, 11, False), (12, 12, False), (5, -1, False)]
    for length, number, expected in cases:
        assert limits.hold(given(made, length, number)) is expected


@pytest.mark.parametrize(
    "fn",
    [
        lambda t, x: t.rows[torch.arange(x.shape[1]) - x.shape[1]],
        lambda t, x: t.rows[torch.arange(0, x.shape[1], 2)],
        lambda t, x: t.rows[torch.arange(x.shape[1]) * 2],
    ],
)
def test_what_may_fail_in_other_ways_is_open(fn: Any) -> None:
    made = lowered(fn)
    assert risks_of(made).open
    assert cannot_fail_within(made, (), ()) is None


def test_nothing_is_asked_of_sizes_while_it_is_found_out() -> None:
    made = lowered(lambda t, x: t.rows[torch.arange(x.shape[1])])
    assert risks_of(made).sizes
    (place,) = [n for n, entry in enumerate(made.program.inputs) if any(one is not None for one in entry.symbols)]
    node = [node for node in made.graph.graph.nodes if node.op == "placeholder"][place]
    env = next(size for size in node.meta["val"].size() if isinstance(size, torch.SymInt)).node.shape_env
    asked = len(env.guards)
    cannot_fail_within(made, (), ())
    assert len(env.guards) == asked


def test_an_unused_lookup_that_cannot_fail_is_not_lost() -> None:
    def step(table: Any, x: torch.Tensor) -> torch.Tensor:
        table.rows.index_select(0, x.float().argmax(1))
        return table.rows * 2

    made = lowered(step)
    assert not risks_of(made, (), ()).lost
    unknown = lowered(lambda t, x: (t.rows.index_select(0, x.float().round().long()[0]), t.rows * 2)[1])
    assert risks_of(unknown, (), ()).lost

"""Which dimensions change from run to run, which change together, and how strides follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.graph.generalize.test_generalize import plan_of, texts
from torchjanus.graph.ir.dimensions import STRIDES, Split, dimensions_of, geometries, key_of
from torchjanus.graph.ir.program import Formula, Symbol
from torchjanus.host.assumption import Condition
from torchjanus.host.tensor_assumptions import TensorKind
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.events import Trace


def look(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sum() + y.sum()


def traces(shapes: Sequence[Any]) -> list[Trace]:
    return [watch_call(look, (), (torch.ones(a), torch.ones(b)), {})[1] for a, b in shapes]


def symbols(shapes: Sequence[Any], seen: Sequence[Any] = ()) -> list[list[str]]:
    runs = traces(shapes)
    before = [geometries(trace) for trace in traces(seen)]
    made = dimensions_of(runs, [*before, *map(geometries, runs)], frozenset())
    return [[f"{access_path}.shape[{dim}]" for access_path, dim in members] for members in made.symbols]


def test_figure_4_of_the_paper() -> None:
    """(4, 8) and (3, 8) give (?, 8)."""
    plan = plan_of(lambda x: x * 2, [(torch.ones(4, 8),), (torch.ones(3, 8),)])
    assert "x is float32[?, 8]" in texts(plan, TensorKind)
    (kind,) = (a for a in plan.assumptions if isinstance(a, TensorKind))
    for shape, held in (((2, 8), True), ((6, 8), True), ((4, 7), False), ((4, 8, 1), False)):
        assert kind.holds((torch.ones(shape),), {}) is held
    assert texts(plan, Condition) == ["(x.shape[0] >= 2) is True"]


def test_equal_sizes_are_constant() -> None:
    assert symbols([((4, 8), 3)] * 3) == []


def test_what_changes_together_is_one_symbol() -> None:
    assert symbols([((4, 8), 4), ((3, 8), 3)]) == [["x.shape[0]", "y.shape[0]"]]


def test_what_changes_alone_is_a_symbol_of_its_own() -> None:
    assert symbols([((4, 8), 4), ((3, 9), 4)]) == [["x.shape[0]"], ["x.shape[1]"]]
    assert symbols([((4, 8), 4), ((3, 8), 5)]) == [["x.shape[0]"], ["y.shape[0]"]]


def test_sizes_that_were_equal_by_chance_are_not_one_symbol() -> None:
    assert symbols([((5, 5), 4), ((3, 5), 4)]) == [["x.shape[0]"]]


def test_earlier_runs_count() -> None:
    assert symbols([((4, 8), 3)] * 3, seen=[((5, 8), 3)]) == [["x.shape[0]"]]
    assert symbols([((4, 8), 4), ((3, 8), 3)], seen=[((5, 8), 4)]) == [["x.shape[0]"], ["y.shape[0]"]]


def test_a_tensor_that_is_the_very_same_is_constant() -> None:
    weight = torch.ones(3)
    runs = [watch_call(look, (), (torch.ones(n), weight), {})[1] for n in (2, 3, 4)]
    made = dimensions_of(runs, [geometries(run) for run in runs], frozenset())
    assert [[str(o) for o, _ in members] for members in made.symbols] == [["x"]]


@pytest.mark.parametrize(
    ("make", "strides"),
    [
        (lambda n: torch.ones(n, 8), (8, 1)),
        (lambda n: torch.ones(8, n), ((1,), 1)),
        (lambda n: torch.ones(2, n, 3), ((1, 2), 3, 1)),
        (lambda n: torch.ones(8, n).t(), (1, (0,))),
        (lambda n: torch.ones(n, 3, 4, 4).to(memory_format=torch.channels_last), (48, 1, 12, 3)),
        (lambda n: torch.ones(9, 9)[:, :n], (9, 1)),
        (lambda n: torch.ones(n, 1), (1, 1)),
    ],
    ids=["rows", "columns", "middle", "transposed", "channels last", "slice", "one column"],
)
def test_strides_follow(make: Any, strides: Any) -> None:
    plan = plan_of(lambda x: x * 2, [(make(n),) for n in (3, 5, 4)])
    (entry,) = plan.program.inputs
    assert entry.strides == strides
    (kind,) = (a for a in plan.assumptions if isinstance(a, TensorKind))
    assert kind.holds((make(7),), {})
    assert not kind.holds((make(7)[..., ::2],), {})


@pytest.mark.parametrize("counts", [(5, 0, 0), (1, 0, 0), (4, 1, 1), (0, 3, 0)])
def test_strides_follow_where_only_one_run_had_elements(counts: tuple[int, ...]) -> None:
    """``nonzero()`` gives transposed rows: its strides follow the number of elements down to none."""
    plan = plan_of(lambda x: x * 2, [(torch.ones(9)[:n].nonzero(),) for n in counts])
    (entry,) = plan.program.inputs
    assert entry.strides == (1, (0,))


def test_strides_of_no_order_are_split() -> None:
    with pytest.raises(Split) as raised:
        plan_of(lambda x: x * 2, [(torch.ones(4, 5),), (torch.ones(4, 3).t(),)])
    assert [part for _, part in raised.value.parts] == [STRIDES]


def test_what_is_split_is_distinguished_by_its_parts() -> None:
    one, other = traces([((4, 8), 4), ((3, 8), 4)])
    (token, *_) = geometries(one)
    assert key_of(one, [(token, 0)]) == (4,) != key_of(other, [(token, 0)])
    assert key_of(one, [(token, 1)]) == key_of(other, [(token, 1)])


def test_arithmetic_with_sizes_is_the_graphs() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return x.view(n * 2, -1) / n * (1.0 / n)

    plan = plan_of(step, [(torch.ones(n, 4),) for n in (3, 5)])
    view = plan.program.nodes[0]
    assert isinstance(view.args[1], Formula)
    assert view.args[1].args == (Symbol(0), 2)
    assert plan.program.nodes[1].args[1] == Symbol(0)
    assert [str(slot) for slot in plan.slots] == ["(1.0 / x.shape[0])"]


def test_the_largest_sizes_are_the_examples() -> None:
    plan = plan_of(lambda x: x * 2, [(torch.ones(n, 4),) for n in (3, 7, 2)])
    assert [dimension.hint for dimension in plan.program.dimensions] == [7]

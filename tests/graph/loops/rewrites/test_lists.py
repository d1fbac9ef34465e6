"""Lists of tensors from before the call, merged into the rows of one tensor: when that can be, and what is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.graph.loops.rewrites.lists import lengths_of, lists_as_rows, rows_of
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.events import Trace


def run(step: Any, *args: Any) -> Trace:
    return watch_call(step, (), args, {})[1]


def rows(count: int) -> list[torch.Tensor]:
    return [torch.full((3,), float(n)) for n in range(count)]


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("count", [1, 4])
def test_the_elements_are_rows_of_a_new_tensor(kind: type, count: int) -> None:
    elements = kind(rows(count))
    made = rows_of(elements)
    assert torch.equal(made, torch.stack(list(elements)))
    made.add_(1)
    assert elements[0][0] == 0  # it has memory of its own


@pytest.mark.parametrize(
    "container",
    [
        [],
        (),
        {0: torch.ones(3)},
        [torch.ones(3), 1.0],
        [torch.ones(3), torch.ones(2)],
        [torch.ones(3), torch.ones(3, dtype=torch.float64)],
        [torch.ones(3, 2).t()],
        [torch.ones(3, requires_grad=True)],
        [torch.nn.Parameter(torch.ones(3))],
    ],
    ids=["empty", "empty tuple", "no list", "number", "sizes", "dtypes", "gaps", "gradients", "subclass"],
)
def test_elements_that_cannot_be_rows(container: Any) -> None:
    with pytest.raises(TypeError):
        rows_of(container)


def sums(xs: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(3)
    for x in xs:
        total = total + x * 2
    return total


def test_a_run_through_a_list_is_one_through_rows_for_any_length() -> None:
    for count in (2, 5):
        trace = run(sums, rows(count))
        assert lengths_of(trace) == ()
        made = lists_as_rows(trace)
        assert made is not trace
        assert lengths_of(made) == (count,)


@pytest.mark.parametrize("count", [0, 1])
def test_a_list_of_fewer_than_two_stays_one(count: int) -> None:
    trace = run(sums, rows(count))
    assert lists_as_rows(trace) is trace


def changes(xs: list[torch.Tensor]) -> None:
    for x in xs:
        x.add_(1)


def returns(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x if n else x * 2 for n, x in enumerate(xs)]


@pytest.mark.parametrize("step", [changes, returns])
def test_elements_that_are_more_than_arguments_stay_elements(step: Any) -> None:
    assert lengths_of(lists_as_rows(run(step, rows(4)))) == ()


def test_a_run_that_computes_nothing_is_itself() -> None:
    trace = run(len, rows(3)) if False else run(lambda xs: len(xs), rows(3))
    assert lists_as_rows(trace) is trace


def test_elements_of_different_sizes_stay_elements() -> None:
    assert lengths_of(lists_as_rows(run(lambda xs: sum(x.sum() for x in xs), [torch.ones(2), torch.ones(3)]))) == ()

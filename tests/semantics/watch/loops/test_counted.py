"""Loops whose trip count is a number or a size: what a watch records of their iterations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.records import LoopInstance


def loops(step: Any, *args: Any) -> list[LoopInstance]:
    return watch_call(step, (), args, {})[1].loop_instances


def ranged(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = torch.sin(x)
    return x


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_loop_over_a_range_has_as_many_iterations_as_its_number(count: int) -> None:
    (found,) = loops(ranged, torch.ones(2), count)
    assert len(found.starts) == count
    assert str(found.count) == "n"
    assert list(found.starts) == sorted(found.starts)
    assert found.starts[-1] < found.end


def test_a_loop_of_no_iterations_is_none() -> None:
    assert loops(ranged, torch.ones(2), 0) == []


def over_rows(xs: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(2)
    for x in xs:
        total = total + x
    return total


def test_a_loop_over_a_tensor_has_as_many_iterations_as_rows() -> None:
    (found,) = loops(over_rows, torch.ones(4, 2))
    assert len(found.starts) == 4
    assert found.unpinned
    assert str(found.count) == "xs.shape[0]"


def from_one(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(1, n):
        x = torch.sin(x)
    return x


def downwards(xs: torch.Tensor, n: int) -> torch.Tensor:
    total = torch.zeros(2)
    for t in range(n - 1, -1, -1):
        total = torch.sin(total + xs[t])
    return total


def test_the_first_number_of_a_range() -> None:
    (found,) = loops(from_one, torch.ones(2), 5)
    assert (found.begins, len(found.starts)) == (1, 4)


def test_a_range_that_goes_down() -> None:
    found = loops(downwards, torch.ones(4, 2), 4)
    assert [len(one.starts) for one in found] == [4]
    assert found[0].back


def zipped(xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(2)
    for x, y in zip(xs, ys):
        total = torch.sin(total + x * y)
    return total


def enumerated(xs: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(2)
    for n, x in enumerate(xs):
        total = torch.sin(total + x)
    return total


def test_combinations_of_iterables() -> None:
    assert [len(one.starts) for one in loops(zipped, torch.ones(3, 2), torch.ones(3, 2))] == [3]
    assert [len(one.starts) for one in loops(enumerated, torch.ones(5, 2))] == [5]


def nested(x: torch.Tensor, n: int, m: int) -> torch.Tensor:
    for _ in range(n):
        for _ in range(m):
            x = torch.sin(x)
    return x


def test_loops_within_loops_are_records_of_their_own() -> None:
    found = loops(nested, torch.ones(2), 3, 2)
    assert sorted(len(one.starts) for one in found) == [2, 2, 2, 3]


def computes(x: torch.Tensor, n: int) -> torch.Tensor:
    rate = 1.0
    for _ in range(n):
        rate = rate * 0.5 if rate > 0.2 else rate
        x = x * rate
    return x


def constant(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = torch.sin(x)
    return x


def test_iterations_that_compute_with_numbers_of_their_own_are_not_alike() -> None:
    assert all(one.asked or one.recurrences is not None for one in loops(computes, torch.ones(2), 5))


def test_a_constant_number_of_iterations_is_no_count() -> None:
    assert loops(constant, torch.ones(2)) == []


def leaves_early(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        if i == 2:
            break
        x = torch.sin(x)
    return x


def test_results_of_loops_are_real() -> None:
    x = torch.ones(2)
    for step, args in ((ranged, (3,)), (from_one, (4,)), (nested, (2, 3)), (leaves_early, (6,)), (computes, (4,))):
        result, trace = watch_call(step, (), (x, *args), {})
        assert isinstance(trace, Trace)
        assert torch.equal(result, step(x, *args))

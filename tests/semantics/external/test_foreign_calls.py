"""Objects of libraries that are not watched: which calls on them the host makes, and where arrays meet tensors."""

from __future__ import annotations

import collections
import decimal
import random
from typing import Any

import numpy as np
import pytest
import torch

from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import Extern, name_of
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead


def watched(step: Any, *args: Any) -> tuple[Any, Trace]:
    return watch_call(step, (), args, {})


def names(trace: Trace) -> list[str]:
    return [name_of(event.func).rpartition(".")[2] for event in trace.events if isinstance(event, Extern)]


def test_operators_with_a_foreign_operand_are_made_by_the_host() -> None:
    price = decimal.Decimal("1.5")

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * float(price + price)

    result, trace = watched(step, torch.ones(1))
    assert result.item() == 3.0 and trace.refusals == []
    assert len(names(trace)) >= 1


def test_methods_are_called_and_not_looked_up() -> None:
    source = random.Random(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        draw = source.uniform
        return x * draw(1.0, 2.0)

    result, trace = watched(step, torch.ones(1))
    assert result.item() == pytest.approx(random.Random(3).uniform(1.0, 2.0)) and trace.refusals == []
    assert names(trace) == ["uniform"]


def test_a_missing_attribute_is_asked_for_again() -> None:
    array = np.ones(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * array.nothing  # type: ignore[attr-defined,no-any-return]
        except AttributeError:
            return x * 2

    result, trace = watched(step, torch.ones(1))
    assert result.item() == 2.0 and "hasattr" in names(trace)


def test_an_array_becomes_a_tensor() -> None:
    array = np.arange(3.0)

    def step(x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(array)

    result, trace = watched(step, torch.ones(3))
    assert result.tolist() == [1.0, 2.0, 3.0] and trace.refusals == []
    found = [event for event in trace.events if isinstance(event, HeapRead) and event.kind == "tensor"]
    assert len(found) == 2  # the argument, and the tensor on the array's memory


@pytest.mark.parametrize("step", [lambda x, a: a * x, lambda x, a: a + x, lambda x, a: a - x])
def test_numpy_is_asked_first_where_the_array_comes_first(step: Any) -> None:
    def guarded(x: torch.Tensor, array: Any) -> Any:
        try:
            return step(x, array)
        except TypeError:
            return x * 2

    result, trace = watched(guarded, torch.ones(3), np.ones(3))
    assert isinstance(result, torch.Tensor | np.ndarray)
    assert "array-operator" in [one.reason for one in trace.refusals]


def test_numbers_of_numpy_beside_tensors_are_numbers() -> None:
    def step(x: torch.Tensor, rate: Any) -> torch.Tensor:
        return x * rate

    result, trace = watched(step, torch.ones(3), np.float64(0.5))
    assert result.tolist() == [0.5] * 3
    assert "internal-fault" not in [one.reason for one in trace.refusals]


def test_elements_of_a_foreign_iterator_are_taken_one_by_one() -> None:
    def batches() -> Any:
        yield from (torch.ones(1), torch.ones(1) * 2)

    source = batches()

    def step() -> torch.Tensor:
        return next(source) + next(source)

    result, trace = watched(step)
    assert result.item() == 3.0
    assert len(names(trace)) == 2 and trace.refusals == []


def test_the_end_of_a_foreign_iterator_is_the_programs() -> None:
    source = iter(collections.deque([1.0]))

    def step(x: torch.Tensor) -> torch.Tensor:
        for value in source:
            x = x * value
        return x

    result, _ = watched(step, torch.ones(1))
    assert result.item() == 1.0
    with pytest.raises(StopIteration):
        watched(lambda: next(source))


def test_changes_of_arrays_are_made_in_order() -> None:
    array = np.zeros(2)

    def step(x: torch.Tensor) -> float:
        array[0] = 3.0
        return float(array.sum())

    result, trace = watched(step, torch.ones(1))
    assert result == 3.0 and array.tolist() == [3.0, 0.0]
    assert names(trace)[0] in ("setitem", "__setitem__")

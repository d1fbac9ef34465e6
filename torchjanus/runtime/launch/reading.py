"""Reads the numbers that the host needs from small input tensors before the graph runs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.graph.generalize.generalize import HostBatch

__all__ = ["reader"]

_ON_NUMBERS: dict[Callable[..., Any], Callable[[Any, Any], Any]] = {
    torch.add: operator.add,
    torch.sub: operator.sub,
    torch.mul: operator.mul,
}


def reader(batch: HostBatch) -> Callable[..., list[float | int]]:
    """Return a function that reads all numbers of a batch from their tensors.

    Usually they are equal integers (Adam's step count, for each parameter). Then Python applies the batch's steps to
    the integer itself. Otherwise, and on devices where each read would synchronize, the tensors are stacked, and the
    steps are operations on that tensor. Each of these costs as much as reading a dozen numbers.
    """
    steps = batch.steps
    item = torch._C.TensorBase.item

    def read(*tensors: torch.Tensor) -> list[float | int]:
        if tensors[0].is_cpu:
            found = list(map(item, tensors))
            if not steps:
                return found
            first = found[0]
            if found.count(first) == len(found):
                made = _counted(first, tensors[0].dtype, steps)
                if made is not None:
                    return [made] * len(found)
        with torch.no_grad():
            stacked = torch.stack(tensors)
            for func, amount in steps:
                stacked = func(stacked, amount)
            values: list[float | int] = stacked.tolist()
        return values

    return read


def _counted(number: float, dtype: torch.dtype, steps: tuple[tuple[Callable[..., Any], float | int], ...]) -> Any:
    """Return what ``steps`` make of a number; None where Python's arithmetic may differ from the tensor's.

    They agree for integers that the dtype represents exactly. A zero may have either sign, and NaN equals nothing.
    """
    if not dtype.is_floating_point or not number:
        return None
    exact = 2 / torch.finfo(dtype).eps
    if not number.is_integer() or abs(number) > exact:
        return None
    for func, amount in steps:
        number = _ON_NUMBERS[func](number, amount)
        if not (number.is_integer() and float(amount).is_integer() and max(abs(number), abs(amount)) <= exact):
            return None
    return number

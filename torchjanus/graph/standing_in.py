"""Functions that stand for others in a graph: those of which tracing would lose a check, or cannot trace at all.

Each gives what the other gives, and raises where that one does. Knows nothing of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["OF_NUMBERS", "stand_in"]


def stand_in(func: Any) -> Any:
    """What stands for ``func`` in a graph."""
    return _STANDING_IN.get(func, func) if isinstance(func, _NATIVE) else func


def _tensor(data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """``torch.tensor`` of numbers, some of which are 0-d tensors here: of float64 for a float, of int64 for an int."""
    numbers = list(_numbers(data))
    dtype = dtype or _dtype_of(numbers)
    device = options.get("device")
    with torch.no_grad():
        parts = [
            number.to(device=device, dtype=dtype, copy=True)
            if isinstance(number, torch.Tensor)
            else torch.tensor(number, dtype=dtype, device=device)
            for number in numbers
        ]
        made = torch.stack(parts).reshape(_shape(data))
    return made.requires_grad_(options.get("requires_grad", False))


def _full(size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """``torch.full`` with a number that is a 0-d tensor here."""
    zeros = torch.zeros(size, dtype=dtype or _dtype_of([fill_value]), **options)
    with torch.no_grad():
        return zeros.copy_(fill_value)


def _dtype_of(numbers: list[Any]) -> torch.dtype:
    floats = (n.is_floating_point() if isinstance(n, torch.Tensor) else isinstance(n, float) for n in numbers)
    return torch.get_default_dtype() if any(floats) else torch.int64


def _numbers(data: Any) -> Iterator[Any]:
    if isinstance(data, list | tuple):
        for part in data:
            yield from _numbers(part)
    else:
        yield data


def _shape(data: Any) -> tuple[int, ...]:
    return (len(data), *_shape(data[0])) if isinstance(data, list | tuple) else ()


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Traced, ``one_hot`` compares with a range, whatever the classes are; to scatter raises as it should."""
    if num_classes < 0:
        return torch.nn.functional.one_hot(tensor, num_classes)
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


_NATIVE = type(torch.nn.functional.one_hot)
# What stands for functions that are given numbers which the graph computes.
OF_NUMBERS: dict[Any, Callable[..., Any]] = {torch.tensor: _tensor, torch.full: _full}
_STANDING_IN: dict[Any, Callable[..., Any]] = {torch.nn.functional.one_hot: _one_hot}

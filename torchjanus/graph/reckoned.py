"""The numbers of all rounds of a loop as one tensor, as Python computes them: an operator that stands in a graph; and
what fills tensors with one of them.

Each is made of those before it by Python's own arithmetic, so it is eager's to the last bit. Knows forms (see
``trace.reckoning``), not loops.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from torchjanus.graph.loop_op import TAGS, define
from torchjanus.trace.reckoning import Form, column, kind_of

__all__ = ["full", "full_like", "new_full", "reckoned", "tensor"]


def reckoned(form: str, count: int, skipped: int, *given: float) -> torch.Tensor:
    """A row of ``skipped`` numbers that nobody asks for, and behind them the ``count`` numbers of a form, in its text:
    of float64 where they are floats, else of int64. ``given``: the numbers of the call that the form speaks of."""
    rows = [torch.full((), number, dtype=torch.float64) for number in given]
    made: torch.Tensor = _RECKONED(form, count, skipped, torch.stack(rows) if rows else torch.empty(0))
    return made


@lru_cache(256)
def _form(text: str) -> Form:
    found: Form = ast.literal_eval(text)
    return found


def _dtype(text: str) -> torch.dtype:
    return torch.float64 if kind_of(_form(text)) is float else torch.int64


def _run(form: str, count: int, skipped: int, given: torch.Tensor) -> torch.Tensor:
    return torch.tensor([*[0] * skipped, *column(_form(form), count, given.tolist())], dtype=_dtype(form))


def _shapes(form: str, count: Any, skipped: int, given: torch.Tensor) -> torch.Tensor:
    return torch.empty([count + skipped], dtype=_dtype(form))


_RECKONED = define("reckoned", "(str form, SymInt count, int skipped, Tensor given) -> Tensor", _run, _shapes, TAGS)


def full(size: Sequence[int], number: torch.Tensor, dtype: torch.dtype | None = None, **given: Any) -> torch.Tensor:
    """``torch.full`` of a number that a tensor holds."""
    wanted = dtype if dtype is not None else torch.get_default_dtype() if number.is_floating_point() else number.dtype
    return number.to(wanted).expand(tuple(size)).clone(memory_format=torch.contiguous_format)


def full_like(like: torch.Tensor, number: torch.Tensor, dtype: torch.dtype | None = None, **given: Any) -> torch.Tensor:
    """``torch.full_like`` of a number that a tensor holds."""
    return torch.empty_like(like, dtype=dtype, requires_grad=False).copy_(number)


def new_full(
    like: torch.Tensor, size: Sequence[int], number: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``Tensor.new_full`` of a number that a tensor holds."""
    return full(size, number, like.dtype if dtype is None else dtype)


def tensor(number: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.tensor`` of a number that a tensor holds."""
    return full((), number, dtype)

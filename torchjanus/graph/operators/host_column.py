"""The numbers of all iterations of a loop as one tensor: an operator that computes a recurrence by Python's arithmetic.

The numbers are bitwise those of eager. Works on forms (see ``trace.loops.recurrences``), not on loops.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import torch

from torchjanus.graph.operators.loop_op import TAGS, define
from torchjanus.trace.loops.recurrences import Form, column, kind_of

__all__ = ["host_column"]


def host_column(form: str, count: int, skipped: int, *given: float | torch.Tensor) -> torch.Tensor:
    """Return ``skipped`` zeros and then the ``count`` numbers of a form, given as text; float64 for floats, else int64.

    ``given``: the numbers of the call that the form refers to, as numbers or one-element tensors."""
    rows = [
        number.detach().to(torch.float64)
        if isinstance(number, torch.Tensor)
        else torch.full((), number, dtype=torch.float64)
        for number in given
    ]
    made: torch.Tensor = _COLUMNS(form, count, skipped, torch.stack(rows) if rows else torch.empty(0))
    return made


@lru_cache(256)
def _form(text: str) -> Form:
    found: Form = ast.literal_eval(text)
    return found


def _dtype(text: str) -> torch.dtype:
    return torch.float64 if kind_of(_form(text)) is float else torch.int64


@lru_cache(64)
def _numbers(form: str, count: int, given: tuple[str, ...]) -> list[Any]:
    """Return the numbers of a form, cached: an optimizer starts each call with the same ones.

    ``given`` are texts, which distinguish -0.0 from 0.0."""
    return column(_form(form), count, list(map(float, given)))


def _run(form: str, count: int, skipped: int, given: torch.Tensor) -> torch.Tensor:
    numbers = _numbers(form, count, tuple(map(repr, given.tolist())))
    return torch.tensor([*[0] * skipped, *numbers], dtype=_dtype(form))


def _shapes(form: str, count: Any, skipped: int, given: torch.Tensor) -> torch.Tensor:
    return torch.empty([count + skipped], dtype=_dtype(form))


_COLUMNS = define("host_column", "(str form, SymInt count, int skipped, Tensor given) -> Tensor", _run, _shapes, TAGS)

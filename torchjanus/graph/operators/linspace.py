"""``torch.linspace`` with a dynamic number of steps: an operator, since torch's own specialises on the number.

The values are those of torch.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.graph.operators.loop_op import TAGS, define

__all__ = ["linspace"]


def linspace(
    start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, requires_grad: bool = False, **options: Any
) -> torch.Tensor:
    """``torch.linspace``, where ``steps`` may be symbolic."""
    plain = all(isinstance(one, int | float) for one in (start, end)) and not requires_grad
    if not isinstance(steps, torch.SymInt) or not plain or any(value is not None for value in options.values()):
        return torch.linspace(start, end, steps, dtype=dtype, requires_grad=requires_grad, **options)
    wanted = torch.get_default_dtype() if dtype is None else dtype
    made: torch.Tensor = _EVENLY(start, end, steps, str(wanted).removeprefix("torch."))
    return made


def _run(start: Any, end: Any, steps: int, kind: str) -> torch.Tensor:
    return torch.linspace(start, end, steps, dtype=getattr(torch, kind))


def _shapes(start: Any, end: Any, steps: Any, kind: str) -> torch.Tensor:
    return torch.empty([steps], dtype=getattr(torch, kind))


_EVENLY = define("evenly", "(Scalar start, Scalar end, SymInt steps, str kind) -> Tensor", _run, _shapes, TAGS)

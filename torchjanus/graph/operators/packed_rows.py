"""Moves rows between a padded batch and a packed sequence, each direction as one operator of the graph.

ATen's operations raise where an index is out of range, which compiled code may not; the callers ensure valid indices.
No row occurs twice, so the backward moves gradients and adds nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.graph.operators.loop_op import TAGS, define

__all__ = ["placed", "taken"]


def taken(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the rows at these places."""
    made: torch.Tensor = _Taken.apply(rows, places)  # type: ignore[no-untyped-call]
    return made


def placed(rows: torch.Tensor, places: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Return ``rows``, which require no gradients, with ``data`` at these places."""
    made: torch.Tensor = _Placed.apply(rows, places, data)  # type: ignore[no-untyped-call]
    return made


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places)
        ctx.sizes = rows.size()
        made: torch.Tensor = _TAKE(rows, places)
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return _PLACE(tangent.new_zeros(ctx.sizes), places, tangent), None


class _Placed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, places: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places)
        made: torch.Tensor = _PLACE(rows, places, data)
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return None, None, _TAKE(tangent, places)


def _take(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return rows.index_select(0, places)


def _place(rows: torch.Tensor, places: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    return rows.index_copy(0, places, data)


def _shape_taken(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return rows.new_empty((places.size(0), *rows.size()[1:]))


def _shape_placed(rows: torch.Tensor, places: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(rows.size())


_TAKE = define("taken", "(Tensor rows, Tensor places) -> Tensor", _take, _shape_taken, TAGS)
_PLACE = define("placed", "(Tensor rows, Tensor places, Tensor data) -> Tensor", _place, _shape_placed, TAGS)

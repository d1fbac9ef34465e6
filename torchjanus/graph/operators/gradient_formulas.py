"""Functions of torch whose gradients autograd computes by other formulas for fake tensors than for real ones.

Bits differ: ``prod`` looks for zeros, the value of ``masked_fill`` gets the sum of what the mask selects, all elements
but the extremal ones get positive zeros. Here the graph has eager's formula.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.graph.operators.loop_op import TAGS, define
from torchjanus.graph.operators.recurrent import autograd_within

__all__ = ["masked_fill", "masked_fill_", "maximum", "minimum", "prod"]


def _plain(*tensors: Any) -> bool:
    """Whether autograd needs no gradient of the first tensor, or it is one that these formulas are not for."""
    needed = torch.is_grad_enabled() and isinstance(tensors[0], torch.Tensor) and tensors[0].requires_grad
    return (
        not needed
        or torch._C._functorch.get_dynamic_layer_stack_depth() > 0
        or any(not isinstance(one, torch.Tensor) or one.device.type != "cpu" for one in tensors)
    )


def masked_fill(input: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    """Return the replacement for ``torch.masked_fill``."""
    if _plain(value, input, mask):
        return torch.masked_fill(input, mask, value)
    made: torch.Tensor = _MaskedFill.apply(input, mask, value, False)  # type: ignore[no-untyped-call]
    return made


def masked_fill_(input: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    """Return the replacement for ``Tensor.masked_fill_``."""
    if _plain(value, input, mask):
        return input.masked_fill_(mask, value)
    made: torch.Tensor = _MaskedFill.apply(input, mask, value, True)  # type: ignore[no-untyped-call]
    return made


def prod(input: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Return the replacement for ``torch.prod``."""
    where = () if dim is None else (dim, keepdim)
    if _plain(input) or input.dim() == 0 or not isinstance(dim, int | None):
        return torch.prod(input, *where, dtype=dtype)
    return _Prod.apply(input, where, dtype)  # type: ignore[no-untyped-call]


def maximum(input: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement for ``torch.max``."""
    return _extremum(torch.max, input, args, kwargs)


def minimum(input: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement for ``torch.min``."""
    return _extremum(torch.min, input, args, kwargs)


def _extremum(function: Any, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args or kwargs or _plain(tensor):
        return function(tensor, *args, **kwargs)
    return _Extremum.apply(tensor, function)  # type: ignore[no-untyped-call]


class _Extremum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, function: Any) -> torch.Tensor:
        made: torch.Tensor = function(tensor)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tensor, made)
        return made

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor | None) -> Any:
        if tangent is None:
            return None, None
        tensor, found = ctx.saved_tensors
        mask = (tensor == found).logical_or_(tensor.isnan().logical_and_(found.isnan()))
        return tangent.new_zeros(tensor.size()).masked_fill(mask, tangent / mask.sum()), None


class _MaskedFill(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, mask: torch.Tensor, value: torch.Tensor, in_place: bool) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(mask)
        if in_place:
            ctx.mark_dirty(tensor)
            return tensor.masked_fill_(mask, value)
        return torch.masked_fill(tensor, mask, value)

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor | None) -> Any:
        (mask,) = ctx.saved_tensors
        if tangent is None:
            return None, None, None, None
        of_tensor = tangent.masked_fill(mask, 0) if ctx.needs_input_grad[0] else None
        return of_tensor, None, _MaskedSum.apply(tangent, mask), None  # type: ignore[no-untyped-call]


class _MaskedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.size = tensor.size()
        made: torch.Tensor = _MASKED_SUM(tensor, mask)
        return made

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return tangent.expand(ctx.size).masked_fill(mask.logical_not(), 0), None


class _Prod(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, where: tuple[Any, ...], dtype: torch.dtype | None) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tensor)
        ctx.options = where, dtype
        return torch.prod(tensor, *where, dtype=dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, tangent: torch.Tensor | None) -> Any:
        if tangent is None:
            return None, None, None
        (tensor,) = ctx.saved_tensors
        where, dtype = ctx.options
        return _PROD_BACKWARD(tangent, tensor, *(where or (None, False)), dtype), None, None


def _masked_sum(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tensor.masked_select(mask).sum()


def _masked_sum_shape(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(())


def _prod_backward(
    tangent: torch.Tensor, tensor: torch.Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    where = () if dim is None else (dim, keepdim)
    with torch.enable_grad(), autograd_within():
        leaf = tensor.detach().requires_grad_()
        (made,) = torch.autograd.grad(torch.prod(leaf, *where, dtype=dtype), leaf, tangent)
    out = torch.empty_like(tensor)
    return made if made.stride() == out.stride() else out.copy_(made)


def _prod_shape(
    tangent: torch.Tensor, tensor: torch.Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    return torch.empty_like(tensor)


_MASKED_SUM = define("masked_sum", "(Tensor tensor, Tensor mask) -> Tensor", _masked_sum, _masked_sum_shape, TAGS)
_PROD_BACKWARD = define(
    "prod_backward",
    "(Tensor tangent, Tensor tensor, int? dim, bool keepdim, ScalarType? dtype) -> Tensor",
    _prod_backward, _prod_shape, TAGS,
)  # fmt: skip

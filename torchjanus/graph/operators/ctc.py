"""``ctc_loss`` as one operator of the graph.

ATen saves for backward a tensor whose size depends on the longest target. Here the backward operator computes the loss
again instead, which gives gradients that are bitwise eager's.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.graph.operators.loop_op import TAGS, define
from torchjanus.graph.operators.recurrent import autograd_within

__all__ = ["ctc_loss"]

_NONE = 0
_REDUCTIONS = {"none": _NONE, "mean": 1, "sum": 2}  # ATen's numbers


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """Return the replacement for ``torch.nn.functional.ctc_loss``."""
    if log_probs.device.type != "cpu" or reduction not in _REDUCTIONS:
        return torch.nn.functional.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
        )
    lengths = (n if isinstance(n, torch.Tensor) else torch.tensor(n) for n in (input_lengths, target_lengths))
    made: torch.Tensor = _Loss.apply(log_probs, targets, *lengths, blank, _REDUCTIONS[reduction], zero_infinity)  # type: ignore[no-untyped-call]
    return made


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given[:4])
        ctx.words = given[4:]
        loss: torch.Tensor = _FORWARD(*given)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, tangent: torch.Tensor | None) -> Any:
        if tangent is None:
            return (None,) * 7
        return (_BACKWARD(*ctx.saved_tensors, *ctx.words, tangent), *(None,) * 6)


def _forward(*given: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.ctc_loss(*given).clone()


def _backward(log_probs: torch.Tensor, *given: Any) -> torch.Tensor:
    *words, tangent = given
    with torch.enable_grad(), autograd_within():
        leaf = log_probs.detach().requires_grad_()
        (made,) = torch.autograd.grad(torch.ctc_loss(leaf, *words), leaf, tangent)
    return made.contiguous()


def _forward_shapes(log_probs: torch.Tensor, *given: Any) -> torch.Tensor:
    batched, reduction = log_probs.dim() == 3, given[4]
    return log_probs.new_empty((log_probs.size(1),) if batched and reduction == _NONE else ())


def _backward_shapes(log_probs: torch.Tensor, *given: Any) -> torch.Tensor:
    return log_probs.new_empty(log_probs.size())


_GIVEN = """(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, int reduction,
bool zero_infinity""".replace("\n", " ")

_FORWARD = define("ctc_loss", f"{_GIVEN}) -> Tensor", _forward, _forward_shapes, TAGS)
_BACKWARD = define("ctc_loss_backward", f"{_GIVEN}, Tensor tangent) -> Tensor", _backward, _backward_shapes, TAGS)

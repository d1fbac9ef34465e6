"""What the nodes of a functional training loop call: values enter an iteration as its own tensors, and leave it again.

``training`` writes the programs with these calls. Each raises Refused where eager would do something else.
"""

from __future__ import annotations

import torch

from torchjanus.core.errors import Refused, refused

__all__ = [
    "enter", "enter_gradient", "gradient_before", "leave", "leave_gradient", "leave_none", "none_before", "put_back",
    "put_gradient", "values_of", "without_graph",
]  # fmt: skip


def values_of(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return what a tensor holds before the loop. Raises Refused if a gradient would flow into it."""
    if tensor.requires_grad != requires_grad or tensor.grad_fn is not None:
        raise _refused("changes a tensor that has a backward graph")
    return tensor.detach()


def enter(value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return a copy of the value, as a tensor of the iteration."""
    return value.detach().clone().requires_grad_(requires_grad)


def enter_gradient(tensor: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Set a copy of the gradient on the iteration's tensor, and return it."""
    own = gradient.clone()
    tensor.grad = own
    return own


def leave(tensor: torch.Tensor) -> torch.Tensor:
    """Return what the iteration's tensor holds at the end."""
    return tensor.detach()


def leave_gradient(tensor: torch.Tensor, *entered: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the iteration's tensor at the end. Raises Refused if this iteration did not compute it."""
    gradient = tensor.grad
    if gradient is None or any(one is gradient and not one._version for one in entered):
        raise _refused("gives no gradient to a parameter that it computes a loss of")
    return gradient.detach()


def leave_none(tensor: torch.Tensor) -> None:
    """Check that the iteration's tensor has no gradient at the end. Raises Refused."""
    if tensor.grad is not None:
        raise _refused("gives a gradient to a parameter in another way than by its loss")


def without_graph(tensor: torch.Tensor) -> None:
    """Check that a tensor that later code may differentiate has no backward graph. Raises Refused."""
    if tensor.requires_grad:
        raise _refused("leaves a tensor with a backward graph to what comes after it")


def gradient_before(tensor: torch.Tensor) -> torch.Tensor:
    """Return the gradient that the first iteration adds to: -0.0 if there is none."""
    if tensor.grad is None:
        return torch.full_like(tensor, -0.0, requires_grad=False)
    return tensor.grad.detach()


def none_before(tensor: torch.Tensor) -> None:
    """Check that there is no gradient before the first iteration. Raises Refused."""
    if tensor.grad is not None:
        raise _refused("begins with a gradient that other iterations do not begin with")


def put_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write the final value into the tensor."""
    with torch.no_grad():
        tensor.copy_(value)


def put_gradient(tensor: torch.Tensor, gradient: torch.Tensor, added: bool) -> None:
    """Set the final gradient; with ``added`` into the gradient tensor that was there."""
    if added and tensor.grad is not None:
        with torch.no_grad():
            tensor.grad.copy_(gradient)
    else:
        tensor.grad = gradient.detach()


def _refused(what: str) -> Refused:
    return refused(
        "loop-training", f"an iteration of the loop {what}", "It cannot be compiled once for all iterations."
    )

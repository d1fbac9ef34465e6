"""Placeholders: what a skeleton's calls of torch return in place of computed tensors.

A placeholder has a tensor's metadata (size, dtype, ...) and no contents. Where it is used outside of the mode of its
run (by another thread, by native code), the run diverges, and the placeholder becomes an ordinary tensor. It becomes
one, too, when the graph's result is put into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.errors import InternalFault
from torchjanus.runtime.coexecution.recording.events import Meta

__all__ = ["Owner", "Placeholder", "fill", "placeholder", "register", "unregister"]


class Owner(Protocol):
    """A run with placeholders."""

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether it is one of this run's."""
        ...

    def touched(self) -> None:
        """Make all its placeholders ordinary tensors, from whatever thread."""
        ...


_SET_CLASS: Callable[[object, type], None] = object.__dict__["__class__"].__set__
_owners: list[Owner] = []


def register(owner: Owner) -> None:
    """Ask the run, from now on, about placeholders that are used outside of its mode."""
    _owners.append(owner)


def unregister(owner: Owner) -> None:
    """Do not ask the run any more."""
    _owners.remove(owner)


class Placeholder(torch.Tensor):
    """A tensor without contents. It says that its class is ``torch.Tensor``; only ``type()`` knows better."""

    @property
    def __class__(self) -> type:
        return torch.Tensor

    @__class__.setter
    def __class__(self, kind: type) -> None:
        _SET_CLASS(self, kind)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        _resolve((args, kwargs))
        return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.is_grad_enabled() and any(_needs_gradient(leaf) for leaf in pytree.tree_leaves((args, kwargs))):
            # Autograd has recorded the placeholder already: the gradient would be lost.
            raise InternalFault(f"native code computes gradients ({func}) with a tensor of a co-executed step")
        _resolve((args, kwargs))
        return func(*args, **(kwargs or {}))


def _needs_gradient(leaf: Any) -> bool:
    return type(leaf) is Placeholder and leaf.requires_grad


def _resolve(tree: Any) -> None:
    for leaf in pytree.tree_leaves(tree):
        if type(leaf) is Placeholder:
            owner = next((one for one in list(_owners) if one.owns(leaf)), None)
            if owner is not None:
                owner.touched()
            if type(leaf) is Placeholder:
                raise InternalFault("a placeholder outlived the co-executed call that made it")


def placeholder(meta: Meta) -> torch.Tensor:
    """Return a new placeholder with this metadata."""
    return torch.Tensor._make_wrapper_subclass(
        Placeholder,
        meta.size,
        strides=meta.stride,
        dtype=meta.dtype,
        device=meta.device,
        requires_grad=meta.requires_grad,
    )


def fill(held: torch.Tensor, real: torch.Tensor) -> None:
    """Make the placeholder the tensor ``real``: the same object of Python, with everything that autograd knows of
    ``real``, which must not be used any more. Raises InternalFault where autograd has recorded the placeholder."""
    with torch._C.DisableTorchFunctionSubclass():
        if held.grad_fn is not None:
            raise InternalFault("a function of autograd, unseen, has given out a tensor of a co-executed step")
    kind = type(real)
    torch._C._swap_tensor_impl(held, real)
    held.__class__ = kind

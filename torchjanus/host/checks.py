"""Functions that generated guards call: the few checks that are not one expression."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchjanus.core.access_path import native_class
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.host.node_hooks import has_node_hooks

__all__ = ["BROKEN", "Hooks", "autocast_regions", "same_keys", "same_value"]

# What generated guards may raise where an access path does not exist. ArithmeticError: Python's arithmetic on numbers
# of the heap, which did not raise in the watched runs.
BROKEN = (KeyError, AttributeError, IndexError, TypeError, ValueError, NameError, ReferenceError, ArithmeticError)


class Hooks:
    """Tensors that must not have hooks.

    Registering a hook on a tensor or a node of autograd makes a RemovableHandle, and handles are numbered. As long as
    the next number stays the same there are no new hooks, so one number is checked instead of all tensors.
    """

    __slots__ = ("handle", "nodes_matter", "seen", "tensors")

    def __init__(self, tensors: tuple[torch.Tensor, ...], nodes_matter: bool) -> None:
        self.tensors = tensors
        self.nodes_matter = nodes_matter  # whether gradients are accumulated into those of the tensors
        self.handle = RemovableHandle
        self.seen = -1

    def registered(self) -> bool:
        """Whether any of them has a hook now. Keeps the count if none has."""
        count = self.handle.next_id
        if any(t._backward_hooks or getattr(t, "_post_accumulate_grad_hooks", None) for t in self.tensors):
            return True
        if self.nodes_matter and any(map(has_node_hooks, self.tensors)):
            return True
        self.seen = count
        return False


class LeafHooks:
    """Counts the leaves that have hooks: ``tensors``, and those that differ from call to call.

    A graph gives the gradients of all leaves together, so it would not keep the order in which eager calls the hooks of
    several."""

    __slots__ = ("_hooked", "_seen", "tensors")

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self.tensors = tensors
        self._seen = -1
        self._hooked = 0

    def are_several(self, *others: torch.Tensor) -> bool:
        """Whether more than one leaf has hooks."""
        count = RemovableHandle.next_id
        if count != self._seen or self._hooked > 1:
            self._hooked = sum(map(_has_hooks, self.tensors))
            self._seen = count
        return self._hooked + sum(map(_has_hooks, others)) > 1


def _has_hooks(leaf: torch.Tensor) -> bool:
    found = leaf._backward_hooks or getattr(leaf, "_post_accumulate_grad_hooks", None)
    return bool(found) or has_node_hooks(leaf)


def autocast_regions() -> tuple[tuple[str, torch.dtype, bool], ...]:
    """Return the autocast state: device type, dtype, and whether casts are cached, where autocast is enabled."""
    devices = (device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device))
    return tuple((d, torch.get_autocast_dtype(d), torch.is_autocast_cache_enabled()) for d in devices)


def same_value(now: Any, then: Any) -> bool:
    """Whether two constants have the same type and value; floats bitwise, NaN and the sign of zero included."""
    if type(now) is not type(then):
        return False
    if isinstance(now, float | complex):
        return repr(now) == repr(then)
    return bool(now == then)


def same_keys(container: Any, keys: tuple[Any, ...]) -> bool:
    """Whether a dictionary has these keys, or a set these elements, in this order. Compares tensors by identity."""
    native = native_class(type(container)) or type(container)  # below methods of the class that are written in Python
    if native.__len__(container) != len(keys):
        return False
    for now, then in zip(native.__iter__(container), keys, strict=True):
        if now is not then and (
            type(now) is not type(then) or not is_one_of(type(now), (str, int, float, bytes)) or now != then
        ):
            return False
    return True

"""Which tensors live on after a recorded call, and whether a weak reference observes one that does not."""

from __future__ import annotations

import gc
import sys
from collections.abc import Container
from weakref import getweakrefcount

import torch

__all__ = ["is_dropped_observed", "release"]


def release(tensors: dict[int, torch.Tensor], outside: Container[int]) -> tuple[tuple[int, ...], bool]:
    """Remove from ``tensors`` the computed ones that nothing else holds. Return the numbers of the others, and whether
    a weak reference observes one that is removed. ``outside``: the numbers of the tensors that the call did not
    compute."""
    escapes, observed = _release_once(tensors, outside)
    for generation in (1, 2):  # a cycle of autograd's, mostly a young one, may be all that holds it
        if any(tensors[number].grad_fn is not None for number in escapes):
            gc.collect(generation)
            escapes, more = _release_once(tensors, outside)
            observed |= more
    return escapes, observed


def _release_once(tensors: dict[int, torch.Tensor], outside: Container[int]) -> tuple[tuple[int, ...], bool]:
    """Do what ``release`` does, without the collector of cycles. The latest tensors go first: the backward graph of a
    tensor that the call has dropped may be all that holds an earlier one."""
    observed = False
    while True:
        kept = [n for n in tensors if n not in outside]
        for n in reversed(kept):
            if sys.getrefcount(tensors[n]) == 2:
                observed |= getweakrefcount(tensors[n]) > 0
                del tensors[n]
        if not any(n not in tensors for n in kept):
            return tuple(kept), observed


def is_dropped_observed(tensors: dict[int, torch.Tensor], numbers: Container[int]) -> bool:
    """Whether a weak reference observes one of these tensors that nothing else holds."""
    dropped = (tensors[n] for n in tensors if n in numbers and sys.getrefcount(tensors[n]) == 2)
    return any(map(getweakrefcount, dropped))

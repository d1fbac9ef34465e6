"""Snapshots of what native code was given, and whether it is still the same later.

A container is compared by its elements, an object by its attributes, a tensor by its memory, version and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.known.details import memory_of
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.trace.values import plain

__all__ = ["are_same", "copied", "is_unchanged", "keeps", "parts_of"]


def keeps(value: Any, shape: list[Any]) -> bool:
    return are_same(parts_of(value), shape)


def is_unchanged(tensor: torch.Tensor, version: int, copy: torch.Tensor | None, alias: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        if memory_of(tensor) != memory_of(alias):
            return False
        if not tensor.is_inference() and tensor._version != version:
            return False
        if copy is None:
            return True
        now = tensor.detach()
        return bool(((now == copy) | ((now != now) & (copy != copy))).all())


def copied(value: Any, was_there: Callable[[Any], bool]) -> Any:
    """Copy the structure of a container that the program has made, so that later changes do not show. What
    ``was_there`` before the call stays what it is: a later call may find other contents in it."""
    if was_there(value):
        return value
    if type(value) is list:
        return [copied(part, was_there) for part in value]
    if type(value) is dict:
        return {key: copied(part, was_there) for key, part in value.items()}
    if type(value) is tuple:
        return tuple(copied(part, was_there) for part in value)
    return set(value) if type(value) is set else value


def parts_of(value: Any) -> list[Any]:
    """Return the present elements of a container or attributes of an object."""
    if isinstance(value, dict):
        return [part for item in dict.items(value) for part in item]
    if isinstance(value, CONTAINERS):
        return list(value)
    return [part for item in attributes_of(value).items() for part in item]


def are_same(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(map(_same, now, then))


def _same(a: Any, b: Any) -> bool:
    a, b = plain(a), plain(b)
    if isinstance(a, tuple) and type(a) is type(b):
        return are_same(list(a), list(b))
    return a is b or (type(a) is type(b) and isinstance(a, int | float | str) and bool(a == b))

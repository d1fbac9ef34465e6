"""Operators that programs of the corpus register: the same names on both sides of a comparison."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["in_the_place_of", "registered", "scripted"]

_libraries: dict[str, torch.library.Library] = {}


def registered(namespace: str, schema: str, body: Callable[..., Any], key: str = "CompositeExplicitAutograd") -> Any:
    """``torch.ops.<namespace>`` with one operator, whoever has registered one there before."""
    if namespace in _libraries:
        _libraries.pop(namespace)._destroy()
    library = _libraries[namespace] = torch.library.Library(namespace, "DEF")
    library.define(schema)
    library.impl(schema.partition("(")[0], body, key)
    return getattr(torch.ops, namespace)


def in_the_place_of(name: str, body: Callable[..., Any], key: str = "CPU") -> Callable[[], None]:
    """Register a kernel of an operator of torch's own; what takes it back."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):
        library.impl(name, body, key)
    return library._destroy


def scripted(what: Any) -> Any:
    """``torch.jit.script``, which is deprecated, and still there."""
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.script(what)

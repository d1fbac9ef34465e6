"""Operators that programs of the corpus register: the same names on both sides of a comparison."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["aten_operators", "in_the_place_of", "registered", "scripted"]

_libraries: dict[str, torch.library.Library] = {}


def registered(namespace: str, schema: str, body: Callable[..., Any], key: str = "CompositeExplicitAutograd") -> Any:
    """``torch.ops.<namespace>`` with one operator, whoever has registered one there before."""
    if namespace in _libraries:
        _libraries.pop(namespace)._destroy()
    library = _libraries[namespace] = torch.library.Library(namespace, "DEF")
    library.define(schema)
    library.impl(schema.partition("(")[0], body, key)
    return getattr(torch.ops, namespace)


def aten_operators() -> Iterator[Any]:
    """All overloads of ATen's that have a name in Python."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        found = getattr(torch.ops.aten, packet, None) if namespace == "aten" else None
        if found is not None and (overload or "default") in found.overloads():
            yield getattr(found, overload or "default")


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

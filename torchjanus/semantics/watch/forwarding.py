"""Hooks and leaves that one part of a watch answers alone, as a table. Knows no part."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["answered_by"]


def answered_by(parts: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return a decorator for a class of semantics. ``parts``: the methods that each part answers, by the name of the
    attribute that holds it."""

    def decorate(semantics: Any) -> Any:
        for part, names in parts.items():
            for name in names.split():
                setattr(semantics, name, _forwarded(part, name, getattr(semantics, name)))
        return semantics

    return decorate


def _forwarded(part: str, name: str, inherited: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method with the parameters of the inherited one that calls the part's method of this name."""
    parameters = ", ".join([*inspect.signature(inherited).parameters][1:])
    scope: dict[str, Any] = {}
    # Generated with explicit parameters: packing and unpacking them would slow watching.
    text = f"def forwarded(self, {parameters}):\n    return self.{part}.{name}({parameters})\n"
    exec(compile(text, __file__, "exec"), scope)
    return functools.wraps(inherited)(scope["forwarded"])

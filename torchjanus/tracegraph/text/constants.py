"""Constants of a graph that are objects: a table of them, each with a name that other processes can use if it has one.

A name is used only if it leads to the very object. Others print as ``(object CLASS)``: a graph that has some can be
read, printed and compared, but what it was made of cannot be made from its text alone.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.kinds import getattr, isinstance

__all__ = ["Constants", "Unknown", "literal_text", "named"]

_VALUES = (torch.dtype, torch.layout, torch.memory_format)
_WORDS = {None: "none", True: "true", False: "false"}


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stands for an object that a text does not give."""

    cls: str


@dataclass(slots=True)
class Constants:
    """The objects of a graph, in the order in which its text first names them."""

    objects: list[Any] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)

    def number(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return number


def literal_text(value: Any) -> str | None:
    """Return a literal as it is printed; None for other objects."""
    cls = type(value)
    if cls is bool or value is None:
        return _WORDS[value]
    if cls is int or cls is float:
        return repr(value)
    return None


def name_of_object(value: Any) -> str | None:
    """By which name any process has this object; None if there is none."""
    if isinstance(value, _VALUES):
        return str(value)
    if isinstance(value, types.ModuleType):
        return f"module:{value.__name__}" if sys.modules.get(value.__name__) is value else None
    owner = getattr(value, "__objclass__", None)
    module = owner.__module__ if isinstance(owner, type) else getattr(value, "__module__", None)
    names = [(module, getattr(value, "__qualname__", None)), ("torch", getattr(value, "__name__", None))]
    for module, name in names:
        if isinstance(module, str) and isinstance(name, str) and module != "__main__":
            if named(f"{module}:{name}") is value:
                return f"{module}:{name}"
    return None


def named(name: str) -> Any:
    """Return the object with this name, Unknown if there is none."""
    if name.startswith("torch.") and ":" not in name:
        return getattr(torch, name.removeprefix("torch."), Unknown(name))
    module, _, path = name.partition(":")
    if module == "module":
        module, path = path, ""
    try:
        found: Any = sys.modules[module]  # a text does not make anything be imported
        for part in path.split(".") if path else ():
            found = vars(found)[part] if isinstance(found, type) else getattr(found, part)
    except (AttributeError, KeyError, TypeError):
        return Unknown(name)
    return found

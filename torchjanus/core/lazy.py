"""Modules that are imported when an attribute of them is first read, and packages whose names are.

Importing Inductor, Dynamo and SymPy takes a second. A program that compiles nothing does not need them, and a script in
which no step is found needs almost nothing of torchjanus. Only what is written here defers an import: a module
names at its top what it uses, as for any other import. This module does not know what is deferred.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torchjanus.core.collector import uncollected

__all__ = ["deferred", "names_of"]


def _module(name: str) -> ModuleType:
    if (known := sys.modules.get(name)) is not None and not getattr(known.__spec__, "_initializing", False):
        return known
    # What it defines stays; the collector would look at all of torch meanwhile.
    with uncollected(kept=True, garbage=False):
        return importlib.import_module(name)


class _Deferred:
    """Stands for a module. Each attribute is the module's own at the time when it is read."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(_module(self._name), attribute)

    def __repr__(self) -> str:
        return f"<deferred module {self._name!r}>"


def deferred(name: str) -> Any:
    """Return a stand-in for a module, by its full name. Reading an attribute imports the module; raises what that
    raises."""
    return _Deferred(name)


def names_of(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return ``__getattr__`` for a package (PEP 562). ``modules``: under the name of a module, the names that it gives
    the package, with spaces between them."""
    home = {name: module for module, names in modules.items() for name in names.split()}

    def found(name: str) -> Any:
        if (module := home.get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(_module(module), name)
        setattr(importlib.import_module(package), name, value)
        return value

    return found
